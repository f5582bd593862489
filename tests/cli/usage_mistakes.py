"""The command line itself."""


def usage(name, args, *expect, status=2, **more):
    return {"name": name, "args": args, "status": status, "expect": list(expect), **more}


GENERATE = ["generate", "--checkpoint", "c", "--prompt", "x"]
TRAIN = ["train", "--config", "x.toml"]

CASES = [
    usage("no arguments", [], "no configuration", "trainer --config FILE"),
    usage("unknown verb", ["trian"], '"trian"', '"train"', "eval, generate, tokenize"),
    usage("configuration without --config behind a verb", ["train", "x.toml"], "x.toml", "--config FILE"),
    usage("word after the options", ["--config", "x.toml", "now"], "now", "--help"),
    usage("options before the verb", ["--set", "optim.lr=1", "model.n_layer=2", "train", "--config", "x.toml"],
          "`trainer train --set optim.lr=1 model.n_layer=2 …`"),
    usage("a file called like a verb", ["--config", "train"], "train: cannot be read"),
    usage("unknown option", ["generate", "--tokns", "3"], "--tokns", "`trainer generate --help`"),
    usage("option without its value", ["--config"], "--config"),
    usage("set without a word", [*TRAIN, "--set"], "--set"),
    usage("missing config file", ["--config", "no.toml"], "no.toml", "No such file", "`trainer config reference`"),
    usage("config is a folder", ["--config", "."], "a folder"),
    usage("configuration below a folder that is not there", ["--config", "~/no/such/x.toml"], "/no/such/x.toml"),
    usage("standard input without a configuration", ["--config", "-"], "standard input"),
    usage("version for an unknown instruction set", ["--version"], "TRAINER_ISA=sse", "plain, avx2, avx512", env={"TRAINER_ISA": "sse"}),
    # values of options
    usage("max-steps beyond counting", [*TRAIN, "--max-steps", "99999999999999999999"], "--max-steps", "9223372036854775807"),
    usage("max-steps of a word", [*TRAIN, "--max-steps", "many"], "--max-steps", "many"),
    usage("max-time of nothing", [*TRAIN, "--max-time", ""], "--max-time", "23h50m"),
    usage("resume of nothing", [*TRAIN, "--resume", ""], "--resume", "auto, must, never"),
    *[usage(f"generate, {option} {value}", [*GENERATE, option, value], option, *expect)
      for option, value, *expect in (("--seed", "-1", "at least 0"), ("--top-p", "1.5", "at most 1"), ("--temperature", "-1", "0 (greedy)"),
                                     ("--temperature", "hot"), ("--samples", "0", "at least 1"), ("--stop", ""), ("--tokens", "0"))],
    usage("evaluation format", ["eval", "--checkpoint", "c", "--format", "csv"], "--format"),
    usage("more benchmark threads than any machine starts", ["bench", "peak", "--threads", "100000000"], "--threads", "4096"),
    usage("shape of two sides", ["bench", "gemm", "--shape", "96,64"], "--shape", "M,K,N"),
    usage("config check on no rank", ["config", "check", "--config", "x.toml", "--ranks", "0"], "--ranks"),
    # what a verb needs, or has no use for
    *[usage(f"{verb[0]} of both", [*verb, "--checkpoint", "c", "--config", "x.toml"], "--checkpoint PATH", "--config FILE")
      for verb in (["eval"], ["generate", "--prompt", "x"], ["checkpoint", "inspect"])],
    *[usage(f"{verb[0]} of nothing", verb, *expect)
      for verb, *expect in ((["train"], "no configuration"), (["eval"], "--checkpoint PATH", "--config FILE"), (["bench"], "benchmark"),
                            (["generate", "--prompt", "x"], "--checkpoint PATH"), (["generate", "--checkpoint", "c"], "--prompt TEXT"),
                            (["config", "check"], "--config FILE"), (["tokenize", "--input", "x.txt"], "--output"),
                            (["plan", "--config", "x.toml"], "--cluster FILE", "--profile FILE"), (["bench", "all"], "--config FILE"),
                            (["bench", "collectives"], "mpirun -np 2"), (["checkpoint", "strip", "--checkpoint", "c"], "--output DIR"),
                            (["checkpoint", "export", "--checkpoint", "c", "--output", "o"], "--format hf"),
                            (["checkpoint", "import", "--format", "hf", "--output", "o"], "--input DIR"))],
    usage("plan for a cluster that is not there", ["plan", "--config", "x.toml", "--cluster", "no.toml"], "no.toml", "configs/clusters/"),
    usage("plan by a profile that is not there", ["plan", "--config", "x.toml", "--profile", "no.toml"], "no.toml", "--write-profile"),
    usage("bench of nothing known", ["bench", "matmul"], "matmul", "gemm"),
    usage("checkpoint of nearly a word", ["checkpoint", "verfy", "--checkpoint", "c"], '"verify"'),
    usage("config of nothing known", ["config", "print"], "print", "check, show, reference"),
    usage("shape of a peak", ["bench", "peak", "--shape", "1,2,3"], "--shape", "`bench gemm`"),
    usage("inspection with an output", ["checkpoint", "inspect", "--checkpoint", "c", "--output", "o"], "--output", "`inspect`"),
    usage("prompt and prompt file", [*GENERATE, "--prompt-file", "y"], "--prompt"),
    usage("tokenizer given and trained", ["tokenize", "--input", "x.txt", "--output", "o", "--tokenizer", "m", "--train-vocab", "500"],
          "--t"),
    # streams
    *[usage(f"{' '.join(args)} {redirect}", args, "standard output cannot be written", status=5, redirect=redirect)
      for args in (["train", "--help"], ["--version"], ["config", "reference"], ["bench", "peak", "--threads", "1"])
      for redirect in ("> /dev/full", ">&-")],
    usage("prompt file that is a folder", ["generate", "--checkpoint", "c", "--prompt-file", "."], "--prompt-file .", "Is a directory"),
    usage("prompt from a folder", ["generate", "--checkpoint", "c", "--prompt", "-"], "--prompt -", "Is a directory", redirect="< ."),
    usage("prompt from nowhere", ["generate", "--checkpoint", "c", "--prompt", "-"], "--prompt -", "Bad file descriptor",
          redirect="<&-"),
]
