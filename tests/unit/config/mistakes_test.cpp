// Recorded mistakes: the text that a user writes, the position that the message names, and parts of the message (what
// was found, what to do). tests/cli/config_mistakes.py runs one mistake of each family through the program.
#include <gtest/gtest.h>

#include "config/load.h"
#include "rigs/messages.h"

namespace trainer::config {
namespace {

struct Case {
  const char* text;   // content of f.toml
  const char* place;  // line, column and key; for --set, its argument
  std::vector<std::string> parts;
  LoadOptions options = {.files = false};
};

const LoadOptions kFiles{};
const LoadOptions kOneRank{.world = 1, .files = false};

const Case kCases[] = {
    // Names.
    {"[parallel]\ntenser = 2", "2:1: parallel.tenser: unknown key", {"did you mean \"tensor\""}},
    {"[model]\n   n_layers = 2", "2:4: model.n_layers: unknown key", {"did you mean \"n_layer\""}},
    {"optim.bata1 = 0.9", "1:7: optim.bata1: unknown key", {"did you mean \"beta1\""}},
    {"[train]\nsetps = 5", "2:1: train.setps: unknown key", {"did you mean \"steps\""}},
    {"[optim]\ndropout = 0.1", "2:1: optim.dropout: unknown key", {"did you mean model.dropout"}},
    {"[model]\nblock_size = 8", "2:1: model.block_size: unknown key", {"did you mean model.seq_len"}},
    {"[log]\nverbose = true", "2:1: log.verbose: unknown key", {"interval, ranks_every, jsonl"}},
    {"[log]\nwandb = true", "2:1: log.wandb: unknown key", {"log.tensorboard = true"}},
    {"[parallel]\nfsdp = true", "2:1: parallel.fsdp: unknown key", {"strategy = \"fsdp\"", "parallel.shards = N"}},
    {"[parallel]\ndata_parallel_replicate_degree = 2", "2:1: parallel.", {"HSDP", "shards = N", "parallel.data = D"}},
    {"[parallel]\ncontext_parallel_size = 2",
     "2:1: parallel.",
     {"Ulysses", "strategy = \"fsdp\"", "parallel.context = N"}},
    {"[parallel]\nexpert_parallel = 2", "2:1: parallel.", {"expert parallelism is not supported"}},
    {"[parallel]\ntensor_parallel_degree = 2", "2:1: parallel.", {"did you mean parallel.tensor"}},
    {"[parallel]\npipeline_model_parallel_size = 2", "2:1: parallel.", {"parallel.stages"}},
    {"[parallel]\npipeline_parallel_schedule = '1F1B'", "2:1: parallel.", {"parallel.pipeline_schedule"}},
    {"[parallel]\nnum_layers_per_virtual_pipeline_stage = 2", "2:1: parallel.", {"parallel.chunks"}},
    {"[parallel]\nchunks = 2", "2:10: parallel.chunks: ", {"needs several stages", "use chunks = 1"}},
    {"[parallel]\npipeline_schedule = 'zb-h1'",
     "2:21: parallel.pipeline_schedule: ",
     {"needs several stages", "use \"1f1b\""}},
    {"[parallel]\nstages = 2\npipeline_schedule = 'zb-h1'\nchunks = 2",
     "3:21: parallel.pipeline_schedule: ",
     {"of one chunk each", "chunks = 2", "use \"1f1b\""}},
    {"[parallel]\nstages = 16", "2:10: parallel.stages: ", {"12 layers allow at most 14 chunks", "stages <= 14"}},
    {"[parallel]\nstages = 4\nchunks = 8", "2:10: parallel.stages: ", {"at most 14 chunks", "use chunks <= 3"}},
    {"[parallel]\nstages = 2\nstage_layers = [6, 5, 1]",
     "3:16: parallel.stage_layers: ",
     {"3 numbers, expected 2", "use []"}},
    {"[parallel]\nstages = 2\nstage_layers = [6, 5]", "3:16: parallel.stage_layers: ", {"adds up to 11", "12"}},
    {"[parallel]\nstages = 3\nstage_layers = [6, 0, 6]", "3:16: parallel.stage_layers: ", {"chunk 1 has no layers"}},
    {"[parallel]\nstages = 3",
     "2:10: parallel.stages: ",
     {"stages = 3 x tensor = 1 requires a multiple of 3"},
     kOneRank},
    {"[parallel]\nstages = 4\nchunks = 2\ndata = 1\n[train]\nglobal_batch = 12\nmicro_batch = 2",
     "3:10: parallel.chunks: ",
     {"multiple of stages = 4", "found 6", "global_batch = 16"}},
    {"[parallel]\nstages = 2\nchunks = 2\n[train]\nglobal_batch = 6\nmicro_batch = 2",
     "3:10: parallel.chunks: ",
     {"found 3", "global_batch = 8"}},
    {"[train]\ngradient_accumulation_steps = 4", "2:1: train.", {"train.global_batch", "train.micro_batch"}},
    {"[modle]\nn_layer = 2", "1:2: modle: unknown section", {"did you mean \"model\""}},
    {"[wandb]\nproject = 'x'", "1:2: wandb: unknown section", {"run, model"}},
    {"lr = 1e-3", "1:1: lr: ", {"outside any section", "optim.lr"}},
    {"model = 3", "1:1: model: ", {"[model]", "integer 3"}},
    {"[[model]]\nn_layer = 3", "1:", {"model: ", "[model]"}},
    // Syntax.
    {"[model]\nn_layer = 2\nn_layer = 3", "3:11: ", {"redefine", "'n_layer'"}},
    {"[model]\n[optim]\n[model]", "3:1: ", {"redefine", "'model'"}},
    {"[model]\narch = llama", "2:8: ", {"quotes"}},
    {"[=]", "1:2: ", {"key"}},
    {"[data]\ntokenizer = train", "2:15: ", {"quotes"}},  // begins like true
    {"[model]\nn_layer =", "2:10: ", {}},
    {"[data]\ntrain = [\"a\"", "2:13: ", {"end-of-file"}},
    {"[model]\nn_layer = 2 \u00e9", "2:13: ", {"comment or whitespace"}},
    {"[run]\nname = \"\xff\"", "2:8: ", {"utf-8"}},
    {"[model]\nbias = True", "2:8: ", {}},
    // Types.
    {"[model]\nn_layer = '12'", "2:11: model.n_layer: ", {"integer >= 1 and <= 10000", "string \"12\""}},
    {"[model]\nn_layer = 2.5", "2:11: model.n_layer: ", {"integer"}},
    {"[optim]\nlr = true", "2:6: optim.lr: ", {"number > 0", "found true"}},
    {"[log]\njsonl = 1", "2:9: log.jsonl: ", {"true or false", "integer 1"}},
    {"[run]\nname = 7", "2:8: run.name: ", {"string in quotes", "integer 7"}},
    {"[data]\ntrain = ['a', 5]", "2:9: data.train: ", {"list of strings", "integer 5 at position 2"}},
    {"[optim]\nlr = inf", "2:6: optim.lr: ", {"number > 0", "number inf"}},
    {"[run]\nname = 1979-05-27", "2:8: run.name: ", {"string in quotes", "date or time"}},
    {"[train]\nsteps = { n = 5 }", "2:9: train.steps: ", {"integer >= 1 and <= 1000000000", "a table"}},
    {"[train]\ntokens = 0x7fffffffffffffff", "2:10: train.tokens: ", {"<= 1e+18", "integer 9223372036854775807"}},
    {"[train]\nsteps = 99999999999999999999", "2:", {}},
    // Choices.
    {"[model]\narch = 'lama'", "2:8: model.arch: ", {"gpt2, llama", "found \"lama\"", "did you mean \"llama\""}},
    {"[optim]\nschedule = 'exponential'", "2:12: optim.schedule: ", {"cosine, linear, wsd, constant", "exponential"}},
    {"[parallel]\nstrategy = 'autoddl'", "2:12: parallel.strategy: ", {"[[parallel.layer]]", "plan --emit"}},
    {"[parallel]\nstrategy = 'megatron'", "2:12: parallel.strategy: ", {"found \"megatron\"", "\"megatron-1d\""}},
    {"[run]\ndevice = 'cpu'\n[parallel]\ntransport = 'nccl'", "4:13: parallel.transport: ", {"device = \"cpu\""}},
    {"[run]\ndevice = 'gpu'", "2:10: run.device: ", {"auto, cpu, cuda", "found \"gpu\""}},
    {"[parallel]\nstrategy = 'zero-3'", "2:12: parallel.strategy: ", {"\"zero-3\"", "strategy = \"fsdp\""}},
    {"[parallel]\nzero_stage = 3",
     "2:14: parallel.zero_stage: ",
     {">= 0 and <= 1", "integer 3", "strategy = \"fsdp\""}},
    {"[debug]\ninject = ['dely:1']", "2:10: debug.inject: ", {"dely:1", "delay:SECONDS"}},
    {"[parallel]\ntransport = 'mpi'", "2:13: parallel.transport: ", {"\"mpi\"", "mpirun -np N"}, kOneRank},
    {"[parallel]\ntransport = 'nccl'", "2:13: parallel.transport: ", {"\"nccl\"", "mpirun -np N"}, kOneRank},
    {"[offload]\noptimizer = 'interleaved'\ngpu_fraction = '3/2'",
     "3:16: offload.gpu_fraction: ",
     {"\"auto\"", "1/2", "from 0 to 1", "found 3/2"}},
    {"[offload]\noptimizer = 'cpu'\ngpu_fraction = 0.5",
     "3:16: offload.gpu_fraction: ",
     {"gpu_fraction = 0.5", "optimizer = \"cpu\"", "use \"interleaved\""}},
    {"[offload]\noptimizer = 'cpu'\nresident = 2", "3:12: offload.resident: ", {"resident = 2", "use \"interleaved\""}},
    {"[precision]\ncompute = 'fp64'\n[offload]\ngrad_transport = 'bf16'",
     "4:18: offload.grad_transport: ",
     {"\"bf16\"", "compute = \"fp64\""}},
    {"[precision]\ncompute = 'fp64'\n[optim]\nmoments = 'bf16'",
     "4:11: optim.moments: ",
     {"\"bf16\"", "compute = \"fp64\""}},
    {"[optim]\nname = 'muon'\n[offload]\noptimizer = 'cpu'",
     "2:8: optim.name: ",
     {"\"muon\"", "offload.optimizer = \"none\""}},
    {"[optim]\nname = 'muon'\n[offload]\ngrad_transport = 'bf16'",
     "2:8: optim.name: ",
     {"\"muon\"", "offload.grad_transport = \"bf16\""}},
    {"[optim]\nname = 'muon'\n[muon]\ncompute = 'fp64'", "4:11: muon.compute: ", {"precision.compute = \"fp64\""}},
    {"[optim]\nname = 'lion'", "2:8: optim.name: ", {"adamw", "muon", "sgd"}},
    {"[optim]\nhead_lr = -1", "2:11: optim.head_lr: ", {"number >= 0", "-1"}},
    {"[optim]\nmup_base_width = 256",
     "2:18: optim.mup_base_width: ",
     {"256 cannot be used with model.tie_embeddings = true", "two learning rates", "set tie_embeddings = false"}},
    {"[optim]\nname = 'muon'\nmup_base_width = 256\n[model]\ntie_embeddings = false",
     "3:18: optim.mup_base_width: ",
     {"\"muon\"", "rules of their own", "name = \"adamw\""}},
    {"[muon]\nmomentum = 1.0", "2:12: muon.momentum: ", {">= 0 and < 1"}},
    {"[muon]\nsteps = 21", "2:9: muon.steps: ", {">= 1 and <= 20"}},
    {"[muon]\nlr_ratio = 0", "2:12: muon.lr_ratio: ", {"> 0"}},
    {"[debug]\nemulate_device = 'host=0'", "2:18: debug.emulate_device: ", {"h100", "a100", "above 0"}},
    {"[log]\ntrace = 5", "2:9: log.trace: ", {"[first, last]", "found [5]"}},
    {"[log]\ntrace = [5, 4]", "2:9: log.trace: ", {"first", "last"}},
    {"[log]\ntrace = [0, 4]", "2:9: log.trace: ", {"integers >= 1"}},
    // Ranges.
    {"[model]\nn_layer = 0", "2:11: model.n_layer: ", {">= 1 and <= 10000", "integer 0"}},
    {"[model]\nseq_len = 1", "2:11: model.seq_len: ", {"integer >= 2"}},
    {"[model]\ndropout = 1.0", "2:11: model.dropout: ", {">= 0 and < 1", "number 1"}},
    {"[optim]\nlr = -1e-3", "2:6: optim.lr: ", {"number > 0", "number -0.001"}},
    {"[optim]\nbeta2 = 1", "2:9: optim.beta2: ", {">= 0 and < 1", "integer 1"}},
    {"[run]\nseed = -1", "2:8: run.seed: ", {">= 0", "integer -1"}},
    // Combinations.
    {"[model]\nd_model = 100\nn_head = 12", "3:10: model.n_head: ", {"d_model = 100", "n_head = 12", "96 or 108"}},
    {"[model]\narch = 'llama'\nd_model = 36\nn_head = 4", "4:10: model.n_head: ", {"36 / 4 = 9", "odd"}},
    {"[model]\narch = 'llama'\nhead_dim = 7", "3:12: model.head_dim: ", {"7 is odd", "even"}},
    {"[model]\nrope_type = 'yarn'\nrope_factor = 4\nrope_original = 8",
     "2:13: model.rope_type: ",
     {"\"yarn\"", "arch = \"gpt2\"", "arch = \"llama\""}},
    {"[model]\narch = 'llama'\nrope_type = 'linear'",
     "3:13: model.rope_type: ",
     {"rope_factor is missing", "\"linear\""}},
    {"[model]\narch = 'llama'\nrope_type = 'yarn'\nrope_factor = 4",
     "3:13: model.rope_type: ",
     {"rope_original is missing", "\"yarn\""}},
    {"[model]\narch = 'llama'\nrope_type = 'llama3'\nrope_factor = 8\nrope_original = 64\nrope_low_freq = 4",
     "6:17: model.rope_low_freq: ",
     {"rope_low_freq = 4", "rope_high_freq = 4"}},
    {"[model]\narch = 'llama'\nrope_type = 'yarn'\nrope_factor = 8\nrope_original = 64\nrope_beta_slow = 33",
     "6:18: model.rope_beta_slow: ",
     {"33", "rope_beta_fast = 32"}},
    {"[model]\nnope_every = 4", "2:14: model.nope_every: ", {"4", "arch = \"gpt2\"", "arch = \"llama\""}},
    {"[model]\nn_layer = 4\n[train]\nrecompute_layers = 5", "4:20: train.recompute_layers: ", {"5", "n_layer = 4"}},
    {"[model]\nwindow_full_every = 4", "2:21: model.window_full_every: ", {"4", "set window"}},
    {"[model]\nrope_type = 'dynamic'", "2:13: model.rope_type: ", {"default, linear, llama3, yarn", "dynamic"}},
    {"[model]\nn_kv_head = 5", "2:13: model.n_kv_head: ", {"n_head = 12", "n_kv_head = 5"}},
    {"[train]\nglobal_batch = 10\nmicro_batch = 4",
     "2:16: train.global_batch: ",
     {"10", "micro_batch = 4", "global_batch = 12"}},
    {"[train]\nsteps = 5\ntokens = 500", "3:10: train.tokens: ", {"steps = 5", "tokens = 500", "keep one"}},
    {"[data]\nval = ['v.txt']\nval_fraction = 0.1", "3:16: data.val_fraction: ", {"0.1", "data.val"}},
    {"[[data.validation]]\nname = 'web'\nfiles = ['a.txt']\n[data]\nval_fraction = 0.1",
     "5:16: data.val_fraction: ",
     {"0.1", "data.validation"}},
    {"[[data.validation]]\nname = 'web'\nfile = ['a.txt']",
     "3:8: data.validation \"web\": ",
     {"unknown key \"file\"", "did you mean \"files\""}},
    {"[[data.validation]]\nname = 'web'\nfiles = ['a.txt', 5]",
     "3:9: data.validation \"web\": files: ",
     {"list of strings", "integer 5 at position 2"}},
    {"[[data.validation]]\nname = 'web'\nfiles = ['a.txt']\ndocument = 'page'",
     "4:12: data.validation \"web\": document: ",
     {"file, line, block", "\"page\""}},
    {"[[data.validation]]\nname = 'web'", "1:1: data.validation \"web\": ", {"files: missing"}},
    {"[[data.validation]]\nfiles = ['a.txt']", "1:1: data.validation 1: ", {"name: missing"}},
    {"[[data.validation]]\nname = 'Web 1'\nfiles = ['a.txt']",
     "1:1: data.validation \"Web 1\": ",
     {"lowercase letters"}},
    {"[[data.validation]]\nname = 'web'\nfiles = ['a.txt']\n[[data.validation]]\nname = 'web'\nfiles = ['b.txt']",
     "4:1: data.validation \"web\": ",
     {"duplicate name (lines 1 and 4)"}},
    {"[[data.validation]]\nname = 'web'\nfiles = ['a.txt']\n[checkpoint]\nbest = 'wbe'",
     "5:8: checkpoint.best: ",
     {"\"wbe\"", "did you mean \"web\""}},
    {"[checkpoint]\nbest = 'web'", "2:8: checkpoint.best: ", {"\"web\"", "[[data.validation]]"}},
    {"[[data.source]]\nname = 'web'\nfiles = ['a.txt']\n[data]\ntrain = ['b.txt']",
     "1:1: data.source: ",
     {"data.source and data.train", "remove one of them"}},
    {"[[data.source]]\nname = 'web'\nfiles = ['a.txt']\n[[data.source]]\nname = 'web'\nfiles = ['b.txt']",
     "4:1: data.source \"web\": ",
     {"duplicate name (lines 1 and 4)"}},
    {"[[data.source]]\nname = 'tokenizer'\nfiles = ['a.txt']",
     "1:1: data.source \"tokenizer\": ",
     {"use a different one"}},
    {"[[data.source]]\nname = 'web'\nfiles = ['a.txt']\nweight = 1\n[[data.source]]\nname = 'math'\nfiles = ['b.txt']",
     "5:1: data.source \"math\": ",
     {"weight: missing", "every source, or to none"}},
    {"[[data.source]]\nname = 'math'\nfiles = ['a.txt']\nweight = -1",
     "4:10: data.source \"math\": weight: ",
     {"a number >= 0", "the integer -1"}},
    {"[[data.source]]\nname = 'math'\nfiles = ['a.txt']\nweight = nan",
     "4:10: data.source \"math\": weight: ",
     {"a number >= 0", "nan"}},
    {"[[data.source]]\nname = 'math'\nfiles = ['a.txt']\nweight = 0", "1:1: data.source: ", {"every weight is 0"}},
    {"[[data.phase]]\nfrom_tokens = 5\nweights = { math = 1 }", "1:1: data.phase: ", {"[[data.source]]"}},
    {"[[data.source]]\nname = 'math'\nfiles = ['a.txt']\n[[data.phase]]\nfrom_tokens = 5\nweights = { maths = 1 }",
     "4:1: data.phase 1: ",
     {"weights: unknown source \"maths\"", "did you mean \"math\""}},
    {"[[data.source]]\nname = 'math'\nfiles = ['a.txt']\n[[data.phase]]\nfrom_tokens = 20\nweights = { math = 1 }\n"
     "[[data.phase]]\nfrom_tokens = 10\nweights = { math = 2 }",
     "7:1: data.phase 2: ",
     {"from_tokens = 10", "must be above that of phase 1 (20)"}},
    {"[[data.source]]\nname = 'math'\nfiles = ['a.txt']\n[[data.phase]]\nfrom_tokens = 20\nweights = { math = 'a' }",
     "6:11: data.phase 1: weights: ",
     {"a table of numbers >= 0", "a table"}},
    {"[[data.source]]\nname = 'math'\nfiles = ['a.txt']\n[[data.phase]]\nfrom_tokens = 20",
     "4:1: data.phase 1: ",
     {"weights: missing"}},
    {"[optim]\nlr = 1e-4\nmin_lr = 1e-3", "3:10: optim.min_lr: ", {"min_lr = 0.001", "lr = 0.0001"}},
    {"[train]\nsteps = 50\n[optim]\nwarmup_steps = 100", "4:16: optim.warmup_steps: ", {"100 steps", "50 steps"}},
    {"[data]\ntrain = ['/etc/passwd']\nformat = 'text'\ntokenizer = '/etc/passwd'\n[train]\ntokens = 100_000\n"
     "[optim]\nwarmup_steps = 100",
     "8:16: optim.warmup_steps: ",
     {"100 steps", "4 steps"},
     kFiles},
    {"[train]\nsteps = 100\n[optim]\nschedule = 'wsd'\nwarmup_steps = 60\ndecay_fraction = 0.5",
     "6:18: optim.decay_fraction: ",
     {"60 steps", "50 of 100 steps"}},
    {"[data]\ntokenizer = 'train'", "2:13: data.tokenizer: ", {"data.vocab_size"}},
    {"[run]\nname = 'a/b'", "2:8: run.name: ", {"a/b"}},
    {"[run]\nname = 'a/b'\ndir = 'x'\n[checkpoint]\ndir = '/c/{name}'", "2:8: run.name: ", {"a/b", "run.dir"}},
    {"[parallel]\ntensor = 2",
     "2:10: parallel.tensor: ",
     {"tensor = 2", "a multiple of 2 ranks", "mpirun -np 2"},
     kOneRank},
    {"[parallel]\ntensor = 5", "2:10: parallel.tensor: ", {"n_head = 12", "5 ranks along tensor"}},
    {"[log]\nreport = true\njsonl = false", "3:9: log.jsonl: ", {"report", "metrics.jsonl"}},
    // Files.
    {"[model]\nn_layer = 2", " data.train: ", {"missing"}, kFiles},
    {"[data]\ntrain = ['no/such.txt', 'nor/*.txt']\ntokenizer = 'train'\nvocab_size = 500",
     "2:9: data.train: ",
     {"no/such.txt", "nor/*.txt", "not found"},
     kFiles},
    {"[data]\ntrain = ['/etc/passwd']\ntokenizer = 'trian'",
     "3:13: data.tokenizer: ",
     {"\"trian\" not found", "file or folder", "did you mean \"train\""},
     kFiles},
    {"[data]\ntrain = ['/etc/passwd']\nformat = 'text'", "2:9: data.train: ", {"/etc/passwd", "tokenizer"}, kFiles},
    {"[data]\ntrain = ['/etc/passwd']\nformat = 'text'\ntokenizer = '/etc/passwd'\n"
     "[[data.validation]]\nname = 'web'\nfiles = ['no/such.txt']",
     "5:1: data.validation \"web\": ",
     {"no/such.txt", "not found"},
     kFiles},
    {"[data]\ntrain = ['/etc/passwd']\nformat = 'text'\ntokenizer = '/etc/passwd'\n"
     "[[data.validation]]\nname = 'web'\nfiles = ['-']",
     "5:1: data.validation \"web\": ",
     {"tokenize --input -"},
     kFiles},
    {"[data]\nformat = 'text'\ntokenizer = '/etc/passwd'\n[[data.source]]\nname = 'web'\nfiles = ['-']",
     "4:1: data.source \"web\": ",
     {"tokenize --input -"},
     kFiles},
    {"[checkpoint]\nresume = 'nver'",
     "2:10: checkpoint.resume: ",
     {"\"nver\" not found", "auto, must, verified, never or a path", "did you mean \"never\""},
     kFiles},
    {"[model]\ninit_from = 'no/run'", "2:13: model.init_from: ", {"no/run", "not found"}, kFiles},
    {"[hardware]\ngemm_tuning = 'no/table.json'",
     "2:15: hardware.gemm_tuning: ",
     {"no/table.json", "not found", "bench gemm --write-tuning"},
     kFiles},
    // --set.
    {"", "parallel.tenser=2", {"unknown key", "did you mean \"tensor\""}},
    {"", "train.steps", {"section.key=value"}},
    {"", "train.steps=", {"integer >= 1 and <= 1000000000"}},
    {"", "steps=5", {"section.key=value"}},
    {"", "trian.steps=5", {"unknown section \"trian\"", "did you mean \"train\""}},
    {"", "train.steps=many", {"integer >= 1 and <= 1000000000", "string \"many\""}},
    {"", "model.arch=gpt3", {"gpt2, llama", "found \"gpt3\"", "did you mean \"gpt2\""}},
    {"[[data.validation]]\nname = 'web'\nfiles = ['a.txt']",
     "data.validation.wbe.files=b.txt",
     {"unknown table", "did you mean \"web\""}},
    {"[[data.validation]]\nname = 'web'\nfiles = ['a.txt']",
     "data.validation.web.flies=b.txt",
     {"unknown key \"flies\"", "name, files, format"}},
    {"[[data.validation]]\nname = 'web'\nfiles = ['a.txt']", "data.validation.web.strict=maybe", {"true or false"}},
    {"[[data.source]]\nname = 'math'\nfiles = ['a.txt']\nweight = 1",
     "data.source.math.weight=-1",
     {"a number >= 0", "the integer -1"}},
    {"[model]\nd_model = 100\nn_head = 4", "model.n_head=12", {"d_model = 100", "n_head = 12"}},
};

TEST(Mistakes, AreReportedSeparatelyWithTheirPlaceAndARemedy) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.text + std::string("\n--set ") + c.place);
    const std::string place = c.place;
    const bool set = place.find(":") == std::string::npos;
    std::vector<std::string> sets;
    if (set) sets.push_back(place);
    const std::string message = tests::error_of([&] { load_text(c.text, "f.toml", sets, c.options); }).what();
    EXPECT_TRUE(message.find((set ? "--set " : "f.toml:") + place + (set ? ":" : "")) != std::string::npos) << message;
    tests::expect_parts(message, c.parts);
    if (!c.options.files) {  // otherwise the missing data.train may be reported, too
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

TEST(Mistakes, AreTooManySourcesOrPhases) {
  std::string sources, phases;
  for (int i = 0; i < 1001; ++i) sources += format("[[data.source]]\nname = 's{}'\nfiles = ['a.txt']\n", i);
  for (int i = 0; i < 65; ++i) phases += format("[[data.phase]]\nfrom_tokens = {}\nweights = {{ s0 = 1 }}\n", i + 1);
  const auto load = [](const std::string& text) { load_text(text, "f.toml", {}, {.files = false}); };
  tests::expect_error(Code::config, {"data.source: 1001 sources, but at most 1000"}, [&] { load(sources); });
  const std::string fewer = sources.substr(0, sources.rfind("[[data.source]]"));
  tests::expect_error(Code::config, {"data.phase: 65 phases, but at most 64"}, [&] { load(fewer + phases); });
  load(fewer + phases.substr(0, phases.rfind("[[data.phase]]")));
}

TEST(Mistakes, OfSetMayHaveAnyBytes) {
  const auto set = [](const char* text) { load_text("", "f.toml", {text}, {.files = false}); };
  tests::expect_error(Code::config, {"expected an integer"}, [&] { set("train.steps=5\nx = 3"); });
  tests::expect_error(Code::config, {"bytes that are not UTF-8"}, [&] { set("run.name=\xff"); });
}

}  // namespace
}  // namespace trainer::config
