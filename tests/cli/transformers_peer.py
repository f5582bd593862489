"""The part of transformers_test.py that runs in a Python with torch and transformers: it reads and writes models.

Starting it takes long, so it serves all tests: for each line of its input, a JSON list of a folder to work in and a list
of calls, it prints a line with the list of their results, or with the text of an exception:

    ["logits", FOLDER, TOKENS, OUTPUT]     fp32 logits [tokens, vocabulary]; returns the mean loss, in double
    ["tokens", FOLDER, TEXT]               returns the token numbers that AutoTokenizer gives for the file TEXT
    ["make", FAMILY, FOLDER, DTYPE]        a small model with random weights, in several files
    ["tokenizer", FOLDER, SPECIAL, POST]   a byte-level BPE with these special tokens, whose post-processor is none, a template,
                                           or RoBERTa's, with the first two of them
    ["describe", FOLDER, TEXT]             names and ids of special tokens in all files, and the tokens of TEXT with those added
    ["gradients", FOLDER, TOKENS, OUTPUT]  gradients of the mean loss of TOKENS in double precision, as a safetensors file; returns
                                           the loss
    ["train", FOLDER, TOKENS, OPTIONS]     losses of a model of GPT-2's family, trained on all windows of TOKENS in every step,
                                           by torch.optim.Muon and AdamW, or only AdamW (OPTIONS["optimizer"])
"""
import json
import os
import sys
import traceback
from unittest import mock

output, sys.stdout = sys.stdout, sys.stderr  # libraries may print
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
import numpy
import torch
import transformers

torch.set_num_threads(1)  # the models are tiny
EAGER = {"attn_implementation": "eager"}  # in any type
if int(transformers.__version__.split(".")[0]) >= 5:
    EAGER["experts_implementation"] = "eager"  # earlier versions have no other one


def logits(folder, tokens, output):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **EAGER)
    model.eval()
    ids = torch.from_numpy(numpy.fromfile(tokens, dtype=numpy.int32).astype(numpy.int64))[None]
    with torch.no_grad():
        result = model(input_ids=ids).logits[0].float()
        wide = model.double()(input_ids=ids).logits[0]
        loss = torch.nn.functional.cross_entropy(wide[:-1], ids[0, 1:])
    result.numpy().tofile(output)
    return {"loss": loss.item(), "model": type(model).__name__,
            "ends": [model.generation_config.eos_token_id, model.config.eos_token_id],
            "generated": model.float().generate(ids[:, :4], max_new_tokens=3, do_sample=False).tolist()}


def gradients(folder, tokens, output):
    """Writes fp64 gradients. Norms, softmax and rotary positions request torch.float32, so that name means fp64
    here."""
    from safetensors.torch import save_file
    stored = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.from_numpy(numpy.fromfile(tokens, dtype=numpy.int32).astype(numpy.int64))
    before = torch.get_default_dtype()
    with mock.patch.multiple(torch, float=torch.float64, float32=torch.float64), \
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        torch.set_default_dtype(torch.float64)
        try:
            stored.config.dtype = torch.float64
            model = transformers.AutoModelForCausalLM.from_config(stored.config, **EAGER)
            model.load_state_dict(stored.state_dict())
            model.eval()
            logits = model(input_ids=ids[None, :-1]).logits[0]
            assert logits.dtype == torch.float64
            loss = torch.nn.functional.cross_entropy(logits, ids[1:])
            loss.backward()
        finally:
            torch.set_default_dtype(before)
    save_file({name: parameter.grad for name, parameter in model.named_parameters()}, output)
    return loss.item()


def tokens(folder, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with open(text, newline="", encoding="utf-8") as file:
        content = file.read()
    ids = tokenizer.encode(content, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == content, "the text does not come back"
    return {"ids": ids, "eos": tokenizer.eos_token_id, "size": len(tokenizer)}


def rope(kind="default", **fields):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 3e4, **fields}}


SIZES = {"vocab_size": 320, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3,
         "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 48, "rms_norm_eps": 3e-6,
         "initializer_range": 0.3, "tie_word_embeddings": False, "pad_token_id": None, **rope()}
FAMILIES = {  # model_type, and differences from SIZES
    "llama": ("llama", {}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "wide": ("llama", {"head_dim": 10, **rope("linear", factor=2.0)}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"head_dim": 12, "sliding_window": None}),
    "windows": ("mistral", {"sliding_window": 5}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 12, "tie_word_embeddings": True,
                        **rope("yarn", factor=4.0, original_max_position_embeddings=64)}),
    "some-windows": ("qwen3", {"head_dim": 10, "use_sliding_window": True, "sliding_window": 5,
                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2, "tie_word_embeddings": True}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                        "rope_parameters": {
                            "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0,
                                               "original_max_position_embeddings": 64},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}}),
    "gemma3": ("gemma3_text", {"head_dim": 12, "query_pre_attn_scalar": 10, "sliding_window": 5, "tie_word_embeddings": True,
                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                               "rope_parameters": {
                                   "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    "gpt_neox": ("gpt_neox", {"num_key_value_heads": 6, "rotary_pct": 0.25, "rotary_emb_base": 3e4,
                              **rope(partial_rotary_factor=0.25)}),
    "sequential": ("gpt_neox", {"num_key_value_heads": 6, "rotary_pct": 0.5, "rotary_emb_base": 3e4, "hidden_act": "gelu_new",
                                "use_parallel_residual": False, **rope(partial_rotary_factor=0.5)}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "intermediate_size": 40}),
    "olmoe": ("olmoe", {"num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40}),
    "qwen2_moe": ("qwen2_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                                "shared_expert_intermediate_size": 40}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 12, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
                                "norm_topk_prob": True, "decoder_sparse_step": 2}),
    "llama3": ("llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=256)),
    "yarn": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=64)),
}


def make(family, folder, dtype):
    torch.manual_seed(7)
    if family == "gpt2":
        config = transformers.GPT2Config(vocab_size=320, n_positions=48, n_embd=40, n_layer=3, n_head=4, n_inner=100,
                                         layer_norm_epsilon=2e-5, initializer_range=0.3)
        model = transformers.GPT2LMHeadModel(config)
    else:
        kind, changes = FAMILIES[family]
        config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # norms of one and biases of zero would hide mistakes
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="40KB", safe_serialization=True)


def tokenizer(folder, special, post):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(["the house of the king was near the old house by the sea. "], trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    begin, end = (special + special)[:2]
    if post == "template":
        made.post_processor = processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, 0)])
    elif post == "roberta":
        made.post_processor = processors.RobertaProcessing((end, special.index(end)), (begin, 0))
    made.save(folder + "/tokenizer.json")


def describe(folder, text):
    loaded, kinds = transformers.AutoTokenizer.from_pretrained(folder), ("bos", "eos", "unk", "pad")
    if os.path.exists(folder + "/config.json"):
        files = [transformers.AutoConfig.from_pretrained(folder)]
        has_own = os.path.exists(folder + "/generation_config.json")
        files.append(transformers.GenerationConfig.from_pretrained(folder) if has_own
                     else transformers.GenerationConfig.from_model_config(files[0]))
    return {"names": [getattr(loaded, f"{kind}_token") for kind in kinds],
            "ids": [getattr(loaded, f"{kind}_token_id") for kind in kinds], "size": len(loaded), "tokens": loaded(text)["input_ids"],
            "files": [[getattr(each, f"{kind}_token_id", None) for kind in ("bos", "eos", "pad")] for each in files]}


def newton_schulz(gradient, coefficients, steps, eps):
    """Computes torch.optim.Muon's orthogonalization, but in the gradient's type instead of bf16."""
    a, b, c = coefficients
    x = gradient / gradient.norm().clamp(min=eps)
    x = x.T if gradient.size(0) > gradient.size(1) else x
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if gradient.size(0) > gradient.size(1) else x


def hidden_pieces(model):
    """Returns the blocks' matrices as [out, in] views of their weights, with q, k and v separate. transformers stores
    [in, out]."""
    pieces = []
    for block in model.transformer.h:
        for layer, count in ((block.attn.c_attn, 3), (block.attn.c_proj, 1), (block.mlp.c_fc, 1), (block.mlp.c_proj, 1)):
            pieces += [(layer.weight, part) for part in torch.arange(layer.weight.size(1)).chunk(count)]
    return pieces


def train(folder, tokens, options):
    from torch.optim import _muon
    _muon._zeropower_via_newtonschulz = newton_schulz
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **EAGER)
    model.eval()  # no dropout
    length, lr, decay = options["seq_len"], options["lr"], options["weight_decay"]
    ids = torch.from_numpy(numpy.fromfile(tokens, dtype=numpy.int32).astype(numpy.int64))
    windows = torch.stack([ids[i:i + length + 1] for i in range(0, len(ids) - length, length)])
    pieces = hidden_pieces(model) if options["optimizer"] == "muon" else []
    matrices = [torch.nn.Parameter(weight.detach()[:, part].T.clone()) for weight, part in pieces]
    hidden = {id(weight) for weight, _ in pieces}
    rest = [p for p in model.parameters() if id(p) not in hidden]
    groups = [{"params": [p for p in rest if (p.dim() > 1) == matrix], "weight_decay": decay * matrix} for matrix in (True, False)]
    optimizers = [torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    losses = []
    for _ in range(options["steps"]):
        logits = model(input_ids=windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options["grad_clip"])
        for matrix, (weight, part) in zip(matrices, pieces):
            matrix.grad = weight.grad[:, part].T.contiguous()
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for matrix, (weight, part) in zip(matrices, pieces):
                weight[:, part] = matrix.T
    return losses


if __name__ == "__main__":
    calls = {"logits": logits, "tokens": tokens, "make": make, "gradients": gradients, "train": train,
             "tokenizer": tokenizer, "describe": describe}
    for line in sys.stdin:
        folder, requests = json.loads(line)
        os.chdir(folder)
        try:
            results = [calls[name](*arguments) for name, *arguments in requests]
        except Exception:
            results = traceback.format_exc()
        print(json.dumps(results), file=output, flush=True)
