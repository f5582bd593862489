"""Makes tokenizers with added tokens, and texts with their tokens according to Hugging Face's tokenizers.

Run in a Python that has this library, with a folder that has a SentencePiece model and its tokenizer.json. Each case is
a folder with the tokenizer's files, text.jsonl and ids.json.
"""
import json
import pathlib
import random
import shutil
import sys

from tokenizers import Tokenizer, pre_tokenizers

LETTERS = ["a", "b", "e", "<", ">", "|", "\u0301", "\u00e9", " ", "\n"]
MARK = "\u2581"


def flags(draw, strips=True):
    """Returns a token's properties; a token that is found in text is normalized or strips spaces now and then."""
    return {"single_word": False, "lstrip": strips and draw.random() < 0.2, "rstrip": strips and draw.random() < 0.2,
            "normalized": draw.random() < 0.4, "special": draw.random() < 0.3}


def byte_level(draw):
    """Returns the tokenizer.json of byte-level BPE with merges of all pairs of letters."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted({name for letter in LETTERS for name in step.pre_tokenize_str(letter)[0][0]})
    merges = [(a, b) for a in letters for b in letters]
    draw.shuffle(merges)
    vocab = {name: id for id, name in enumerate(dict.fromkeys([*names, *(a + b for a, b in merges)]))}
    contents = {"<eos>"}
    while len(contents) < 7:
        contents.add("".join(draw.choices(LETTERS[:8], k=draw.randrange(2, 5))))
    contents = [content for content in sorted(contents) if content not in vocab]
    added = [{"id": len(vocab) + i, "content": content, **flags(draw)} for i, content in enumerate(contents)]
    for token in added:
        if token["content"] == "<eos>":
            token["special"] = True
    normalizer = {"type": "NFC"} if draw.random() < 0.5 else None
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": [" ".join(merge) for merge in merges]}}


def sentencepiece(draw, file, scheme):
    """Returns the tokenizer.json of a SentencePiece model with more tokens, which adds spaces by the scheme."""
    file = json.loads(json.dumps(file))
    count = len(file["model"]["vocab"])
    for i, content in enumerate(["<t>", "<|x|>", "hex", "<t><t>"]):
        file["added_tokens"].append({"id": count + i, "content": content, **flags(draw), "normalized": False})
    file["normalizer"], file["pre_tokenizer"] = None, None
    if scheme == "prepend":
        file["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}
    else:
        file["pre_tokenizer"] = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": False}
    return file


def main(folder):
    model, file = folder / "tokenizer.model", json.loads((folder / "tokenizer.json").read_text())
    schemes = ["first", "always", "prepend"]
    for seed in range(30):
        draw = random.Random(seed)
        case = pathlib.Path(f"case{seed}")
        case.mkdir()
        if seed < 15:
            made, words = byte_level(draw), LETTERS
        else:
            made, words = sentencepiece(draw, file, schemes[seed % len(schemes)]), ["the cat", " the", " ", "x", "\n", "\u3000"]
            shutil.copy(model, case)
        (case / "tokenizer.json").write_text(json.dumps(made))
        words = words + [token["content"] for token in made["added_tokens"]] + ["<eos>"]
        texts = ["".join(draw.choices(words, k=draw.randrange(1, 12))) for _ in range(200)]
        (case / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        tokenizer = Tokenizer.from_file(str(case / "tokenizer.json"))
        tokenizer.encode_special_tokens = True  # special tokens in the text are plain text
        (case / "ids.json").write_text(json.dumps([tokenizer.encode(text, add_special_tokens=False).ids for text in texts]))


main(pathlib.Path(sys.argv[1]))
