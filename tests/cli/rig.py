"""Code shared by tests of whole runs: each test has its own folder with ready-made tokens, and runs the program in it.

Each <name>_test.py is a unittest program; TRAINER names the program: TRAINER=build/trainer python3 resume_test.py
"""
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from mistakes import limits, tiny_text

TRAINER = pathlib.Path(os.environ.get("TRAINER", "build/trainer")).resolve()
TIMEOUT_SECONDS = 120
SLOW = "TRAINER_SLOW_TESTS" in os.environ  # ctest -C slow -L slow: every case of what is otherwise tried for some
SAVED_AFTER_SIGNAL = 75
# Containers run as root, and a test machine has fewer cores than ranks.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]

# Small, but with everything that resuming must restore: dropout, accumulation, warm-up, clipping, evaluation.
CONFIG = """[run]
dir = "run"
threads = 2
[model]
n_layer = 2
n_head = 2
d_model = 32
seq_len = 32
dropout = 0.1
[data]
train = ["tokens/tokens.bin"]
tokenizer = "tokens/tokenizer.model"
val_fraction = 0.1
[train]
steps = 8
global_batch = 4
micro_batch = 2
eval_interval = 3
eval_batches = 2
sample_prompt = ""
[optim]
warmup_steps = 3
grad_clip = 0.5
[checkpoint]
interval = 0
[precision]
compute = "fp32"
[log]
report = false
[hardware]
peak_tflops = 1.0
"""


def subcommands(text):
    """Returns the verbs or actions listed in this --help text."""
    groups = re.findall(r"^(?!Positionals)[A-Z].*:\n((?:  .*\n)+)", text, re.M)
    return re.findall(r"^  (\w+) ", "".join(groups), re.M)


# Sanitizers keep freed memory and add shadow memory, so a process's memory use means nothing.
counts_memory = unittest.skipIf(os.environ.get("SANITIZED"), "memory is not counted under sanitizers")


class Runs(unittest.TestCase):
    """The folder holds text.txt, tokens/ and config.toml; runs write to run/ by default."""

    launcher = []  # the command that starts the program: mpirun and its options

    @classmethod
    def setUpClass(cls):
        cls._shared = tempfile.TemporaryDirectory(prefix="trainer-runs-")
        cls.addClassCleanup(cls._shared.cleanup)
        shared = pathlib.Path(cls._shared.name) / "prepared"
        shared.mkdir()
        (shared / "text.txt").write_text(tiny_text())
        (shared / "config.toml").write_text(CONFIG)
        subprocess.run([TRAINER, "tokenize", "--input", "text.txt", "--output", "tokens", "--train-vocab", "320"],
                       cwd=shared, check=True, capture_output=True, timeout=TIMEOUT_SECONDS)

    def setUp(self):
        root = pathlib.Path(self._shared.name)
        self.folder = root / self._testMethodName
        shutil.copytree(root / "prepared", self.folder)

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the program

    def environment(self):
        """Returns the program's environment; sanitizers do not report leaks of MPI itself."""
        return {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"} if self.launcher else None

    def trainer(self, *args, status=0, file_bytes=None, stdout=False):
        """Runs the program to its end; returns its stderr, or its stdout."""
        # Ranks write stdout to files, because Open MPI 5.0's mpirun sometimes sends the beginning of stdout to stderr.
        past = ["sh", "-c", 'exec "$0" "$@" > stdout.$OMPI_COMM_WORLD_RANK'] if stdout and self.launcher else []
        for file in self.folder.glob("stdout.*"):
            file.unlink()
        result = subprocess.run([*self.launcher, *past, TRAINER, *args], cwd=self.folder, env=self.environment(),
                                capture_output=True, text=True,
                                errors="replace", timeout=TIMEOUT_SECONDS, preexec_fn=limits(file_bytes))
        self.assertEqual(result.returncode, status, " ".join(map(str, args)) + "\n" + result.stderr)
        self.assertNotIn("internal error", result.stderr)
        if past:
            return "".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("stdout.*")))
        return result.stdout if stdout else result.stderr

    @staticmethod
    def train_args(sets, options):
        args = ["--config", "config.toml"]
        for name, value in options.items():
            args += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
        for key_value in sets:
            args += ["--set", key_value]
        return args

    def train(self, *sets, status=0, file_bytes=None, **options):
        """Trains, for example train("run.dir=other", max_steps=4), and returns stderr."""
        return self.trainer(*self.train_args(sets, options), status=status, file_bytes=file_bytes)

    def start(self, *args):
        """Starts the program in the background; it is killed when the test ends."""
        process = subprocess.Popen([*self.launcher, TRAINER, *args], cwd=self.folder, env=self.environment(),
                                   stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=limits(None))

        def end():
            if process.poll() is None:
                process.kill()
            if process.stderr is not None and not process.stderr.closed:  # a failure may have read it already
                process.communicate()
            process.wait()
        self.addCleanup(end)
        return process

    def start_train(self, *sets, **options):
        return self.start(*self.train_args(sets, options))

    def ended(self, process, status):
        """Waits for the end of a started program; returns its stderr."""
        _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, status, stderr)
        return stderr

    def wait_until(self, condition, process, what, pause=0.005):
        """Returns the first true value of condition(); fails if the process ends before."""
        limit = time.monotonic() + TIMEOUT_SECONDS
        while not (value := condition()):
            if process.poll() is not None:
                self.fail(f"ended before {what}: {process.communicate()[1]}")
            self.assertLess(time.monotonic(), limit, what)
            time.sleep(pause)
        return value

    def stop(self, process, which=signal.SIGTERM, status=SAVED_AFTER_SIGNAL):
        process.send_signal(which)
        return self.ended(process, status)

    # --- files of a run

    def events(self, kind, run="run"):
        path = self.folder / run / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]  # the last line may be incomplete
        return [event for event in events if event["event"] == kind]

    def last_step(self, run="run"):
        steps = self.events("step", run)
        return steps[-1]["step"] if steps else 0

    def train_on(self, count, *sets, transport="threads", **options):
        """Trains on this number of ranks: threads of one process, or processes ("mpi")."""
        if transport == "threads":
            return self.train("parallel.transport=threads", *sets, **options)
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        self.launcher = [*MPIRUN, "-np", str(count)]
        try:
            return self.train(*sets, **options)
        finally:
            self.launcher = []

    def assert_follows(self, run, single, steps=8):
        """Requires that fp64 losses are those of one rank, apart from the order of sums."""
        got, _ = self.losses(run)
        expected, _ = self.losses(single)
        self.assertEqual(len(got), steps)
        for mine, theirs in zip(got, expected):
            self.assertAlmostEqual(mine[2], theirs[2], delta=1e-10 * theirs[2])

    def losses(self, run="run"):
        """Returns the values of each step and evaluation that must be bit-identical."""
        steps = [(e["step"], e["tokens"], e["loss"], e["grad_norm"], e["lr"], e["data_position"], e["skipped"])
                 for e in self.events("step", run)]
        return steps, [(e["step"], e["loss"], e["tokens"]) for e in self.events("eval", run)]

    def step_folders(self, run="run"):
        return sorted((self.folder / run / "checkpoints").glob("step-*"))

    def saved_steps(self, run="run"):
        return [int(folder.name[len("step-"):]) for folder in self.step_folders(run)]

    def step_folder(self, step, run="run"):
        return self.folder / run / "checkpoints" / f"step-{step:08}"

    def tensors(self, step, run="run"):
        """Returns the bytes of weights and optimizer moments."""
        shards = sorted(self.step_folder(step, run).glob("*.shard"))
        self.assertTrue(shards, f"no shard of step {step} in {run}")
        return b"".join(shard.read_bytes() for shard in shards)

    def assert_same_run(self, step, run, reference):
        """Expects equal bits: tensors of the step, losses up to it, and the manifest's state except references to other checkpoints."""
        self.assertTrue(self.tensors(step, run) == self.tensors(step, reference), f"tensors of {run} differ at step {step}")
        for mine, others in zip(self.losses(run), self.losses(reference)):
            self.assertEqual([each for each in mine if each[0] <= step], [each for each in others if each[0] <= step])
        states = [json.loads((self.step_folder(step, each) / "manifest.json").read_text())["state"]
                  for each in (run, reference)]
        for state in states:
            del state["proven_step"], state["origin"]
        self.assertEqual(*states)

    def assert_changes_no_bit(self, start, *more):
        """Expects equal bits of runs that start(*sets, transport=...) makes over MPI and with settings like these and `more`, each
        with one of two types."""
        settings = ("debug.overlap=false", "parallel.lanes=1", 'debug.inject=["delay:0.001"]', "train.recompute=full", *more)
        for compute, chosen in (("fp32", settings if SLOW else settings[0::2]), ("bf16", settings if SLOW else settings[1::2])):
            common = (f"precision.compute={compute}", "parallel.zero_stage=1")
            start(f"run.dir=first-{compute}", *common)
            for change, transport in (("parallel.lanes=3", "mpi"), *((setting, "threads") for setting in chosen)):
                run = f"{change.replace('.', '-').split('=')[0]}-{transport}-{compute}"
                start(f"run.dir={run}", change, *common, transport=transport)
                self.assert_same_run(8, run, f"first-{compute}")

    def assert_texts_and_evaluations_of_one_rank(self, common, eight, four, shared):
        """Expects the same of runs that eight(*sets) and four(*sets) make; several ranks evaluate the run `shared`."""
        sets = ("precision.compute=fp64", "train.sample_interval=4", "train.sample_prompt=the", "train.sample_tokens=20")
        self.train("run.dir=alone", *common, *sets)
        eight("run.dir=eight", *sets)
        four("run.dir=four", *sets)
        prompt = ("generate", "--prompt", "the", "--tokens", "30", "--checkpoint")
        expected = self.trainer(*prompt, "alone", stdout=True)
        loss = self.events("eval", "alone")[-1]["loss"]
        for run in ("eight", "four"):
            self.assertEqual(self.trainer(*prompt, run, stdout=True), expected)
            self.assertAlmostEqual(self.events("eval", run)[-1]["loss"], loss, delta=1e-10 * loss)
        for ranks in (2, 4):
            self.launcher = [*MPIRUN, "-np", str(ranks)]
            self.assertEqual(self.trainer(*prompt, "eight", stdout=True), expected)
            result = json.loads(self.trainer("eval", "--checkpoint", shared, "--json", "--batches", "2", stdout=True))
            self.assertAlmostEqual(result["loss"], loss, delta=1e-10 * loss)
        self.launcher = []

    def assert_refused_once(self, ranks, *sets, status, message):
        """Expects that one of the ranks prints the message."""
        self.launcher = [*MPIRUN, "-np", str(ranks)]
        stderr = self.train(*sets, status=status)
        self.launcher = []
        self.assertRegex(stderr, message)
        ours = [line for line in stderr.splitlines() if "trainer: " in line]  # mpirun prints messages, too
        self.assertEqual(len(ours), 1, stderr)

    def assert_whole(self, *step_folders):
        for folder in step_folders:
            self.trainer("checkpoint", "verify", "--checkpoint", folder)

    def assert_no_left_overs(self, run="run"):
        hidden = [path.name for path in (self.folder / run / "checkpoints").glob(".*")]
        self.assertEqual(hidden, [])


class Watched:
    """Counts how often a file is read, by Linux's inotify."""
    OPENED, CLOSED_AFTER_READING = 0x20, 0x10  # without the first, the system would merge several of the second

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        libc = ctypes.CDLL(None)
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0 or libc.inotify_add_watch(self.descriptor, os.fsencode(self.path), self.OPENED | self.CLOSED_AFTER_READING) < 0:
            raise unittest.SkipTest("no inotify")
        return self

    def reads(self):
        """Returns the number of reads since the last call."""
        try:
            records = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return 0
        masks = [mask for _, mask, _, _ in struct.iter_unpack("<iIII", records)]  # the records of a file have no names
        return sum(mask == self.CLOSED_AFTER_READING for mask in masks)

    def __exit__(self, *_):
        os.close(self.descriptor)


def children(pid):
    """Returns the process ids of a launcher's ranks, in order."""
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def main():
    unittest.main(verbosity=2)
