"""What transformers_test.py runs in a Python that has torch and transformers: it reads and writes models there.

Its argument is a JSON list of calls, since starting takes long, and it prints the list of their results:

    ["logits", FOLDER, TOKENS, OUTPUT]     fp32 logits [tokens, vocabulary]; returns the mean loss, in double
    ["tokens", FOLDER, TEXT]               returns the token numbers that AutoTokenizer gives for the file TEXT
    ["make", FAMILY, FOLDER, DTYPE]        a small model with random weights, in several files
"""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
import numpy
import torch
import transformers


def logits(folder, tokens, output):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
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
FAMILIES = {  # model_type, and what differs from SIZES
    "llama": ("llama", {}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "wide": ("llama", {"head_dim": 10, **rope("linear", factor=2.0)}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"head_dim": 12, "sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 12, "tie_word_embeddings": True,
                        **rope("yarn", factor=4.0, original_max_position_embeddings=64)}),
    "llama3": ("llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=256)),
    "yarn": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=64)),
}


def make(family, folder, dtype):
    torch.manual_seed(7)
    if family == "gpt2":
        config = transformers.GPT2Config(vocab_size=320, n_positions=48, n_embd=40, n_layer=3, n_head=5, n_inner=100,
                                         layer_norm_epsilon=2e-5, initializer_range=0.3)
        model = transformers.GPT2LMHeadModel(config)
    else:
        kind, changes = FAMILIES[family]
        config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # initial norms and biases would hide mistakes
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="40KB", safe_serialization=True)


if __name__ == "__main__":
    calls = {"logits": logits, "tokens": tokens, "make": make}
    print(json.dumps([calls[name](*arguments) for name, *arguments in json.loads(sys.argv[1])]))
