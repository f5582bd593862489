"""The command line itself."""


def usage(name, args, *expect, status=2, **more):
    return {"name": name, "args": args, "status": status, "expect": list(expect), **more}


CASES = [
    usage("no arguments", [], "no configuration", "trainer --config FILE"),
    usage("unknown verb", ["trian"], "trian", "--help"),
    usage("unknown option", ["train", "--confg", "x.toml"], "--confg", "--help"),
    usage("option without its value", ["--config"], "--config"),
    usage("missing config file", ["--config", "no.toml"], "no.toml", "No such file"),
    usage("config is a folder", ["--config", "."], "a folder; expected a configuration file"),
    usage("train without a config", ["train"], "no configuration"),
    usage("version for an unknown instruction set", ["--version"], "TRAINER_ISA=sse", "plain, avx2, avx512, avx512bf16 or amx",
          env={"TRAINER_ISA": "sse"}),
    usage("version with unknown products", ["--version"], "TRAINER_PRODUCTS=mkl: expected own or onednn",
          env={"TRAINER_PRODUCTS": "mkl"}),
    usage("max-steps of zero", ["train", "--config", "x.toml", "--max-steps", "0"],
          "--max-steps: 0 is not a whole number of at least 1"),
    usage("max-steps of a word", ["train", "--config", "x.toml", "--max-steps", "many"], "--max-steps", "many"),
    usage("plan", ["plan", "--config", "x.toml", "--cluster", "y"], "`plan` is not built yet in this version", "there are: train"),
    usage("bench of collectives alone", ["bench", "collectives"], "need ranks to talk to", "mpirun -np 2"),
    usage("bench of offload", ["bench", "offload"], "not built yet in this version"),
    usage("bench of nothing known", ["bench", "matmul"], "matmul", "gemm"),
    usage("bench of nothing", ["bench"], "what"),
    usage("bench repeated less than never", ["bench", "gemm", "--warmup", "-1"], "-1 is not a whole number of at least 0"),
    usage("bench repeated a bit", ["bench", "gemm", "--repeats", "1.5"], "1.5 is not a whole number of at least 1"),
    usage("checkpoint export", ["checkpoint", "export", "--format", "hf", "--checkpoint", "c", "--output", "o"],
          "`checkpoint export` is not built yet in this version"),
    usage("checkpoint import", ["checkpoint", "import", "--format", "hf", "--input", "i", "--output", "o"],
          "`checkpoint import` is not built yet in this version"),
    usage("checkpoint of nothing known", ["checkpoint", "repair", "--checkpoint", "c"], "repair", "inspect, verify"),
    usage("checkpoint inspect without a path", ["checkpoint", "inspect"], "needs --checkpoint PATH"),
    usage("config of nothing known", ["config", "print"], "`config print`: expected one of check, show, reference"),
    usage("config check without a file", ["config", "check"], "needs --config FILE"),
    usage("config check on no rank", ["config", "check", "--config", "x.toml", "--ranks", "0"], "--ranks"),
    usage("eval of nothing", ["eval"], "--checkpoint PATH", "--config FILE"),
    usage("generate without a checkpoint", ["generate", "--prompt", "x"], "--checkpoint"),
    usage("generate of zero tokens", ["generate", "--checkpoint", "c", "--prompt", "x", "--tokens", "0"], "--tokens"),
    usage("prompt and prompt file", ["generate", "--checkpoint", "c", "--prompt", "x", "--prompt-file", "y"], "--prompt"),
    usage("tokenize without output", ["tokenize", "--input", "x.txt"], "--output"),
    usage("tokenizer given and trained", ["tokenize", "--input", "x.txt", "--output", "o", "--tokenizer", "m",
                                          "--train-vocab", "500"], "--t"),
]
