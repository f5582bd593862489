"""Mistakes with checkpoints and run folders: mostly exit status 5; existing files stay as they are."""
import subprocess
import time

from mistakes import limits


def damaged(change):
    """Prepares a finished run and lets `change` damage its newest step folder."""
    def prepare(place):
        step = place.tiny_run()
        change(step)
        return {"step": step}
    return prepare


def shard(step):
    return next(path for path in sorted(step.rglob("*")) if path.suffix == ".shard")


def flip_a_byte(step):
    path = shard(step)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def cut(step):
    path = shard(step)
    path.write_bytes(path.read_bytes()[:-100])


def replace_text(name, old, new):
    def change(step):
        text = (step / name).read_text()
        assert old in text, f"{name} lacks {old}"
        (step / name).write_text(text.replace(old, new, 1))
    return change


def whole(place):
    """Requires that the step before the damaged one still verifies."""
    steps = sorted((place.folder / "runs/tiny/checkpoints").glob("step-*"))
    assert steps, "no checkpoint is left"
    check = place.run(["checkpoint", "verify", "--checkpoint", str(steps[0])])
    assert check.returncode == 0, check.stdout + check.stderr


def wipe(step):
    path = shard(step)
    path.write_bytes(bytes(path.stat().st_size))


def nothing_stripped(place):
    left = [path.name for path in place.folder.iterdir() if path.name == "out" or path.name.startswith(".")]
    assert not left, f"left {left}"


def while_another_trains(place):
    """Starts a second process in the folder, which trains until the case ends."""
    place.tiny_run()
    place.other = subprocess.Popen([place.trainer, "--config", "tiny.toml", "--set", "train.steps=100000000", "--resume",
                                    "never", "--set", "run.dir=runs/busy"], cwd=place.folder, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, preexec_fn=limits(None))
    metrics = place.folder / "runs/busy/metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and '"step"' in metrics.read_text():
            return
        time.sleep(0.05)
    raise AssertionError("the other run did not start")


def foreign(place):
    (place.folder / "hf").mkdir()
    (place.folder / "hf/config.json").write_text("{}")


def other_survives(place):
    alive = place.other.poll() is None
    place.other.terminate()
    place.other.wait(timeout=60)
    assert alive, "the run that was there first ended"
    assert place.other.returncode == 75, f"its status is {place.other.returncode}"
    check = place.run(["checkpoint", "verify", "--checkpoint", "runs/busy"])
    assert check.returncode == 0, check.stderr


def checkpoint(name, args, prepare, *expect, status=5, **more):
    return {"name": name, "args": args, "status": status, "expect": list(expect), "prepare": prepare, **more}


TRAIN = ["--config", "tiny.toml", "--set", "train.steps=6", "--resume", "must"]
SAMPLE = ["generate", "--checkpoint", "{step}", "--prompt", "the", "--tokens", "4"]
STRIP = ["checkpoint", "strip", "--checkpoint", "{step}", "--output"]
NOTHING = damaged(lambda step: None)

CASES = [
    checkpoint("path that is not there", ["generate", "--checkpoint", "no/run", "--prompt", "x"], lambda place: None, "no/run"),
    checkpoint("folder without a checkpoint", ["checkpoint", "inspect", "--checkpoint", "."], lambda place: None, "no checkpoint"),
    checkpoint("a folder of Hugging Face", ["eval", "--checkpoint", "hf"], foreign, "hf", "`trainer checkpoint import`"),
    checkpoint("output inside a checkpoint", [*STRIP, "{step}/new/weights"], NOTHING, "{step}/new/weights: inside a checkpoint",
               after=whole),
    checkpoint("must resume, nothing there", ["--config", "tiny.toml", "--set", "run.dir=runs/new", "--resume", "must"], NOTHING,
               "no complete checkpoint"),
    checkpoint("sample from a configuration without a run",
               ["generate", "--config", "tiny.toml", "--set", "run.dir=runs/none", "--prompt", "x"], NOTHING, "runs/none/checkpoints"),
    checkpoint("flipped byte, training", TRAIN, damaged(flip_a_byte), "checksum", after=whole),
    checkpoint("flipped byte, verify", ["checkpoint", "verify", "--checkpoint", "{step}"], damaged(flip_a_byte), stdout="checksum",
               after=whole),
    checkpoint("truncated shard", SAMPLE, damaged(cut), "expected"),
    *[checkpoint(f"missing {what}", SAMPLE, damaged(lambda step, what=what: next(step.glob(what)).unlink()), what.strip("*"))
      for what in ("*.shard", "COMPLETE", "manifest.json")],
    checkpoint("edited manifest", SAMPLE, damaged(replace_text("manifest.json", "320", "321")), "manifest.json"),
    checkpoint("other model", [*TRAIN, "--set", "model.n_layer=2"], NOTHING, "n_layer", after=whole),
    checkpoint("run folder inside a file", ["--config", "tiny.toml", "--set", "run.dir=text.txt/run"], NOTHING, "text.txt",
               "Not a directory"),
    checkpoint("two runs in one folder", ["--config", "tiny.toml", "--set", "run.dir=runs/busy"], while_another_trains,
               "is training in this folder", status=2, after=other_survives),
    checkpoint("two runs with one folder of checkpoints",
               ["--config", "tiny.toml", "--set", "run.dir=runs/own", "--set", "checkpoint.dir=runs/busy/checkpoints"],
               while_another_trains, "in this folder", "checkpoint.dir", status=2, after=other_survives),
    # full disks
    checkpoint("full disk", ["--config", "tiny.toml", "--set", "model.d_model=64", "--set", "run.dir=runs/full"], NOTHING,
               "File too large", file_bytes=100_000, after=whole),
    *[checkpoint(f"{name} onto a full disk", args, NOTHING, "cannot write standard output", after=whole, redirect="> /dev/full")
      for name, args in (("sample", SAMPLE), ("evaluation as JSON", ["eval", "--checkpoint", "{step}", "--json"]),
                         ("inspection", ["checkpoint", "inspect", "--checkpoint", "{step}"]),
                         ("verification", ["checkpoint", "verify", "--checkpoint", "{step}"]),
                         ("plan", ["train", "--config", "tiny.toml", "--dry-run"]),
                         ("check", ["config", "check", "--config", "tiny.toml"]),
                         ("tokens' report", ["tokenize", "--input", "text.txt", "--output", "out", "--train-vocab", "320"]))],
    checkpoint("strip onto a full disk", [*STRIP, "out"], NOTHING, "File too large", file_bytes=10_000, after=nothing_stripped),
    checkpoint("strip into a folder that is there", [*STRIP, "runs"], NOTHING, "runs: already exists", after=whole),
    checkpoint("strip of damaged weights", [*STRIP, "out"], damaged(wipe), "checksum", after=nothing_stripped),
    checkpoint("prompt file that is not there", ["generate", "--checkpoint", "{step}", "--prompt-file", "no.txt"], NOTHING, "no.txt",
               status=2),
]
