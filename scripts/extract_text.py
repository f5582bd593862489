#!/usr/bin/env python3
"""Extracts plain text from unpacked Debian packages; called by get_text.sh, which lists the packages.

usage: extract_text.py ROOT OUT    ROOT: where the packages were unpacked, OUT: folder for the .txt files
"""
import gzip
import html
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path


def bible(root):
    """Returns the verses, as the package's own program prints them, without the prefix "Gen1:1 "."""
    command = [root / "usr/bin/bible", "-p", root / "usr/lib", "-f", "Gen1:1-Rev22:21"]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return re.sub(r"^\w+:\d+ ", "", printed, flags=re.M)


def r_strings(record):
    """Returns the strings of one serialized R object: a CHARSXP has type 9 in its flags' last byte, then its length."""
    lines, at = [], record.find(b"\x00\x04\x00\x09")
    while at >= 0 and record[at + 3 : at + 4] == b"\x09":
        length = max(struct.unpack_from(">i", record, at + 4)[0], 0)  # -1 is R's NA
        lines.append(record[at + 8 : at + 8 + length])
        at += 8 + length
    return lines


def novels(root):
    """Reads an R lazy-load database. Each record is a length (4 bytes) and a zlib stream, and holds one novel with one
    string per line."""
    data = (root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    books = []
    while data:
        stream = zlib.decompressobj()
        record = stream.decompress(data[4:])
        data = stream.unused_data
        lines = r_strings(record)
        if len(lines) > 1000:
            books.append(b"\n".join(lines).decode())
    return "\n\n\n".join(books) + "\n"


def sword(root, module):
    """Reads a compressed SWORD commentary in XML: *zs lists (offset, size, unpacked size) of the zlib blocks in *zz.
    Ends of paragraphs become blank lines."""
    marked_up = []
    for index in sorted((root / "usr/share/sword/modules/comments/zcom" / module).glob("*zs")):
        blocks = index.with_name(index.name[:-1] + "z").read_bytes()
        for offset, size, _ in struct.iter_unpack("<III", index.read_bytes()):
            if size:
                marked_up.append(zlib.decompress(blocks[offset : offset + size]).decode("utf-8", "replace"))
    text = re.sub(r"</(?:p|div|title|l|item)>|<(?:lb|br|div\b[^>]*eID)\b[^>]*>", "\n", "\n".join(marked_up), flags=re.I)
    text = html.unescape(re.sub(r"<[^>]+>", "", text)).replace("\r", "")
    text = re.sub(r"[ \t\u00a0]+", " ", text)
    return re.sub(r" ?\n\s*\n", "\n\n", text).strip() + "\n"


def jargon(root):
    return gzip.open(root / "usr/share/doc/jargon-text/jargon.txt.gz").read().decode("utf-8", "replace")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    texts = {
        "kjv": bible,
        "austen": novels,
        "spurgeon": lambda root: sword(root, "tdavid"),
        "henry": lambda root: sword(root, "mhcc"),
        "jargon": jargon,
    }
    for name, extract in texts.items():
        data = extract(root).encode()
        temporary = out / f"{name}.txt.part"
        temporary.write_bytes(data)
        temporary.rename(out / f"{name}.txt")
        print(f"{name}.txt: {len(data):,} bytes")


if __name__ == "__main__":
    main()
