"""Configurations. The unit tests of src/config have many more; here is what matters through the program."""
from mistakes import TINY, tiny_text


def config(name, text, *expect, sets=(), status=2, verb=(), **more):
    args = [*verb, "--config", "x.toml"] + [part for each in sets for part in ("--set", each)]
    return {"name": name, "args": args, "status": status, "expect": list(expect),
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
    config("unknown name in braces", changed("n_head = 2", "n_head = 2"), 'runs/{nmae}": {nmae} stands for nothing; there is {name} for run.name',
           sets=["run.dir=runs/{nmae}"]),
    config("unknown braces of the checkpoints", changed("n_head = 2", "n_head = 2"), "--set checkpoint.dir=", "{step} stands for nothing",
           sets=["checkpoint.dir=saved/{name}/{step}"]),
    config("mistyped section", changed("[train]", "[trian]"), 'trian: unknown section; did you mean "train"?'),
    config("all mistakes at once", changed("n_head = 2", 'n_head = "two"').replace("steps = 4", "steps = -4"),
           "x.toml:3:10: model.n_head: expected an integer", "train.steps: expected an integer >= 1",
           '--set parallel.tenser=2: unknown key; did you mean "tensor"?', sets=["parallel.tenser=2"]),
    config("syntax", changed("seq_len = 16", "seq_len = = 16"), f'x.toml:{line_of("seq_len")}:11:'),
    config("duplicate key", TINY.replace("n_head = 2\n", "n_head = 2\nn_head = 4\n"), "x.toml:4:", "redefine", "n_head"),
    config("unquoted string", changed('"train"\n', "train\n"), "strings need quotes"),
    config("string for a number", changed("d_model = 16", 'd_model = "16"'),
           "model.d_model: expected an integer >= 1", 'found the string "16"'),
    config("number for a bool", changed("report = false", "report = 0"), "log.report: expected true or false"),
    config("zero batch", changed("micro_batch = 2", "micro_batch = 0"), "train.micro_batch: expected an integer >= 1"),
    config("one token sequences", changed("seq_len = 16", "seq_len = 1"), "model.seq_len: expected an integer >= 2"),
    config("dropout of one", TINY, "--set model.dropout=1.0: expected a number >= 0 and < 1", sets=["model.dropout=1.0"]),
    config("heads do not divide", changed("d_model = 16", "d_model = 17"),
           "x.toml:3:10: model.n_head: d_model = 17 does not divide into n_head = 2 heads; d_model = 16 or 18 does"),
    config("odd head size", changed("d_model = 16", 'd_model = 18\narch = "llama"'), "18 / 2 = 9 is odd"),
    config("grouped heads", TINY, "--set model.n_kv_head=3: n_head = 2 query heads cannot share n_kv_head = 3",
           sets=["model.n_kv_head=3"]),
    config("batch does not divide", changed("global_batch = 2", "global_batch = 3"),
           "global_batch = 3 is not a multiple of micro_batch = 2; 4 is"),
    config("steps and tokens", changed("steps = 4", "steps = 4\ntokens = 1000"), "both give the length of the run"),
    config("warm-up beyond the end", TINY, "a warm-up of 9 steps does not end within a run of 4 steps",
           sets=["optim.warmup_steps=9"]),
    config("rate that rises", TINY, "min_lr = 1 is above lr", sets=["optim.min_lr=1"]),
    config("unknown schedule", TINY, "expected one of cosine, linear, wsd, constant", 'did you mean "cosine"?',
           sets=["optim.schedule=cosin"]),
    config("vocabulary to train unknown", changed("vocab_size = 320\n", ""), "needs data.vocab_size"),
    config("no data", changed('train = ["text.txt"]\n', ""), "x.toml: data.train: missing"),
    config("text without a tokenizer", changed('tokenizer = "train"\n', ""), '"text.txt" is text and needs a tokenizer'),
    config("two ranks asked of one", TINY, "--set parallel.tensor=2: tensor = 2 x data = any does not make 1 rank",
           sets=["parallel.tensor=2"], status=3),
    config("strategy to come", TINY, '"optimus-2d" is not built yet in this version; there is: megatron-1d',
           sets=["parallel.strategy=optimus-2d"]),
    config("offload to come", TINY, '"cpu" is not built yet in this version', sets=["offload.optimizer=cpu"]),
    config("ZeRO stage that does not exist", TINY, "expected an integer >= 0 and <= 1, found the integer 2", sets=["parallel.zero_stage=2"]),
    config("two replicas without mpirun", TINY, "tensor = 1 x data = 2 does not make 1 rank; start it with mpirun -np 2",
           sets=["parallel.data=2"], status=3),
    config("batch that replicas cannot share", TINY, "is not a multiple of micro_batch x data",
           sets=["parallel.data=64", "parallel.transport=threads"]),
    config("fault that cannot be injected", TINY, 'unknown fault "dely:1"; there is "delay:SECONDS"',
           sets=['debug.inject=["dely:1"]']),
    config("check reports and fails", changed("n_layer", "layers"), "model.layers: unknown key", verb=["config", "check"]),
    config("show reports and fails", changed("n_layer", "layers"), "model.layers: unknown key", verb=["config", "show"]),
    config("dry run reports and fails", changed("n_layer", "layers"), "model.layers: unknown key",
           verb=["train", "--dry-run"]),
    config("set without a value", TINY, "--set train.steps: expected section.key=value", sets=["train.steps"]),
    config("resume from nowhere", TINY, 'no such checkpoint: "nver"', 'did you mean "never"?',
           sets=["checkpoint.resume=nver"], status=5),
    config("weights from nowhere", TINY, 'no such checkpoint: "no/run"', sets=["model.init_from=no/run"], status=5),
    config("memory that cannot be there", TINY, "the run needs", sets=["hardware.memory_limit=1e-6"], status=3,
           after=lambda place: None),
    config("duration of a word", TINY, '"soon" is not a duration', verb=["train", "--max-time", "soon"]),
]
