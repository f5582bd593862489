#include "config/keys.h"

#include <algorithm>

#include "base/format.h"
#include "config/declare.h"

namespace trainer::config {
namespace {

void declare_run(std::vector<Key>& keys) {
  Declare<Run> run(keys, "run", &Config::run);
  run.string("name", &Run::name, "", {.derived = "the configuration file's name without .toml"},
             "Name of the run, used in the name of its folder.");
  run.string("dir", &Run::dir, "runs/{name}", {},
             "Folder for everything the run writes, relative to the working directory. In this and all other paths "
             "{name} is replaced by run.name.");
  run.integer("seed", &Run::seed, 1337, {.range = at_least(0)},
              "Seed of the initial weights, the order of the data and dropout.");
  run.choice("device", &Run::device, DeviceChoice::automatic, {"auto", "cpu", "cuda"},
             "Device to compute on; auto: a GPU if there is one, else the CPU.");
  run.integer("threads", &Run::threads, 0, {.range = between(0, 4096), .unit = "threads per rank"},
              "CPU threads; 0: one per core that this process may use. Results are bitwise identical for any number.");
}

const StringList kFormats = {"auto", "text", "jsonl", "tokens"}, kDocuments = {"file", "line", "block", "chat"},
                 kWindows = {"auto", "stream", "best-fit"},
                 kChatFormats = {"auto",     "chatml", "qwen2",   "qwen2.5", "smollm2", "llama3",
                                 "llama3.1", "llama2", "mistral", "olmo2",   "plain"};

std::vector<Member<FileSet>> file_set_members() {
  return {member("name", Type::string, &FileSet::name),
          member("files", Type::list, &FileSet::files),
          choice_member("format", &FileSet::format, kFormats),
          member("text_key", Type::string, &FileSet::text_key),
          choice_member("document", &FileSet::document, kDocuments),
          member("strict", Type::boolean, &FileSet::strict),
          choice_member("packing", &FileSet::packing, kWindows)};
}

void declare_data(std::vector<Key>& keys) {
  Declare<Data> data(keys, "data", &Config::data);
  data.list("train", &Data::train, {.example = StringList{"data/austen.txt"}},
            "Training files, paths or globs, relative to the working directory: text (.txt, .text, .md), JSON lines "
            "(.jsonl, .ndjson), either also compressed (.txt.gz, .jsonl.zst), .parquet, or token files (.bin). "
            "Required unless "
            "there is a [[data.source]].");
  std::vector<Member<FileSet>> source = file_set_members();
  source.push_back(member("weight", Type::number, &FileSet::weight, kWeights));
  source.push_back(member("max_epochs", Type::integer, &FileSet::max_epochs, at_least(0)));
  data.tables(
      "source", &Data::source, source, {},
      "Tables [[data.source]] instead of train: a mixture of sources, each with a name and files. After every "
      "step, each source has its share of all samples so far, to within one sample. weight: set it for all "
      "sources, or for none to train on each source for the same number of epochs. max_epochs: reject a run "
      "that would train on the source for more epochs; 0: no limit. format, text_key, document, strict and "
      "packing default to those of [data]. --set data.source.NAME.weight=0.5 changes the table with that name.");
  data.tables(
      "phase", &Data::phase,
      {member("from_tokens", Type::integer, &DataPhase::from_tokens, between(1, 1e18)),
       weights_member("weights", &DataPhase::weights)},
      {},
      "Tables [[data.phase]], in chronological order: new weights for the sources, as in weights = { web = 0.4, math "
      "= 0.6 }, starting after from_tokens training tokens. Sources not listed get no samples. A resumed run may also "
      "change the weights; no window is repeated within an epoch of its source.");
  data.list("val", &Data::val, {},
            "Validation files, in the same formats; empty: val_fraction of the training tokens.");
  data.tables("validation", &Data::validation, file_set_members(), {},
              "Tables [[data.validation]] instead of val: validation sets, each with a name and files, evaluated "
              "separately. format, text_key, document, strict and packing default to those of [data]. --set "
              "data.validation.NAME.files=... changes the table with that name.");
  data.tables(
      "task", &Data::task,
      {member("name", Type::string, &Task::name), member("files", Type::list, &Task::files),
       member("shots", Type::integer, &Task::shots, between(0, 1000)),
       member("delimiter", Type::string, &Task::delimiter, std::string(" ")),
       choice_member("metric", &Task::metric, Metric::acc_norm, {std::begin(kMetricNames), std::end(kMetricNames)}),
       member("baseline", Type::number, &Task::baseline, fraction()),
       member("questions", Type::integer, &Task::questions, at_least(0))},
      {},
      "Tables [[data.task]]: questions that the model answers every train.task_interval steps, each table with "
      "a name and files: JSON lines of common benchmarks or llm.c's .bin. shots: other questions, with "
      "answers, before each. delimiter: between question and answer. metric: the answer is the most likely "
      "choice (acc), or that by its length in characters (acc_norm, the default), bytes or tokens; core: as "
      "in CORE. baseline: accuracy of guessing. questions: how many; 0: all.");
  data.choice("format", &Data::format, DataFormat::automatic, kFormats,
              "Format of the files; auto: determined by the file extension (case-insensitive); unknown extensions are "
              "rejected.");
  data.number("val_fraction", &Data::val_fraction, -1,
              {.range = fraction(), .derived = "0.05, or 0 with data.val or data.validation"},
              "Fraction of the training tokens, taken from their end, that is held out for validation; 0: none.");
  data.string("tokenizer", &Data::tokenizer, "", {.example = std::string("train")},
              "Tokenizer. \"train\": train one on the training files; else a file or its folder: SentencePiece's "
              "tokenizer.model, Hugging Face's tokenizer.json, GPT-2's merges.txt with vocab.json, or tiktoken's "
              "rank file. Empty: the data are token files.");
  data.integer(
      "vocab_size", &Data::vocab_size, 0,
      {.range = between(1, 16'777'216),
       .unit = "tokens",
       .derived = "the tokenizer's; required to train a tokenizer, and for token files that do not imply it",
       .example = int64_t{4096}},
      "Size of the vocabulary. May exceed the tokenizer's; the additional rows of the embedding are then unused.");
  data.choice(
      "bos", &Data::bos, Bos::automatic, {"auto", "on", "off"},
      "Begin each document and each prompt with the tokenizer's BOS token. auto: as recorded in the token files, the "
      "checkpoint (of a resumed run or model.init_from) or the tokenizer's files; off for a tokenizer trained by the "
      "run.");
  data.string("text_key", &Data::text_key, "text", {}, "Key of the text in each line's JSON object.");
  data.choice("document", &Data::document, Document::file, kDocuments,
              "Unit that is one document. Of a text file: the whole file, a line, or a block between blank lines. Of "
              "JSON lines, chat: each object is a conversation with messages, conversations, or prompt and completion; "
              "only the assistant's turns are trained.");
  data.choice("chat_format", &Data::chat_format, "auto", kChatFormats,
              "Format of conversations. auto: the one that the checkpoint or the tokenizer's chat template names, else "
              "plain. A tokenizer trained by the run gets the format's special tokens.");
  data.boolean(
      "strict", &Data::strict, false,
      "Reject invalid UTF-8, JSON lines whose text is null or missing, and empty files; false: replace invalid "
      "UTF-8, skip such lines and files, and count all of them.");
  data.choice(
      "packing", &Data::packing, Windows::automatic, kWindows,
      "Windows of seq_len + 1 tokens. stream: consecutive ones, which cut documents at their borders; best-fit: "
      "documents are put into windows whole where they fit, longer ones in parts; of a longer conversation, the "
      "beginning is used. auto: best-fit for conversations, else stream.");
  data.boolean("separate_documents", &Data::separate_documents, "true if a set is packed (data.packing), else false",
               "Documents that share a sequence do not see each other in attention, and learned positions restart "
               "with each, in training and validation. Token files without header and index need data.tokenizer, whose "
               "end-of-text token separates them.");
}

void declare_precision(std::vector<Key>& keys) {
  Declare<Precision> precision(keys, "precision", &Config::precision);
  precision.choice(
      "compute", &Precision::compute, Compute::automatic, {"auto", "bf16", "fp32", "fp64"},
      "Type of weights and activations in matmuls; auto: bf16 if the hardware computes it fast, else fp32; fp64: for "
      "reference results.");
  precision.boolean(
      "deterministic", &Precision::deterministic, true,
      "Repeated runs produce bitwise identical results. false: on a GPU, cuDNN may run the backward pass of "
      "attention with a faster kernel that adds in no fixed order; nothing else changes.");
}

void declare_checkpoint(std::vector<Key>& keys) {
  Declare<Checkpoint> checkpoint(keys, "checkpoint", &Config::checkpoint);
  checkpoint.string("dir", &Checkpoint::dir, "", {},
                    "Folder for checkpoints; empty: the folder \"checkpoints\" in run.dir.");
  checkpoint.integer("interval", &Checkpoint::interval, 500, {.range = at_least(0), .unit = "steps"},
                     "Steps between checkpoints; 0: only after the last step.");
  checkpoint.integer("keep", &Checkpoint::keep, 3, {.range = at_least(0), .unit = "checkpoints"},
                     "Number of newest checkpoints to keep; 0: all. The last checkpoint that was followed by a step "
                     "with a normal loss "
                     "is also kept.");
  checkpoint.integer("keep_every", &Checkpoint::keep_every, 0, {.range = at_least(0), .unit = "steps"},
                     "Checkpoints at multiples of this are never deleted; 0: off.");
  checkpoint.boolean(
      "keep_best", &Checkpoint::keep_best, true,
      "Also keep the checkpoint with the lowest validation loss, among those saved at an evaluated step.");
  checkpoint.string(
      "best", &Checkpoint::best, "", {},
      "Name of the validation set that keep_best uses and reports show first, or of a task, whose highest score "
      "keep_best then uses; empty: the first set.");
  checkpoint.boolean("async", &Checkpoint::async, false,
                     "Write checkpoints in the background, from a copy of weights and optimizer state in host memory, "
                     "instead of between steps. Set it if saving takes a noticeable share of the time.");
  checkpoint.string(
      "resume", &Checkpoint::resume, "auto", {},
      "Checkpoint to resume from. auto: the newest intact checkpoint, if there is one (corrupted checkpoints are "
      "skipped "
      "with a warning); must: the newest, or fail; verified: the newest that debug.replay_every confirmed, or fail; "
      "never: start from scratch; or the path of a checkpoint.");
  checkpoint.boolean("allow_other_data", &Checkpoint::allow_other_data, false,
                     "Resume even if the tokenizer or the data changed since the checkpoint was written.");
}

void declare_log(std::vector<Key>& keys) {
  Declare<Log> log(keys, "log", &Config::log);
  log.integer("interval", &Log::interval, 10, {.range = at_least(1), .unit = "steps"},
              "Steps between progress lines; metrics.jsonl contains every step.");
  log.integer("ranks_every", &Log::ranks_every, 50, {.range = at_least(0), .unit = "steps"},
              "Steps between comparisons of the ranks' own times, without waits for other ranks; a rank that is often "
              "slower than other ranks is named in a warning. 0: never.");
  log.boolean("jsonl", &Log::jsonl, true, "Write metrics.jsonl, the source of the report and of the final summary.");
  log.boolean("report", &Log::report, true, "Write report.html and report.json at the end; requires jsonl.");
  log.choice("progress", &Log::progress, ProgressMode::automatic, {"auto", "on", "off"},
             "Show a progress bar; auto: if standard error is a terminal.");
  log.boolean("tensorboard", &Log::tensorboard, false,
              "Write losses, speed, times and samples as TensorBoard event files (`tensorboard --logdir`).");
  log.integers("trace", &Log::trace, {}, {.range = at_least(1), .unit = "steps"},
               "Steps [first, last] to trace on every rank; the timeline is written to trace.json for Perfetto or "
               "chrome://tracing. Traced steps are slower: on a GPU each operator is synchronized, on a CPU "
               "optim.overlap has no effect. []: no trace.");
}

void declare_hardware(std::vector<Key>& keys) {
  Declare<Hardware> hardware(keys, "hardware", &Config::hardware);
  hardware.number("peak_tflops", &Hardware::peak_tflops, 0, {.range = at_least(0), .unit = "TFLOP/s"},
                  "Dense peak of one device in the compute type, for MFU; 0: from the data sheet of a GPU, or measured "
                  "during the run on a CPU.");
  hardware.number("memory_limit", &Hardware::memory_limit, 0, {.range = between(0, 1e6), .unit = "GiB per rank"},
                  "Memory that the run may use; 0: what is free when it starts.");
  hardware.string("gemm_tuning", &Hardware::gemm_tuning, "", {},
                  "On a GPU: file with the fastest algorithm for each GEMM, written by `trainer bench gemm "
                  "--write-tuning`; empty: the library's heuristic. A file from a different type of device or a "
                  "different library version is ignored with a warning.");
  hardware.string("profile", &Hardware::profile, "", {},
                  "Profile of this machine (`trainer bench all --write-profile`) or description of a cluster "
                  "(configs/clusters), used to predict step times and required by strategy \"auto\"; empty: no "
                  "prediction.");
  hardware.choice(
      "attention", &Hardware::attention, AttentionKernels::automatic, {"auto", "own", "cudnn"},
      "On a GPU: attention kernels in training and evaluation. auto: cudnn if the program was built with "
      "cuDNN 9 and finds it, else own; own: the built-in kernels; cudnn: cuDNN if it supports the case "
      "(bf16, no dropout, windows, documents or cache) with a workspace of at most 1/16 of the GPU's memory, else "
      "the built-in kernels.");
}

void declare_debug(std::vector<Key>& keys) {
  Declare<Debug> debug(keys, "debug", &Config::debug);
  debug.boolean("overlap", &Debug::overlap, true,
                "Overlap communication, and optimizer updates on the host, with compute; false: block immediately, to "
                "measure their cost. Results are bitwise identical.");
  debug.integer("check_replicas_every", &Debug::check_replicas_every, 0, {.range = at_least(0), .unit = "steps"},
                "Steps between checks that the weights of all replicas are bitwise equal, and that ranks with the same "
                "tokens have chosen the same experts; 0: never.");
  debug.integer(
      "replay_every", &Debug::replay_every, 0, {.range = at_least(0), .unit = "steps", .example = int64_t{500}},
      "Steps between checks that replicas compute the same: each computes the loss and gradients of its own and of the "
      "next replica's first micro-batch, which must agree in every bit. One replica repeats its own, which finds "
      "transient faults only. Not seen: updates, the sum of gradients over replicas, the data. 0: never.");
  debug.boolean("balanced_routing", &Debug::balanced_routing, false,
                "With experts: replace the router's choices so that all experts get equally many tokens, for "
                "benchmarks. Losses are then meaningless.");
  debug.choice("replay_action", &Debug::replay_action, ReplayAction::stop, {"stop", "warn"},
               "After a replay that differs: end the run without saving, or continue with a warning.");
  debug.list(
      "inject", &Debug::inject, {},
      "Faults to inject. \"delay:SECONDS\": delay each message by a random time of at most SECONDS. "
      "\"slow:RANK:SECONDS\": that rank's steps take longer. For `trainer verify`, whose checks must find them: "
      "\"gradient:RANK:TENSOR:ELEMENT:BIT\" and \"weight:RANK:TENSOR:ELEMENT:BIT\" flip a bit of that rank's copy, "
      "\"message:RANK:BYTE\" of what it sends to a group of ranks, \"link:RANK:BYTE\" to another pipeline stage, "
      "\"file:RANK:BYTE\" of its checkpoint file. Training ignores these, except that replays before a multiple of "
      "replay_every have the faults of gradients.");
  debug.string("emulate_device", &Debug::emulate_device, "", {},
               "With offload on a CPU: simulate each update on a device with these rates and log the simulated time. "
               "\"h100\", \"a100\", or "
               "\"to_device=55,to_host=55,host=3,device=100,memory=87.5,pageable=3.3\" (GB/s, and 1e9 parameters/s of "
               "an update). The result is a model, not a measurement.");
}

}  // namespace

bool Range::contains(double value) const {
  return (open_min ? value > min : value >= min) && (open_max ? value < max : value <= max);
}

std::string Range::text() const {
  std::string out;
  if (min != Range().min) out = format("{} {}", open_min ? ">" : ">=", min);
  if (max != Range().max) out += format("{}{} {}", out.empty() ? "" : " and ", open_max ? "<" : "<=", max);
  return out;
}

const std::vector<Section>& sections() {
  static const std::vector<Section> all = {
      {"run", "The run: its name, folder, seed and device."},
      {"model", "The model. The defaults are GPT-2 124M."},
      {"data", "The text and its tokenization."},
      {"train", "Length of the run, batches, evaluation."},
      {"optim", "The optimizer and the learning rate."},
      {"muon", "Muon, used with optim.name = \"muon\"."},
      {"sgd", "Gradient descent, used with optim.name = \"sgd\"."},
      {"precision", "Data types. Repeated runs produce bitwise identical results, with NCCL if it repeats itself."},
      {"parallel",
       "Parallelism. World size = stages x ranks of one (tensor; shards; q * q * d; x * y * z; product of axes) x "
       "data."},
      {"offload", "Optimizer state in host memory."},
      {"checkpoint", "Saving and resuming."},
      {"log", "Logs, metrics and the report."},
      {"hardware", "The hardware: peak, memory, profile and kernels."},
      {"debug", "Debugging of the program itself."},
  };
  return all;
}

const std::vector<Key>& keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> list;
    declare_run(list);
    declare_model(list);
    declare_data(list);
    declare_train(list);
    declare_optim(list);
    declare_muon(list);
    declare_sgd(list);
    declare_precision(list);
    declare_parallel(list);
    declare_offload(list);
    declare_checkpoint(list);
    declare_log(list);
    declare_hardware(list);
    declare_debug(list);
    return list;
  }();
  return all;
}

const Key* find_key(std::string_view section, std::string_view name) {
  const auto found =
      std::ranges::find_if(keys(), [&](const Key& key) { return key.section == section && key.name == name; });
  return found == keys().end() ? nullptr : &*found;
}

Config defaults() {
  Config config;
  for (const Key& key : keys()) key.set(config, key.initial);
  return config;
}

}  // namespace trainer::config
