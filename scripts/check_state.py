#!/usr/bin/env python3
"""Fails on mutable global state in src/: variables at namespace scope, and static or thread_local variables of classes and
functions, that are not const. The state of a run belongs to its Device or Exec.
"""
import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
ALLOWED = {  # file: (names, why)
    "base/file_io.cpp": ({"calls"}, "has no fields, only the virtual functions that tests replace"),
    "base/interruptible.cpp": ({"abandoned"}, "no thread of the process can be stopped from outside"),
    "base/log.cpp": ({"mutex", "this_rank", "current"}, "a process has one stderr; ranks may be its threads"),
    "device/pages.cpp": ({"kept"}, "set when a process ends whose memory MPI may still access"),
    "device/thread_pool.cpp": ({"inside_task"}, "belongs to the thread: whether it runs a task"),
    "ops/cpu/tiles.h": ({"tile_file"}, "belongs to the thread, as the registers of AMX that it emulates"),
    "ops/cuda/cudnn/attention.cpp": ({"cudnn_dlhandle", "mutex"}, "the front end of cuDNN finds the library there"),
    "run/signals.cpp": ({"stop_flag", "save_flag", "installed", "at_once"}, "signal handlers set them"),
}
TEXTS_AND_COMMENTS = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/', re.S)
DIRECTIVES = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
NAMESPACE = re.compile(r'(inline )?namespace\b|extern "" *$')
TYPE = re.compile(r"(template\b.*?)?\b(class|struct|union|enum)\b")
OTHER = re.compile(
    r"(template )?((using|typedef|namespace|friend|static_assert)\b|(class|struct|union|enum)( class)? \w+( :.*)?$)")


def statements(text):
    """Yields the kind of scope and the text of every statement and function head."""
    scopes, start = ["namespace"], 0
    for mark in re.finditer(r"[{};]", text):
        head = re.sub(r"\[\[.*?\]\]|\balignas\(.*?\)|\b(public|private|protected):", "", text[start : mark.start()])
        while head != (head := re.sub(r"<[^<>]*>", "", head)):
            pass
        head = " ".join(head.split())
        start = mark.end()
        if mark[0] == "}":
            scopes.pop()
            continue
        kind = "namespace" if NAMESPACE.match(head) else "type" if TYPE.match(head) and "=" not in head else "body"
        if mark[0] == ";" or kind == "body":
            yield scopes[-1], head
        if mark[0] == "{":
            scopes.append(kind)


def mutable_variable(scope, head):
    """Returns the name of the mutable variable with static storage that the statement defines, or None."""
    declared, sign = re.match(r"([^=([]*)(.?)", head).groups()
    declared = declared.strip()
    if scope != "namespace" and not re.match(r"((inline|const) )*(static|thread_local)\b", declared):
        return None
    if OTHER.match(declared) or "operator" in declared or (sign == "(" and scope != "body"):  # "(": a function
        return None
    if re.search(r"\bconstexpr\b" + (r"|[*] ?const\b" if "*" in declared else r"|\bconst\b"), declared):
        return None
    name = re.match(r"\w.*[ *&](\w+)$", declared)
    return name and name[1]


def main():
    problems, unused = [], {(file, name) for file, (names, _) in ALLOWED.items() for name in names}
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix not in {".cpp", ".h", ".cu", ".cuh"}:
            continue
        file = str(path.relative_to(SOURCE))
        text = TEXTS_AND_COMMENTS.sub(lambda m: "" if m[0][0] == "/" else '""', path.read_text())
        for scope, head in statements(DIRECTIVES.sub("", text)):
            name = mutable_variable(scope, head)
            if name and name not in ALLOWED.get(file, ((), ""))[0]:
                problems.append(f"src/{file}: {name} is mutable global state: {head}")
            unused.discard((file, name))
    problems += [f"src/{file} has no {name}: drop it from ALLOWED" for file, name in sorted(unused)]
    print("\n".join(problems) or "no mutable global state except what ALLOWED lists")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
