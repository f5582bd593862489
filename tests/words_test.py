#!/usr/bin/env python3
"""No text that people read has a phrase that they would not search for: string literals of src/, comments of src/ and
tests/ (docstrings too), comments and messages of scripts/, configurations and pages. Each phrase comes with what to write instead.
"""
import io
import re
import tokenize
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHRASES = {
    r"anew": "again, from scratch",
    r"(?<!there )(?:is|are) no (?!longer|more|less|faster|slower|larger|smaller)\w+": "is not a",
    r"so many": "N",
    r"foretold|foresees?|foreseen": "predicted",
    r"wanted|asked|asks? for": "requested",
    r"told|tells|says that|said once": "reported, logged, prints",
    r"alone": "only, on its own",
    r"(?:stands?|lies?|lying) in": "is in",
    r"gives? way|goes? home|leads? back|answers for": "the thing itself",
    r"nobody|somebody": "no rank, a user",
    r"another one|the others": "a different one, the other ranks",
    r"beside": "next to, compared with, while ... runs",
    r"own kernels": "built-in kernels",
    r"skinny|few rows": "small-batch",
    r"peak loop": "peak microbenchmark",
    r"hidden (?:by|under)": "overlapped with",
    r"waits? at once": "blocks immediately",
    r"mended": "fixed",
    r"in turns": "in alternating runs",
    r"(?:tied|ties) to (?:a )?cores?": "pinned to cores",
    r"set of instructions": "instruction set",
    r"machine [ABC]": "the CPU's name",
    r"stands? for": "represents, means",
    r"outside of": "outside",
    r"squares? of (?:ranks|\w × \w)": "square mesh of ranks",
    r"(?:left|right) factors?": "left, right operand",
    r"(?:is|are) answered with": "is rejected with a message that states",
    r"(?:bytes|[mµu]s|[KMG]i?B(?:/s)?|one|tokens|object|verse) an? (?:call|core|file|line|parameter|rank|second|step|token)": "per",
}
FRAGMENT = re.compile(r"//+ (?:[Oo]f|[Hh]ow|[Ww]hat|[Ww]here|[Ww]hether) ")
ALLOWED = {  # text around a phrase: why it is right
    "nobody@example.invalid": "an address",
}

PATTERN = re.compile("|".join(rf"(?P<p{i}>(?<![\w-])(?:{phrase})(?![\w-]))" for i, phrase in enumerate(PHRASES)), re.I)
CPP = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\])*"|(?<!\w)\'(?:\\.|[^\'\\])+\'', re.S)


def literals_of_cpp(text):
    """Returns (position, text) of string literals. Those with only white space and comments between them are one."""
    found, end = [], 0
    for token in CPP.finditer(text):
        joined = found and not text[end:token.start()].strip()
        if token[0].endswith('"') and joined:
            found[-1] = (found[-1][0], found[-1][1] + token[0][1:-1])
        elif token[0].endswith('"'):
            found.append((token.start(), token[0][1:-1]))
        if joined or not token[0].startswith("/"):
            end = token.end()
    return found


def comments_of_cpp(text):
    """Returns (position, text) of comments, without names in backquotes and without phrases that are right in comments."""
    return [(token.start(), re.sub(r"`[^`]*`|the others|few rows", lambda match: " " * len(match[0]), token[0]))
            for token in CPP.finditer(text) if token[0].startswith("/")]


def texts_of_python(text):
    lines = [0]
    for line in text.splitlines(True):
        lines.append(lines[-1] + len(line))
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    return [(lines[token.start[0] - 1], token.string) for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in kinds]


def texts_of_shell(text):
    return [(match.start(), match[0]) for match in re.finditer(r'(?:^|\s)#[^\n]*|"(?:\\.|[^"\\])*"|\'[^\']*\'', text)]


def texts(path):
    text = path.read_text()
    folder = path.parts[len(ROOT.parts)]
    if path.suffix in (".cpp", ".h", ".cu", ".cuh"):
        return text, comments_of_cpp(text) + (literals_of_cpp(text) if folder == "src" else [])
    if path.suffix == ".py":
        pieces = texts_of_python(text)
        return text, [piece for piece in pieces if piece[1].startswith(("#", '"""'))] if folder == "tests" else pieces
    return text, texts_of_shell(text) if path.suffix in (".sh", ".cmake") else [(0, text)]


def files():
    for folder, suffixes in (("src", ".cpp .h .cu .cuh"), ("tests", ".cpp .h .cu .cuh .py"), ("scripts", ".py .sh .cmake"), ("configs", ".toml .yaml .md")):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes.split() and path != Path(__file__).resolve():
                yield path
    for pattern in ("*.md", "docs/*.md", "data/*.md", "src/*.md", "scripts/*.md", "tests/*.md", "tests/bench/*.md"):
        yield from sorted(ROOT.glob(pattern))


def problems(text, pieces):
    for position, piece in pieces:
        for match in PATTERN.finditer(piece):
            around = piece[max(0, match.start() - 20):match.end() + 20]
            if not any(allowed in around for allowed in ALLOWED):
                instead = list(PHRASES.values())[int(match.lastgroup[1:])]
                line = text.count("\n", 0, position) + piece.count("\n", 0, match.start()) + 1
                yield line, f'"{match[0]}": write {instead}'


def fragments(text):
    """Yields the lines of C++ comments that begin with a word such as "of" or "what"; continuation lines do not count."""
    end = -1  # the line of the previous comment, if it has the line to itself
    for token in CPP.finditer(text):
        if token[0].startswith("//"):
            line, own = text.count("\n", 0, token.start()) + 1, not text[text.rfind("\n", 0, token.start()) + 1:token.start()].strip()
            if FRAGMENT.match(token[0]) and not (own and end == line - 1):
                yield line
            end = line


class Words(unittest.TestCase):
    def test_comments_are_not_fragments(self):
        found = [f"{path.relative_to(ROOT).as_posix()}:{line}: name what the member is, or write a sentence" for path in files()
                 if path.suffix in (".cpp", ".h", ".cu", ".cuh") for line in fragments(path.read_text())]
        self.assertFalse(found, "\n" + "\n".join(found))
        self.assertEqual(list(fragments("int a;  // of the weights\n// Sums up\n// of the rows.\n/// What it is.\nint b;  // version\n        // of it\n")),
                         [1])

    def test_texts(self):
        found = []
        for path in files():
            name = path.relative_to(ROOT).as_posix()
            found += [f"{name}:{line}: {problem}" for line, problem in problems(*texts(path))]
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_planted_phrases_are_found(self):
        planted = ('f("remove the folder to start "\n  "anew");  // anew\ng("is no "  // a comment\n  "number", \'"\', "fine");\n'
                   'h(65\'536, "anew");\n')
        self.assertEqual([line for line, _ in problems(planted, literals_of_cpp(planted))], [1, 3, 5])
        self.assertEqual([line for line, _ in problems(planted, comments_of_cpp(planted))], [2])
        for phrase in ("is no number", "so many ranks", "as told", "its speed alone", "beside it", "lies in there", "nobody",
                       "one a call", "28 bytes a parameter", "outside of it", "a left factor", "a square of ranks"):
            self.assertTrue(list(problems(phrase, [(0, phrase)])), phrase)
        for right in ("there is no GPU", "is no longer", "--alone", "stand-alone", "is not a number", "once a step ends"):
            self.assertFalse(list(problems(right, [(0, right)])), right)


if __name__ == "__main__":
    unittest.main()
