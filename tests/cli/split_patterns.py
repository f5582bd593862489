"""Patterns that split text before byte-level BPE, as published in tokenizer.json files, and texts that are hard to split.

Run with a Python that has tokenizers 0.23 to write tests/unit/data/split_patterns.jsonl: the splits of that library.
"""
import json
import pathlib
import random
import unicodedata

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NOT_WORD = r"[^\r\n\p{L}\p{N}]?"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Each tokenizer's steps.
PUBLISHED = {
    "GPT-2": [GPT2],
    "SmolLM, StarCoder": [r"\p{N}", GPT2],
    "Llama 3, OLMo 2": [CONTRACTIONS + "|" + NOT_WORD + r"\p{L}+|" + TAIL],
    "Qwen 2, 2.5, 3": [CONTRACTIONS + "|" + NOT_WORD + r"\p{L}+|" + TAIL.replace("{1,3}", "")],
    "Qwen 3.5": [CONTRACTIONS + "|" + NOT_WORD + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "cl100k in tiktoken's spelling": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"],
    "GPT-4o": [f"{NOT_WORD}[{UPPER}]*[{LOWER}]+{CONTRACTIONS}?|{NOT_WORD}[{UPPER}]+[{LOWER}]*{CONTRACTIONS}?|"
               + TAIL.replace(r"[\r\n]*", r"[\r\n/]*", 1)],
    "Mistral Nemo": [f"{NOT_WORD}[{UPPER}]*[{LOWER}]+|{NOT_WORD}[{UPPER}]+[{LOWER}]*|"
                     + TAIL.replace("{1,3}", "").replace(r"[\r\n]*", r"[\r\n/]*", 1)],
    "Kimi": [rf"[\p{{Han}}]+|{NOT_WORD}[{UPPER}&&[^\p{{Han}}]]*[{LOWER}&&[^\p{{Han}}]]+{CONTRACTIONS}?|"
             rf"{NOT_WORD}[{UPPER}&&[^\p{{Han}}]]+[{LOWER}&&[^\p{{Han}}]]*{CONTRACTIONS}?|" + TAIL],
    "DeepSeek V3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
                    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "DeepSeek LLM, with fewer letters": [r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺͰ-ͳΑ-ΡΣ-ϵЀ-ҁԱ-ՖႠ-Ⴥℂℊ-ℓ𐐀-𐑏𞤀-𞥃]+",
                                         r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "SuperBPE": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "BLOOM": [r" ?[^(\s|[.,!?…。，、।۔،])]+"],
}
# Expressions that Oniguruma and other libraries read differently.
DIALECT = [
    r"^\w", r"\w$", r"\A.|.\z|.\Z", r"\b", r"\B\w", r"\h+", r"\H+", r"\d+", r"(?m:.+)", r".+", r"\N+", r"\O{3}", r"\R",
    r"\v", r"\e|\a|\f", r"[\b]", r"\x{4e2d}|\u00e9|\x41|\0", r"\p{L}{2}+", r"\p{L}{,2}", r"\p{L}{2,}?.", r"\p{N}{1}?a",
    r"a{,}|{2|b{x}", r"\p{L}*+.", r"\s?+\w", r"(\s)(?<name>\w)", r"(?>\p{N}{1,3})\d", r"a(?i)b|end|C", r"(?i:don't|END)",
    r"(?i:[a-f])", r"(?#comment)e", r"(?<=\s)\S+", r"(?<!\w)e", r"[[:alpha:]]+", r"[[:^alpha:]]+", r"[[:punct:]]+",
    r"\p{Punct}+", r"\p{^Punct}+", r"[[:word:]]+", r"[\w]+", r"\p{Word}+", r"[^\W\d]+", r"[[:alnum:][:blank:]]+",
    r"[[:xdigit:]]{2}", r"[[:space:]]+", r"[a-z[0-9]]+", r"[a-z&&[^aeiou]]+", r"[^a-z&&[^aeiou]]+", r"[\w&&\d&&[0-4]]",
    r"[^[^a-e]x]+", r"[a\-e]|[-+]|[+-]", r"[\]\[^]+", r"\p{Uppercase_Letter}+|\p{lowercase letter}{2}", r"\p{Alpha}+",
    r"\P{L}+", r"[\P{L}e]+", r"\p{Cn}+|\p{C}", r"\p{Latin}+|\p{Greek}+", r"\p{Hiragana}+|\p{Katakana}+", r"\p{Common}+",
    r"\p{Any}{5}", r"\p{Hani}+|\p{latn}+", r"[^\p{Cn}\p{L}]+", r"(?=\d)", r"x*", r"(?<=\p{L})(?=\p{N})|\s*",
]
PIECES = ["😀", "👩‍👩‍👧", "🏳️‍🌈", "e\u0301", "ﷺ", "٣٤٥", "²³¼", "Ⅷ", "\u0bcd", "कि", "ไทย", "한국어", "ひらがな", "カタカナ", "中文和English",
          "don't", "I'LL", "they've", "END", "deadBEEF", "naïve", "Straße", "a\nb", "the", "House", "snake_case", "x86"]
# Of Unicode 15.0, 15.1 and 16.0: letters of all kinds, marks, digits, punctuation, symbols, Han, emoji.
RECENT = [(0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0x10D40, 0x10D65), (0x11F00, 0x11F10), (0x11F43, 0x11F59), (0x16D40, 0x16D79),
          (0x1CC00, 0x1CCF9), (0x1E030, 0x1E06D), (0x1E4D0, 0x1E4F9), (0x1FA75, 0x1FA77), (0x1FAE8, 0x1FAE9), (0x2EBF0, 0x2EC10),
          (0x31350, 0x31360), (0x0363, 0x0366), (0x13439, 0x13455)]


def hard_text(seed, size):
    """Returns about `size` characters of words, numbers, spaces, line ends, all scripts and recent characters."""
    draw = random.Random(seed)
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    recent = [chr(c) for first, last in RECENT for c in range(first, last + 1)]
    kinds = [
        lambda: "".join(draw.choices(assigned, k=draw.randrange(1, 6))),
        lambda: "".join(draw.choices(recent, k=draw.randrange(1, 5))),
        lambda: "".join(chr(draw.randrange(0x4E00, 0x9FA0)) for _ in range(draw.randrange(1, 8))),
        lambda: " " * draw.randrange(1, 6) + draw.choice(["", "\n", "\t", "\r\n", "\u3000"]) * draw.randrange(4),
        lambda: str(draw.randrange(10 ** draw.randrange(1, 13))),
        lambda: "".join(draw.choices("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", k=draw.randrange(1, 5))),
        lambda: "\n" * draw.randrange(1, 4),
    ] + [lambda: draw.choice(PIECES) + draw.choice(["", " ", "  ", ". ", ", "])] * 5
    text = ""
    while len(text) < size:
        text += draw.choice(kinds)()
    return text


def main():
    from tokenizers import Regex, pre_tokenizers
    lines = []
    for index, steps in enumerate([*PUBLISHED.values(), *([pattern] for pattern in DIALECT)]):
        text = hard_text(index, 700 if index < len(PUBLISHED) else 120)
        splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(step), "isolated") for step in steps])
        sizes = [len(piece.encode()) for piece, _ in splitter.pre_tokenize_str(text)]
        lines.append(json.dumps({"steps": steps, "text": text, "sizes": sizes}, ensure_ascii=False) + "\n")
    output = pathlib.Path(__file__).parent.parent / "unit/data/split_patterns.jsonl"
    output.write_text("".join(lines), newline="\n")


if __name__ == "__main__":
    main()
