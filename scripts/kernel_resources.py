#!/usr/bin/env python3
"""Prints the multiprocessor resources of each CUDA kernel, read from compiled objects; no GPU is needed.

  kernel_resources.py OBJECT.cu.o …                    prints the table
  kernel_resources.py --write RECORD OBJECT.cu.o …     also writes it to RECORD
  kernel_resources.py --update RECORD OBJECT.cu.o …    replaces the rows of these files in RECORD
  kernel_resources.py --check RECORD OBJECT.cu.o …     fails if a kernel spills more, or fewer of its blocks fit

Columns, for each architecture: registers per thread; bytes of stack per thread, to which registers are spilled; blocks
per multiprocessor, as limited by registers and static shared memory, if a block has the most threads that the kernel is
compiled for. Objects do not record dynamic shared memory: see the static_asserts next to those kernels.
"""

import argparse
import re
import struct
import subprocess
import sys

REGISTERS, THREADS = 65536, 2048  # per multiprocessor of sm_80 and sm_90
SHARED = {80: 164 << 10, 90: 228 << 10}  # bytes, including the 1 KiB that each block reserves
CUDA_MACHINE, INFO_SECTION = 190, 0x70000000  # ELF
FRAME_SIZE, REGISTER_COUNT, MAX_THREADS = 0x11, 0x2F, 0x05  # attributes in .nv.info; no header names them
SKIPPED = 77  # the exit status that ctest reports as skipped


class Unreadable(Exception):
    pass


class Cubin:
    """One architecture's code: an ELF file within an object."""

    def __init__(self, data):
        self.data = data
        (flags,) = struct.unpack_from("<I", data, 48)
        (headers,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        self.architecture = flags >> 8 & 0xFF
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, headers + i * size) for i in range(count)]
        self.sections = [(self.text(sections[names], s[0]), s) for s in sections]
        self.named = dict(self.sections)

    def text(self, table, offset):
        begin = table[4] + offset
        return self.data[begin : self.data.index(b"\0", begin)].decode()

    def bytes_of(self, section):
        return self.data[section[4] : section[4] + section[5]]

    def symbol(self, index):
        (name,) = struct.unpack_from("<I", self.data, self.named[".symtab"][4] + 24 * index)
        return self.text(self.named[".strtab"], name)

    def attributes(self, section):
        """Yields (attribute, value) of an .nv.info section."""
        data, at = self.bytes_of(section), 0
        while at < len(data):
            form, which, value = struct.unpack_from("<BBH", data, at)
            at += 4
            if form == 4:  # the value is a length
                yield which, data[at : at + value]
                at += value

    def compiler(self):
        found = re.search(rb"release [\d.]+, V[\d.]+", self.data)
        return found.group().decode() if found else "unknown"

    def kernels(self):
        """Returns {name: {registers, stack, threads, shared}}."""
        all_of = {}
        for which, value in self.attributes(self.named[".nv.info"]):
            if which in (FRAME_SIZE, REGISTER_COUNT):
                index, number = struct.unpack("<II", value)
                all_of.setdefault(self.symbol(index), {})[which] = number
        rows = {}
        for name, section in self.sections:
            if section[1] != INFO_SECTION or not name.startswith(".nv.info."):
                continue
            name = name[len(".nv.info.") :]
            threads = [struct.unpack("<III", v)[0] for a, v in self.attributes(section) if a == MAX_THREADS]
            known = all_of.get(name, {})
            if not threads or REGISTER_COUNT not in known or FRAME_SIZE not in known:
                raise Unreadable(f"{name}: launch bounds, registers or stack missing")
            shared = self.named.get(".nv.shared." + name)
            rows[name] = {
                "registers": known[REGISTER_COUNT],
                "stack": known[FRAME_SIZE],
                "threads": threads[0],
                "shared": shared[5] if shared else 0,
            }
        return rows


def cubins(path):
    with open(path, "rb") as file:
        data = file.read()
    at = data.find(b"\x7fELF", 1)
    while at > 0:
        if struct.unpack_from("<H", data, at + 18)[0] == CUDA_MACHINE:
            yield Cubin(data[at:])
        at = data.find(b"\x7fELF", at + 1)


def blocks_of(row, architecture):
    """Returns the blocks that fit a multiprocessor. Registers are allocated to a warp in units of 256."""
    warps = -(-row["threads"] // 32)
    registers = -(-row["registers"] * 32 // 256) * 256 * warps
    shared = row["shared"] + 1024
    return min(REGISTERS // registers, THREADS // (32 * warps), SHARED.get(architecture, SHARED[90]) // shared, 32)


def short_names(mangled):
    names = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    short = {}
    for name, text in zip(mangled, names.splitlines()):
        text = re.sub(r"\(anonymous namespace\)::|\b(trainer|ops|cuda)::|^void |\((int|bool)\)", "", text)
        short[name] = re.sub(r"\s+", " ", text[: text.rindex("(")] if "(" in text else text)
    return short


def table_of(objects):
    """Returns (compiler, {(file, kernel): {architecture: row}})."""
    table, compilers = {}, set()
    for path in objects:
        file = path.replace("\\", "/").split("/")[-1].removesuffix(".o")
        for cubin in cubins(path):
            compilers.add(cubin.compiler())
            rows = cubin.kernels()
            names = short_names(list(rows))
            for name, row in rows.items():
                row["blocks"] = blocks_of(row, cubin.architecture)
                table.setdefault((file, names[name]), {})[cubin.architecture] = row
    if not table:
        raise Unreadable("no CUDA kernels in these objects")
    return ", ".join(sorted(compilers)), table


NUMBERS = ("threads", "shared", "registers", "stack", "blocks")


def text_of(compiler, table):
    lines = [f"# By scripts/kernel_resources.py --write; compiler: {compiler}", "# file kernel | " + " | ".join(
        ["architecture " + " ".join(NUMBERS)])]
    for (file, kernel), rows in sorted(table.items()):
        cells = [f"sm_{a} " + " ".join(f"{row[n]}" for n in NUMBERS) for a, row in sorted(rows.items())]
        lines.append(" | ".join([f"{file} {kernel}"] + cells))
    return "\n".join(lines) + "\n"


def parsed(text):
    lines = text.splitlines()
    compiler = lines[0].partition("compiler: ")[2]
    table = {}
    for line in lines:
        if line.startswith("#") or not line:
            continue
        name, *cells = line.split(" | ")
        file, _, kernel = name.partition(" ")
        for cell in cells:
            architecture, *numbers = cell.split()
            row = dict(zip(NUMBERS, map(int, numbers), strict=True))
            table.setdefault((file, kernel), {})[int(architecture[3:])] = row
    return compiler, table


def update(record, compiler, table):
    with open(record, encoding="utf-8") as file:
        compiler_then, kept = parsed(file.read())
    if compiler != compiler_then:
        raise Unreadable(f"{record} is of another compiler ({compiler_then}; here {compiler}): use --write")
    files = {file for file, _ in table}
    table = {**{name: rows for name, rows in kept.items() if name[0] not in files}, **table}
    with open(record, "w", encoding="utf-8") as file:
        file.write(text_of(compiler, table))


def check(record, compiler, table):
    """Prints the kernels that became worse than in the record; returns the exit status."""
    with open(record, encoding="utf-8") as file:
        compiler_then, before = parsed(file.read())
    if compiler != compiler_then:
        print(f"skipped: {record} is from a different compiler ({compiler_then}; here {compiler})")
        return SKIPPED
    bad, changed = [], 0
    for name, rows in sorted(table.items()):
        for architecture, row in sorted(rows.items()):
            old = before.get(name, {}).get(architecture)
            changed += row != old
            where = f"{name[0]}: {name[1]}, sm_{architecture}"
            if row["stack"] > (old["stack"] if old else 0):
                bad.append(f"{where}: {row['stack']} bytes of stack, {old['stack'] if old else 0} before: registers spill")
            if old and row["blocks"] < old["blocks"]:
                bad.append(f"{where}: {row['blocks']} blocks fit a multiprocessor, {old['blocks']} before")
    changed += len(before.keys() - table.keys())
    print("\n".join(bad) or f"no kernel became worse; {len(table)} checked")
    if changed:
        print(f"{changed} differ from {record}: if that is intended, update it with --write")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="RECORD")
    parser.add_argument("--update", metavar="RECORD")
    parser.add_argument("--check", metavar="RECORD")
    parser.add_argument("objects", nargs="+")
    arguments = parser.parse_args()
    try:
        compiler, table = table_of(arguments.objects)
    except (Unreadable, OSError, struct.error, KeyError) as error:
        sys.exit(f"kernel_resources.py: {error!r}")
    if arguments.write:
        with open(arguments.write, "w", encoding="utf-8") as file:
            file.write(text_of(compiler, table))
    if arguments.update:
        try:
            update(arguments.update, compiler, table)
        except Unreadable as error:
            sys.exit(f"kernel_resources.py: {error}")
    if arguments.check:
        sys.exit(check(arguments.check, compiler, table))
    if not (arguments.write or arguments.update):
        print(text_of(compiler, table), end="")


if __name__ == "__main__":
    main()
