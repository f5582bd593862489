"""The part of gguf_test.py that runs in a Python with gguf and llama.cpp (llama-cpp-python or llama-cpp-py-sync).

Its argument is a JSON list of calls; it prints the list of their results:

    ["read", FILE]                  with the gguf package: metadata, and each tensor's shape, type and checksum in fp32
    ["run", FILE, PROMPT, TOKENS]   with llama.cpp: the greedy continuation, and the tokens of the prompt
    ["tokens", FILE, TEXTS]         with llama.cpp: the tokens of each text
"""
import json
import os
import sys


def read(file):
    import gguf
    reader = gguf.GGUFReader(file)
    keys = {}
    for name, field in reader.fields.items():
        if not name.startswith("GGUF."):
            keys[name] = field.contents()
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("float64")
        tensors[tensor.name] = [list(map(int, tensor.shape)), tensor.tensor_type.name, float(values.sum()), float(abs(values).sum())]
    return {"keys": keys, "tensors": tensors}


def tokens(file, texts):
    try:
        import llama_cpp
    except ImportError:
        from llama_cpp_py_sync import Llama
        with Llama(file, n_ctx=256, n_threads=1) as model:
            return [model.tokenize(text, add_special=True) for text in texts]
    model = llama_cpp.Llama(file, n_ctx=256, n_threads=1, vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=True) for text in texts]


def run(file, prompt, tokens):
    try:
        import llama_cpp
    except ImportError:
        from llama_cpp_py_sync import Llama
        with Llama(file, n_ctx=256, n_threads=1, type_k="f32", type_v="f32", flash_attn_type=0) as model:
            return {"ids": model.tokenize(prompt, add_special=True),
                    "text": model.generate(prompt, max_tokens=tokens, temperature=0, top_k=1, top_p=1, min_p=0, repeat_penalty=1)}
    model = llama_cpp.Llama(file, n_ctx=256, n_threads=1, type_k=0, type_v=0, flash_attn=False, verbose=False, seed=1)
    ids = model.tokenize(prompt.encode(), add_bos=True)
    text = model(prompt, max_tokens=tokens, temperature=0, repeat_penalty=1)["choices"][0]["text"]
    return {"ids": ids, "text": text}


if __name__ == "__main__":
    stdout, sys.stdout = sys.stdout, sys.stderr
    results = [{"read": read, "run": run, "tokens": tokens}[name](*arguments) for name, *arguments in json.loads(sys.argv[1])]
    print(json.dumps(results), file=stdout, flush=True)
    os._exit(0)
