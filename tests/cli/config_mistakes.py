"""Configurations. The unit tests of src/config have many more; here is what matters through the program."""
from mistakes import TINY, tiny_text


def config(name, text, *expect, sets=(), status=2, verb=(), **more):
    args = [*verb, "--config", "x.toml"] + [part for each in sets for part in ("--set", each)]
    return {"name": name, "args": more.pop("args", args), "status": status, "expect": list(expect),
            "files": {"x.toml": text, "text.txt": tiny_text()}, "after": nothing_written, **more}


def nothing_written(place):
    assert not (place.folder / "runs").exists(), "a run folder was made for a configuration that cannot run"


def changed(old, new):
    assert TINY.count(old) == 1, old
    return TINY.replace(old, new)


def line_of(part):
    """The line of TINY that holds `part`."""
    return TINY[:TINY.index(part)].count("\n") + 1


CASES = [
    config("mistyped key", changed("n_layer", "n_layers"),
           f'x.toml:{line_of("n_layer")}:1: model.n_layers: unknown key; did you mean "n_layer"?'),
    config("unknown name in braces", changed("n_head = 2", "n_head = 2"), 'runs/{nmae}": {nmae} is no placeholder; there is {name} for run.name',
           sets=["run.dir=runs/{nmae}"]),
    config("unknown braces of the checkpoints", changed("n_head = 2", "n_head = 2"), "--set checkpoint.dir=", "{step} is no placeholder",
           sets=["checkpoint.dir=saved/{name}/{step}"]),
    config("all mistakes at once", changed("n_head = 2", 'n_head = "two"').replace("steps = 4", "steps = -4"),
           "x.toml:3:10: model.n_head: expected an integer", "train.steps: expected an integer >= 1",
           '--set parallel.tenser=2: unknown key; did you mean "tensor"?', sets=["parallel.tenser=2"]),
    config("two ranks asked of one", TINY, "--set parallel.tensor=2: tensor = 2 x data = any does not make 1 rank",
           sets=["parallel.tensor=2"], status=3),
    config("a strategy to choose without a profile", TINY, '"auto" chooses by hardware.profile, which is not given',
           sets=["parallel.strategy=auto"]),
    config("mesh of nothing", TINY, "parallel.mesh=[]: expected a list of integers >= 1 and <= 4096, found an empty list",
           sets=["parallel.mesh=[]"]),
    config("two replicas without mpirun", TINY, "tensor = 1 x data = 2 does not make 1 rank; start it with mpirun -np 2",
           sets=["parallel.data=2"], status=3),
    config("batch that replicas cannot share", TINY, "is not a multiple of micro_batch x data",
           sets=["parallel.data=64", "parallel.transport=threads"]),
    config("check reports and fails", changed("n_layer", "layers"), "model.layers: unknown key", verb=["config", "check"]),
    config("show reports and fails", changed("n_layer", "layers"), "model.layers: unknown key", verb=["config", "show"]),
    config("dry run reports and fails", changed("n_layer", "layers"), "model.layers: unknown key",
           verb=["train", "--dry-run"]),
    config("set of nothing", TINY, "--set '': expected section.key=value", sets=[""]),
    config("second word of a set", TINY, "--set model.n_layers=2: unknown key", verb=["config", "check", "--set", "train.steps=4",
                                                                                 "model.n_layers=2"]),
    config("quote that is not closed", TINY, """--set run.name="abc: "abc: a quote or bracket that is not closed""",
           sets=['run.name="abc']),
    config("list that is not closed", TINY, "a quote or bracket that is not closed", sets=['data.train=["text.txt"']),
    config("list without quotes", TINY, "a quote or bracket that is not closed, or text after it", sets=["data.train=[text.txt, b.txt]"]),
    config("number beyond 64 bits, set", TINY, "--set train.steps=99999999999999999999:", "is too large a number",
           sets=["train.steps=99999999999999999999"]),
    config("number beyond integers", TINY, "found the number 1e+19, which is too large", sets=["train.steps=1e19"]),
    config("line end in a name", TINY, 'run.name', '"a\\nb": names hold no control characters, found one at place 2',
           sets=["run.name=a\nb"]),
    config("NUL in a folder's name", changed("[model]", '[run]\ndir = "a\\u0000b"\n[model]'),
           "run.dir", "names hold no control characters"),
    config("escape sequence in a file's name", changed('"text.txt"', '"te\\u001bxt.txt"'), "data.train",
           "names hold no control characters"),
    config("line end in a checkpoint's folder", TINY, "names hold no control characters", sets=["checkpoint.dir=a\nb"]),
    config("run in no folder", TINY, "run.dir", "expected a folder, found an empty string", sets=['run.dir=""']),
    config("resume that blames itself", TINY, '--resume nver: checkpoint "nver" not found', 'did you mean "never"?',
           verb=["train", "--resume", "nver"], status=5),
    config("both lengths on the command line", TINY, "both give the length of the run",
           sets=["train.steps=4", "train.tokens=1000"]),
    config("list for a string", changed('tokenizer = "train"', 'tokenizer = ["train"]'), "data.tokenizer: expected a string in quotes"),
    config("binary for a configuration", b"\x7fELF\x02\x01\x01\x00\xff\xfe", "x.toml:1:"),
    config("configuration without an end", TINY, "/dev/zero: above 64 MiB; expected a configuration file",
           args=["config", "check", "--config", "/dev/zero"]),
    config("path that is too long", TINY, "not found; expected auto, must, never or a path", sets=["checkpoint.resume=" + 300 * "d"],
           status=5),
    config("weights from nowhere", TINY, 'checkpoint "no/run" not found', sets=["model.init_from=no/run"], status=5),
    config("memory that cannot be there", TINY, "the run needs", sets=["hardware.memory_limit=1e-6"], status=3,
           after=lambda place: None),
    config("duration of a word", TINY, '"soon" is not a duration', verb=["train", "--max-time", "soon"]),
]
