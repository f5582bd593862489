#!/usr/bin/env python3
"""Runs the program with recorded mistakes: each must end with the right exit status and a message that says what is
wrong, leave stdout empty, neither crash nor be reported as a bug, and lose nothing.

    mistakes.py --trainer build/trainer [--group usage|config|data|checkpoint] [--only PART_OF_A_NAME] [--verbose]

The cases are in the lists CASES of <group>_mistakes.py. Every case runs in its own empty folder.
"""
import argparse
import importlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

GROUPS = ["usage", "config", "data", "checkpoint"]
TIMEOUT_SECONDS = 120


def limits(file_bytes):
    """Returns a preexec_fn: no core files, SIGHUP as from a terminal, and writes beyond file_bytes fail."""
    def apply():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    return apply


class Place:
    """A case's folder, the program, and a finished tiny run to copy and damage."""

    def __init__(self, trainer, folder, shared):
        self.trainer, self.folder, self._shared = trainer, folder, shared

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def run(self, args, stdin="", file_bytes=None, env=None, redirect=""):
        program = ["sh", "-c", f'exec "$0" "$@" {redirect}', self.trainer] if redirect else [self.trainer]
        return subprocess.run([*program, *args], cwd=self.folder, input=stdin, capture_output=True, text=True,
                              errors="replace", timeout=TIMEOUT_SECONDS, preexec_fn=limits(file_bytes),
                              env={**os.environ, **(env or {})})

    def tiny_run(self):
        """Copies text.txt, tiny.toml and the finished runs/tiny into the folder; returns its newest step folder."""
        if not (self._shared / "done").exists():
            maker = Place(self.trainer, self._shared, self._shared)
            maker.write("text.txt", tiny_text())
            maker.write("tiny.toml", TINY)
            result = maker.run(["--config", "tiny.toml"])
            if result.returncode != 0:
                raise AssertionError("the run that cases start from failed:\n" + result.stderr)
            maker.write("done", "")
        shutil.copytree(self._shared, self.folder, dirs_exist_ok=True)
        return sorted((self.folder / "runs/tiny/checkpoints").glob("step-*"))[-1]


def tiny_text():
    words = "the cat sat on a mat and saw one small dog run past its old house by the sea".split()
    return "".join(" ".join(words[(i * 7 + j * j) % len(words)] for j in range(9)) + ".\n" for i in range(400))


TINY = """[model]
n_layer = 1
n_head = 2
d_model = 16
seq_len = 16
[data]
train = ["text.txt"]
tokenizer = "train"
vocab_size = 320
val_fraction = 0.1
[train]
steps = 4
global_batch = 2
micro_batch = 2
eval_batches = 2
[checkpoint]
interval = 2
[precision]
compute = "fp32"
[log]
report = false
"""


def problems_of(case, place):
    """Returns how the result differs from the expected one. A case is a dict:
    name; args; status; expect (parts of stderr); optional: files {name: text or bytes}, stdin, prepare(place) which may
    return a dict of placeholders for args and expect, env (variables to set), file_bytes (writes beyond it fail),
    redirect (in shell syntax: "> /dev/full"),
    after(place) which raises AssertionError if something was lost, stdout (a part of it; default: it is empty)."""
    for name, content in case.get("files", {}).items():
        place.write(name, content)
    values = {"here": str(place.folder)}
    if "prepare" in case:
        values.update(case["prepare"](place) or {})

    def filled(text):
        for key, value in values.items():
            text = text.replace("{" + key + "}", str(value))
        return text

    result = place.run([filled(arg) for arg in case["args"]], case.get("stdin", ""), case.get("file_bytes"),
                       case.get("env"), case.get("redirect", ""))
    problems = []
    if result.returncode < 0:
        problems.append(f"killed by signal {-result.returncode}")
    elif result.returncode != case["status"]:
        problems.append(f"exit status {result.returncode}, expected {case['status']}")
    problems += [f"stderr lacks: {filled(part)}" for part in case["expect"] if filled(part) not in result.stderr]
    if "internal error" in result.stderr:
        problems.append("reported as a bug of the program")
    if "stdout" in case:
        if case["stdout"] not in result.stdout:
            problems.append(f"stdout lacks: {case['stdout']}")
    elif result.stdout:
        problems.append(f"stdout is not empty: {result.stdout[:200]!r}")
    # os.walk ignores folders that vanish meanwhile: a different run may be saving here
    if any(name.startswith("core") for _, _, names in os.walk(place.folder) for name in names):
        problems.append("left a core file")
    if "after" in case:
        try:
            case["after"](place)
        except AssertionError as lost:
            problems.append(f"afterwards: {lost}")
    return problems, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--group", choices=GROUPS, action="append")
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true", help="print every message")
    options = parser.parse_args()
    trainer = str(pathlib.Path(options.trainer).resolve())
    failed = count = 0
    with tempfile.TemporaryDirectory(prefix="trainer-mistakes-") as root:
        shared = pathlib.Path(root) / "shared"
        shared.mkdir()
        for group in options.group or GROUPS:
            for case in importlib.import_module(f"{group}_mistakes").CASES:
                if options.only not in case["name"]:
                    continue
                count += 1
                folder = pathlib.Path(root) / f"{group}-{count}"
                folder.mkdir()
                problems, result = problems_of(case, Place(trainer, folder, shared))
                if problems:
                    failed += 1
                    print(f"FAILED {group}: {case['name']}: " + "; ".join(problems))
                if problems or options.verbose:
                    print(f"  {group}: {case['name']}: status {result.returncode}\n    "
                          + result.stderr.strip().replace("\n", "\n    "))
    print(f"{count - failed} of {count} recorded mistakes end as they should")
    return 1 if failed or count == 0 else 0


if __name__ == "__main__":
    os.environ.pop("TRAINER_ISA", None)
    sys.exit(main())
