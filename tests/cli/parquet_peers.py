"""Tables and the libraries that write them, for parquet_test.py; a small writer for Pythons without any of them."""
import importlib
import random
import struct


def library(name):
    """Returns a module, or None if this Python lacks it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def table(rows=3000, seed=5):
    """Returns columns with nulls, empty strings and lists, characters that JSON escapes, and every number's limits."""
    rng = random.Random(seed)
    words = ["".join(rng.choice('abcdefgh é"\\\n\t\x01😀') for _ in range(rng.randint(0, 12))) for _ in range(400)]
    def text():
        return rng.choice([None, "", rng.choice(words), " ".join(rng.choices(words, k=rng.randint(1, 60)))])
    def message():
        return rng.choice([None, {"role": rng.choice(["user", "assistant", None]), "content": text()}])
    def chat():
        return rng.choice([None, [], [message() for _ in range(rng.randint(1, 4))]])
    def some(values):
        return [rng.choice([None, *values]) for _ in range(rows)]
    return {
        "id": list(range(rows)),
        "text": [text() for _ in range(rows)],
        "messages": [chat() for _ in range(rows)],
        "nested": [rng.choice([None, [], [rng.choice([None, [], [text(), text()]]) for _ in range(rng.randint(1, 3))]]) for _ in range(rows)],
        "choices": [rng.choice([None, {"label": rng.choice([[], ["A", "B", None]]), "text": rng.choice([None, [text()]])}]) for _ in range(rows)],
        "whole": some([0, 1, -1, 2**63 - 1, -2**63]),
        "real": some([0.1, -1e300, 1.5]),
        "flag": some([True, False]),
    }


def _varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out + bytes([n]))


def _number(n):
    return _varint(n << 1)


def _fields(*fields):
    """A struct of Thrift's compact protocol: (number, type, encoded value), in ascending order."""
    out, last = b"", 0
    for number, kind, value in fields:
        out += bytes([number - last << 4 | kind]) + value
        last = number
    return out + b"\0"


_I32, _I64, _TEXT, _LIST, _STRUCT = 5, 6, 8, 9, 12


def write_texts(path, texts, group=1000, page=100):
    """Writes the column "text" without nulls and without compression, in plain encoding."""
    name = _varint(4) + b"text"
    out, groups = b"PAR1", []
    for begin in range(0, len(texts), group):
        rows, start = texts[begin:begin + group], len(out)
        for at in range(0, len(rows), page):
            part = rows[at:at + page]
            body = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in part)
            out += _fields((1, _I32, _number(0)), (2, _I32, _number(len(body))), (3, _I32, _number(len(body))),
                           (5, _STRUCT, _fields((1, _I32, _number(len(part))), (2, _I32, _number(0)), (3, _I32, _number(3)),
                                                (4, _I32, _number(3))))) + body
        size = len(out) - start
        meta = _fields((1, _I32, _number(6)), (2, _LIST, b"\x15" + _number(0)), (3, _LIST, b"\x18" + name), (4, _I32, _number(0)),
                       (5, _I64, _number(len(rows))), (6, _I64, _number(size)), (7, _I64, _number(size)), (9, _I64, _number(start)))
        groups.append(_fields((1, _LIST, b"\x1c" + _fields((2, _I64, _number(start)), (3, _STRUCT, meta))), (2, _I64, _number(size)),
                              (3, _I64, _number(len(rows)))))
    schema = _fields((4, _TEXT, _varint(4) + b"root"), (5, _I32, _number(1))) + \
        _fields((1, _I32, _number(6)), (3, _I32, _number(0)), (4, _TEXT, name), (6, _I32, _number(0)))
    many = bytes([0xF0 | _STRUCT]) + _varint(len(groups))
    footer = _fields((1, _I32, _number(1)), (2, _LIST, b"\x2c" + schema), (3, _I64, _number(len(texts))), (4, _LIST, many + b"".join(groups)))
    path.write_bytes(out + footer + struct.pack("<I", len(footer)) + b"PAR1")
