"""Mistakes in configurations, one case of each kind: the exit status, and the key, value and remedy in the message.
tests/unit/config/mistakes_test.cpp has the table of all mistakes with their lines and columns."""
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
    """Returns the number of the line of TINY that contains `part`."""
    return TINY[:TINY.index(part)].count("\n") + 1


CASES = [
    # mistakes in the file
    config("mistyped key", changed("n_layer", "n_layers"), f'x.toml:{line_of("n_layer")}:1: model.n_layers', '"n_layer"'),
    config("mistyped key, check", changed("n_layer", "layers"), "model.layers: unknown key", verb=["config", "check"]),
    config("mistyped key, show", changed("n_layer", "layers"), "model.layers: unknown key", verb=["config", "show"]),
    config("mistyped key, dry run", changed("n_layer", "layers"), "model.layers: unknown key", verb=["train", "--dry-run"]),
    config("all mistakes at once", changed("n_head = 2", 'n_head = "two"').replace("steps = 4", "steps = -4"),
           "x.toml:3:10: model.n_head", "train.steps", "--set parallel.tenser=2", sets=["parallel.tenser=2"]),
    config("syntax", changed("seq_len = 16", "seq_len = = 16"), f'x.toml:{line_of("seq_len")}:11:'),
    config("a section without a name", "[=]\n", "x.toml:1:2:", "key"),
    config("a key of many parts", "a" + ".a" * 100_000 + " = 1\n", "x.toml:1:1:", "17 parts"),
    config("a table of many parts", TINY + "[a" + ".'a'" * 100_000 + "]\n", "17 parts"),
    config("a key of many parts after a text that ends with a quotation mark",
           'x = ["""a"""", """b"""]\na' + ".a" * 100_000 + " = 1\n", "x.toml:2:1:", "17 parts"),
    config("nested tables of many parts", "x = " + "{a" + ".a" * 500 + " = " + "{b" * 20, "17 parts"),
    config("duplicate key", TINY.replace("n_head = 2\n", "n_head = 2\nn_head = 4\n"), "x.toml:4:", "n_head"),
    config("binary for a configuration", b"\x7fELF\x02\x01\x01\x00\xff\xfe", "x.toml:1:"),
    config("configuration without an end", TINY, "/dev/zero", "64 MiB", args=["config", "check", "--config", "/dev/zero"]),
    config("number beyond 64 bits", changed("steps = 4", "steps = 99999999999999999999"), "99999999999999999999", "9223372036854775807"),
    config("list for a string", changed('tokenizer = "train"', 'tokenizer = ["train"]'), "data.tokenizer: expected a string"),
    config("heads do not divide", changed("d_model = 16", "d_model = 17"), "model.n_head", "d_model = 17", "16 or 18"),
    config("NUL in a folder's name", changed("[model]", '[run]\ndir = "a\\u0000b"\n[model]'), "run.dir", "control characters"),
    config("text without a tokenizer", changed('tokenizer = "train"\n', ""), '"text.txt"', "tokenizer"),
    config("vocabulary to train unknown", changed("vocab_size = 320\n", ""), "data.vocab_size"),
    # mistakes on the command line
    config("set of nothing", TINY, "--set ''", "section.key=value", sets=[""]),
    config("second word of a set", TINY, "--set model.n_layers=2", verb=["config", "check", "--set", "train.steps=4",
                                                                         "model.n_layers=2"]),
    config("quote that is not closed", TINY, '--set run.name="abc', "unclosed", sets=['run.name="abc']),
    config("list without quotes", TINY, "data.train", "unclosed", sets=["data.train=[text.txt, b.txt]"]),
    config("number beyond 64 bits, set", TINY, "--set run.seed=18446744073709551616", "too large",
           sets=["run.seed=18446744073709551616"]),
    config("number beyond integers", TINY, "train.steps", "1e+19", sets=["train.steps=1e19"]),
    config("rate that is no number", TINY, "optim.lr=nan", sets=["optim.lr=nan"]),
    config("threads beyond any machine", TINY, "run.threads=5000", "<= 4096", sets=["run.threads=5000"]),
    config("compute type that does not exist", TINY, "fp8", "auto, bf16, fp32, fp64", sets=["precision.compute=fp8"]),
    config("mesh of nothing", TINY, "parallel.mesh=[]", sets=["parallel.mesh=[]"]),
    config("name longer than a folder's may be", TINY, "run.name", "300 bytes", "255", sets=["run.name=" + 300 * "x"]),
    config("line end in a name", TINY, "run.name", "control characters", sets=["run.name=a\nb"]),
    config("run in no folder", TINY, "run.dir", "expected a folder", sets=['run.dir=""']),
    config("unknown name in braces", TINY, "{nmae}", "{name}", sets=["run.dir=runs/{nmae}"]),
    config("unknown braces of the checkpoints", TINY, "checkpoint.dir", "{step}", sets=["checkpoint.dir=saved/{name}/{step}"]),
    config("a strategy to choose without a profile", TINY, "hardware.profile", sets=["parallel.strategy=auto"]),
    config("batch that replicas cannot share", TINY, "micro_batch x data", sets=["parallel.data=64", "parallel.transport=threads"]),
    config("duration of a word", TINY, '"soon"', verb=["train", "--max-time", "soon"]),
    # mistakes with a different exit status
    config("two ranks asked of one", TINY, "parallel.tensor=2", "1 rank", sets=["parallel.tensor=2"], status=3),
    config("two replicas without mpirun", TINY, "data = 2", "mpirun -np 2", sets=["parallel.data=2"], status=3),
    config("memory that cannot be there", TINY, "the run needs", sets=["hardware.memory_limit=1e-6"], status=3,
           after=lambda place: None),
    config("resume that blames itself", TINY, "--resume nver", '"never"', verb=["train", "--resume", "nver"], status=5),
    config("path that is too long", TINY, "not found", sets=["checkpoint.resume=" + 300 * "d"], status=5),
    config("weights from nowhere", TINY, '"no/run"', sets=["model.init_from=no/run"], status=5),
]
