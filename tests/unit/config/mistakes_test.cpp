// Recorded mistakes: what a user may write, and the line that must come back.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/load.h"

namespace trainer::config {
namespace {

struct Case {
  const char* name;
  std::string text;               // of f.toml
  std::vector<std::string> sets;  // --set
  std::string expected;           // a part of the message
  LoadOptions options = {.files = false};
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const LoadOptions kFiles{};
const LoadOptions kOneRank{.world = 1, .files = false};

const Case kCases[] = {
    // Names.
    {"mistyped_key",
     "[parallel]\ntenser = 2\n",
     {},
     "f.toml:2:1: parallel.tenser: unknown key; did you mean \"tensor\"?"},
    {"indented_key",
     "[model]\n   n_layers = 2\n",
     {},
     "f.toml:2:4: model.n_layers: unknown key; did you mean \"n_layer\"?"},
    {"dotted_key", "optim.bata1 = 0.9\n", {}, "f.toml:1:7: optim.bata1: unknown key; did you mean \"beta1\"?"},
    {"swapped_letters", "[train]\nsetps = 5\n", {}, "f.toml:2:1: train.setps: unknown key; did you mean \"steps\"?"},
    {"wrong_section",
     "[optim]\ndropout = 0.1\n",
     {},
     "f.toml:2:1: optim.dropout: unknown key; did you mean model.dropout?"},
    {"name_of_another_trainer",
     "[model]\nblock_size = 8\n",
     {},
     "model.block_size: unknown key; did you mean model.seq_len?"},
    {"unheard_of_key", "[log]\nwandb = true\n", {}, "f.toml:2:1: log.wandb: unknown key; [log] has interval, jsonl"},
    {"mistyped_section", "[modle]\nn_layer = 2\n", {}, "f.toml:1:2: modle: unknown section; did you mean \"model\"?"},
    {"unheard_of_section",
     "[wandb]\nproject = \"x\"\n",
     {},
     "f.toml:1:2: wandb: unknown section; there are run, model"},
    {"key_outside_sections", "lr = 1e-3\n", {}, "f.toml:1:1: lr: a key outside any section; did you mean optim.lr?"},
    {"section_given_a_value", "model = 3\n", {}, "f.toml:1:1: model: expected a section [model], found the integer 3"},
    {"list_of_sections", "[[model]]\nn_layer = 3\n", {}, "model: expected a section [model]"},
    // Syntax.
    {"duplicate_key",
     "[model]\nn_layer = 2\nn_layer = 3\n",
     {},
     "f.toml:3:11: cannot redefine existing integer 'n_layer'"},
    {"duplicate_section", "[model]\n[optim]\n[model]\n", {}, "f.toml:3:1: cannot redefine existing table 'model'"},
    {"unquoted_string", "[model]\narch = llama\n", {}, "f.toml:2:8: not a value; strings need quotes"},
    {"section_without_name", "[=]\n", {}, "f.toml:1:2: expected bare key starting character"},
    {"unquoted_word_like_true", "[data]\ntokenizer = train\n", {}, "f.toml:2:15: not a value; strings need quotes"},
    {"missing_value", "[model]\nn_layer =\n", {}, "f.toml:2:10:"},
    {"unclosed_list", "[data]\ntrain = [\"a\"\n", {}, "f.toml:2:14: encountered end-of-file"},
    {"letter_outside_quotes", "[model]\nn_layer = 2 \u00e9\n", {}, "f.toml:2:13: expected a comment or whitespace"},
    {"not_utf8", "[run]\nname = \"\xff\"\n", {}, "f.toml:2:8: encountered invalid utf-8"},
    {"python_bool", "[model]\nbias = True\n", {}, "f.toml:2:8:"},
    // Types.
    {"string_for_integer",
     "[model]\nn_layer = \"12\"\n",
     {},
     "f.toml:2:11: model.n_layer: expected an integer >= 1 and <= 10000, found the string \"12\""},
    {"fraction_for_integer", "[model]\nn_layer = 2.5\n", {}, "f.toml:2:11: model.n_layer: expected an integer"},
    {"bool_for_number", "[optim]\nlr = true\n", {}, "f.toml:2:6: optim.lr: expected a number > 0, found true"},
    {"integer_for_bool",
     "[log]\njsonl = 1\n",
     {},
     "f.toml:2:9: log.jsonl: expected true or false, found the integer 1"},
    {"integer_for_string",
     "[run]\nname = 7\n",
     {},
     "f.toml:2:8: run.name: expected a string in quotes, found the integer 7"},
    {"list_of_integers",
     "[data]\ntrain = [\"a\", 5]\n",
     {},
     "f.toml:2:9: data.train: expected a list of strings, found a list with the integer 5 at place 2"},
    {"infinite_number", "[optim]\nlr = inf\n", {}, "f.toml:2:6: optim.lr: expected a number > 0, found the number inf"},
    {"date",
     "[run]\nname = 1979-05-27\n",
     {},
     "f.toml:2:8: run.name: expected a string in quotes, found a date or time"},
    {"table_for_integer",
     "[train]\nsteps = { n = 5 }\n",
     {},
     "f.toml:2:9: train.steps: expected an integer >= 1 and <= 1000000000, found a table"},
    {"more_tokens_than_count",
     "[train]\ntokens = 0x7fffffffffffffff\n",
     {},
     "f.toml:2:10: train.tokens: expected an integer >= 1 and <= 1e+18, found the integer 9223372036854775807"},
    {"huge_integer", "[train]\nsteps = 99999999999999999999\n", {}, "f.toml:2:"},
    // Choices.
    {"mistyped_choice",
     "[model]\narch = \"lama\"\n",
     {},
     "f.toml:2:8: model.arch: expected one of gpt2, llama, found \"lama\"; did you mean \"llama\"?"},
    {"unknown_choice",
     "[optim]\nschedule = \"exponential\"\n",
     {},
     "optim.schedule: expected one of cosine, linear, wsd, constant, found \"exponential\""},
    {"tags_without_tables",
     "[parallel]\nstrategy = \"autoddl\"\n",
     {},
     "f.toml:2:12: parallel.strategy: no tags: give tables [[parallel.layer]], or let `trainer plan --emit` write "
     "them"},
    {"mistyped_strategy",
     "[parallel]\nstrategy = \"megatron\"\n",
     {},
     "f.toml:2:12: parallel.strategy: expected one of megatron-1d, optimus-2d, axonn-4d, autoddl, auto, found "
     "\"megatron\"; did you "
     "mean "
     "\"megatron-1d\"?"},
    {"nccl_on_cpus",
     "[run]\ndevice = \"cpu\"\n[parallel]\ntransport = \"nccl\"\n",
     {},
     "f.toml:4:13: parallel.transport: \"nccl\" carries tensors between GPUs, but device = \"cpu\""},
    {"device_unknown",
     "[run]\ndevice = \"gpu\"\n",
     {},
     "f.toml:2:10: run.device: expected one of auto, cpu, cuda, found \"gpu\""},
    {"zero_stage_unknown",
     "[parallel]\nzero_stage = 2\n",
     {},
     "f.toml:2:14: parallel.zero_stage: expected an integer >= 0 and <= 1, found the integer 2"},
    {"fault_unknown",
     "[debug]\ninject = [\"dely:1\"]\n",
     {},
     "f.toml:2:10: debug.inject: unknown fault \"dely:1\"; there is \"delay:SECONDS\""},
    {"mpi_without_mpirun",
     "[parallel]\ntransport = \"mpi\"\n",
     {},
     "f.toml:2:13: parallel.transport: \"mpi\" on a single rank that no mpirun started; start it with mpirun -np N",
     kOneRank},
    {"nccl_without_mpirun",
     "[parallel]\ntransport = \"nccl\"\n",
     {},
     "f.toml:2:13: parallel.transport: \"nccl\" on a single rank that no mpirun started; start it with mpirun -np N",
     kOneRank},
    {"fraction_above_one",
     "[offload]\noptimizer = \"interleaved\"\ngpu_fraction = \"3/2\"\n",
     {},
     "f.toml:3:16: offload.gpu_fraction: expected \"auto\", a fraction as in \"1/2\" or a number from 0 to 1, found "
     "3/2"},
    {"fraction_of_nothing_streamed",
     "[offload]\noptimizer = \"cpu\"\ngpu_fraction = 0.5\n",
     {},
     "f.toml:3:16: offload.gpu_fraction: gpu_fraction = 0.5 with optimizer = \"cpu\", which updates everything on the "
     "host; use \"interleaved\""},
    {"residents_without_a_place",
     "[offload]\noptimizer = \"cpu\"\nresident = 2\n",
     {},
     "f.toml:3:12: offload.resident: resident = 2 with optimizer = \"cpu\", which keeps nothing on the device; use "
     "\"interleaved\""},
    {"rounded_gradients_of_fp64",
     "[precision]\ncompute = \"fp64\"\n[offload]\ngrad_transport = \"bf16\"\n",
     {},
     "f.toml:4:18: offload.grad_transport: grad_transport = \"bf16\" with compute = \"fp64\", whose gradients are "
     "fp64"},
    {"emulated_rate_of_nothing",
     "[debug]\nemulate_device = \"host=0\"\n",
     {},
     "f.toml:2:18: debug.emulate_device: expected \"h100\", \"a100\", or rates above 0"},
    {"trace_of_one_step",
     "[log]\ntrace = 5\n",
     {},
     "f.toml:2:9: log.trace: expected the first and the last step, [first, last], or [] for no trace; found [5]"},
    {"trace_backwards", "[log]\ntrace = [5, 4]\n", {}, "f.toml:2:9: log.trace: expected the first and the last step"},
    {"trace_of_step_zero",
     "[log]\ntrace = [0, 4]\n",
     {},
     "f.toml:2:9: log.trace: expected a list of integers >= 1, found a list of 2 integers"},
    // Ranges.
    {"zero_layers",
     "[model]\nn_layer = 0\n",
     {},
     "f.toml:2:11: model.n_layer: expected an integer >= 1 and <= 10000, found the integer 0"},
    {"one_token_sequences", "[model]\nseq_len = 1\n", {}, "f.toml:2:11: model.seq_len: expected an integer >= 2"},
    {"dropout_of_everything",
     "[model]\ndropout = 1.0\n",
     {},
     "f.toml:2:11: model.dropout: expected a number >= 0 and < 1, found the number 1"},
    {"negative_learning_rate",
     "[optim]\nlr = -1e-3\n",
     {},
     "f.toml:2:6: optim.lr: expected a number > 0, found the number -0.001"},
    {"beta_of_one",
     "[optim]\nbeta2 = 1\n",
     {},
     "f.toml:2:9: optim.beta2: expected a number >= 0 and < 1, found the integer 1"},
    {"negative_seed", "[run]\nseed = -1\n", {}, "f.toml:2:8: run.seed: expected an integer >= 0, found the integer -1"},
    // Combinations.
    {"heads_do_not_divide",
     "[model]\nd_model = 100\nn_head = 12\n",
     {},
     "f.toml:3:10: model.n_head: d_model = 100 does not divide into n_head = 12 heads; d_model = 96 or 108 does"},
    {"odd_head_size",
     "[model]\narch = \"llama\"\nd_model = 36\nn_head = 4\n",
     {},
     "f.toml:4:10: model.n_head: head size d_model / n_head = 36 / 4 = 9 is odd"},
    {"kv_heads_do_not_divide",
     "[model]\nn_kv_head = 5\n",
     {},
     "f.toml:2:13: model.n_kv_head: n_head = 12 query heads cannot share n_kv_head = 5"},
    {"batch_does_not_divide",
     "[train]\nglobal_batch = 10\nmicro_batch = 4\n",
     {},
     "f.toml:2:16: train.global_batch: global_batch = 10 is not a multiple of micro_batch = 4; 12 is"},
    {"steps_and_tokens",
     "[train]\nsteps = 5\ntokens = 500\n",
     {},
     "f.toml:3:10: train.tokens: steps = 5 and tokens = 500 both give the length of the run; keep one"},
    {"two_validations",
     "[data]\nval = [\"v.txt\"]\nval_fraction = 0.1\n",
     {},
     "f.toml:3:16: data.val_fraction: val_fraction = 0.1 beside data.val"},
    {"rising_rate",
     "[optim]\nlr = 1e-4\nmin_lr = 1e-3\n",
     {},
     "f.toml:3:10: optim.min_lr: min_lr = 0.001 is above lr = 0.0001"},
    {"long_warmup",
     "[train]\nsteps = 50\n[optim]\nwarmup_steps = 100\n",
     {},
     "f.toml:4:16: optim.warmup_steps: a warm-up of 100 steps does not end within a run of 50 steps"},
    {"warmup_beyond_tokens",
     "[train]\ntokens = 100_000\n[optim]\nwarmup_steps = 100\n",
     {},
     "a warm-up of 100 steps does not end within a run of 4 steps"},
    {"overlapping_wsd",
     "[train]\nsteps = 100\n[optim]\nschedule = \"wsd\"\nwarmup_steps = 60\ndecay_fraction = 0.5\n",
     {},
     "f.toml:6:18: optim.decay_fraction: 60 steps of warm-up and a final decay over 50 of 100 steps"},
    {"tokenizer_without_size",
     "[data]\ntokenizer = \"train\"\n",
     {},
     "f.toml:2:13: data.tokenizer: \"train\" needs data.vocab_size"},
    {"slash_in_name", "[run]\nname = \"a/b\"\n", {}, "f.toml:2:8: run.name: \"a/b\" cannot be part of a folder's name"},
    {"world_too_small",
     "[parallel]\ntensor = 2\n",
     {},
     "f.toml:2:10: parallel.tensor: tensor = 2 x data = any does not make 1 rank; start it with mpirun -np 2",
     kOneRank},
    {"heads_over_ranks",
     "[parallel]\ntensor = 5\n",
     {},
     "f.toml:2:10: parallel.tensor: n_head = 12 heads do not divide over tensor = 5 ranks"},
    // Files.
    {"no_training_data", "[model]\nn_layer = 2\n", {}, "f.toml: data.train: missing; name the training files", kFiles},
    {"missing_file",
     "[data]\ntrain = [\"no/such.txt\", \"nor/*.txt\"]\ntokenizer = \"train\"\nvocab_size = 500\n",
     {},
     "f.toml:2:9: data.train: \"no/such.txt\", \"nor/*.txt\" not found",
     kFiles},
    {"missing_tokenizer",
     "[data]\ntrain = [\"/etc/passwd\"]\ntokenizer = \"trian\"\n",
     {},
     "f.toml:3:13: data.tokenizer: \"trian\" not found; expected \"train\", or the file or folder of a tokenizer; did "
     "you "
     "mean \"train\"?",
     kFiles},
    {"text_without_tokenizer",
     "[data]\ntrain = [\"/etc/passwd\"]\nformat = \"text\"\n",
     {},
     "f.toml:2:9: data.train: \"/etc/passwd\" is text and needs a tokenizer",
     kFiles},
    {"missing_checkpoint",
     "[checkpoint]\nresume = \"nver\"\n",
     {},
     "f.toml:2:10: checkpoint.resume: checkpoint \"nver\" not found; expected auto, must, never or a path; did you "
     "mean "
     "\"never\"?",
     kFiles},
    {"missing_initial_weights",
     "[model]\ninit_from = \"no/run\"\n",
     {},
     "f.toml:2:13: model.init_from: checkpoint \"no/run\" not found",
     kFiles},
    {"missing_tuning_table",
     "[hardware]\ngemm_tuning = \"no/table.json\"\n",
     {},
     "f.toml:2:15: hardware.gemm_tuning: \"no/table.json\" not found; `trainer bench gemm --write-tuning` makes it",
     kFiles},
    // --set.
    {"set_mistyped", "", {"parallel.tenser=2"}, "--set parallel.tenser=2: unknown key; did you mean \"tensor\"?"},
    {"set_without_value", "", {"train.steps"}, "--set train.steps: expected section.key=value"},
    {"set_empty_value", "", {"train.steps="}, "--set train.steps=: expected an integer >= 1 and <= 1000000000 after ="},
    {"set_without_section", "", {"steps=5"}, "--set steps=5: expected section.key=value"},
    {"set_unknown_section",
     "",
     {"trian.steps=5"},
     "--set trian.steps=5: unknown section \"trian\"; did you mean \"train\"?"},
    {"set_wrong_type",
     "",
     {"train.steps=many"},
     "--set train.steps=many: expected an integer >= 1 and <= 1000000000, found the string \"many\""},
    {"set_bad_choice",
     "",
     {"model.arch=gpt3"},
     "--set model.arch=gpt3: expected one of gpt2, llama, found \"gpt3\"; did you mean \"gpt2\"?"},
    {"set_two_values", "", {"train.steps=5\nx = 3"}, "expected an integer"},
    {"set_not_utf8", "", {"run.name=\xff"}, "bytes that are not UTF-8"},
    {"set_in_combination",
     "[model]\nd_model = 100\nn_head = 4\n",
     {"model.n_head=12"},
     "--set model.n_head=12: d_model = 100 does not divide into n_head = 12 heads"},
    {"timed_kernels",
     "[precision]\ndeterministic = false\n",
     {},
     "f.toml:2:17: precision.deterministic: false is not available"},
    {"report_without_metrics",
     "[log]\nreport = true\njsonl = false\n",
     {},
     "f.toml:3:9: log.jsonl: the report is made from metrics.jsonl"},
};

class Mistake : public testing::TestWithParam<Case> {};

TEST_P(Mistake, IsReportedWithItsPlaceAndAWayOut) {
  const Case& c = GetParam();
  try {
    load_text(c.text, "f.toml", c.sets, c.options);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(c.expected), std::string::npos)
        << "expected: " << c.expected << "\nfound:    " << e.what();
  }
}

TEST(Mistakes, AloneInAFileAreTheOnlyOnesReported) {
  for (const Case& c : kCases) {
    if (c.options.files) continue;  // those files lack data.train as well
    try {
      load_text(c.text, "f.toml", c.sets, c.options);
    } catch (const Error& e) {
      const std::string message = e.what();
      const bool two_lines = message.find('\n') != std::string::npos && c.name != std::string("set_two_values");
      EXPECT_FALSE(two_lines) << c.name << ": " << message;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, Mistake, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace trainer::config
