#include "config/validate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/join.h"
#include "base/shape.h"
#include "base/units.h"
#include "config/checker.h"
#include "config/families.h"
#include "config/faults.h"
#include "config/resolve.h"
#include "config/suggest.h"
#include "config/text.h"

namespace trainer::config {
namespace {

/// Returns a "{word}" that remains in a path after {name} was replaced, or an empty string.
std::string place_holder(const std::string& path) {
  for (size_t open = path.find('{'); open != std::string::npos; open = path.find('{', open + 1)) {
    const size_t close =
        path.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", open + 1);
    if (close != std::string::npos && path[close] == '}') return path.substr(open, close + 1 - open);
  }
  return {};
}

/// Checks the folders that a run creates: a misspelled placeholder would become part of a folder's name.
void check_place_holders(const Config& config, Checker& checker) {
  const auto check = [&](const char* key, const std::string& path) {
    const std::string found = place_holder(path);
    checker.require(found.empty(), {key, "run.name"}, "\"{}\": {} is not a placeholder; use {{name}} for run.name{}",
                    path, found, did_you_mean(found, {"{name}"}));
  };
  check("run.dir", config.run.dir);
  check("checkpoint.dir", config.checkpoint.dir);
}

/// Checks names of folders and files.
void check_names(const Config& config, Checker& checker) {
  for (const char* path : {"run.name", "run.dir", "model.init_from", "data.train", "data.val", "data.tokenizer",
                           "checkpoint.dir", "checkpoint.resume", "hardware.gemm_tuning", "hardware.profile"}) {
    const std::string_view name = path;
    const Value value = find_key(name.substr(0, name.find('.')), name.substr(name.find('.') + 1))->get(config);
    const auto* one = std::get_if<std::string>(&value);
    for (const std::string& text : one != nullptr ? StringList{*one} : std::get<StringList>(value)) {
      const std::string mistake = bad_characters(text);
      checker.require(mistake.empty(), {path}, "{}", mistake);
    }
  }
}

void check_run(const Config& config, Checker& checker) {
  const Run& run = config.run;
  const auto is_in = [&](const std::string& path) { return path.find(run.name) != std::string::npos; };
  const bool is_in_a_path = is_in(run.dir) || is_in(config.checkpoint.dir);  // {name} was replaced
  checker.require(
      !is_in_a_path || (run.name.find('/') == std::string::npos && run.name != "." && run.name != ".."), {"run.name"},
      "\"{}\" cannot be part of a folder's name; choose a different name, or set run.dir to a folder without it",
      run.name);
  checker.require(!is_in_a_path || run.name.size() <= 255, {"run.name"},
                  "the name has {} bytes, but a folder's name has at most 255; shorten it", run.name.size());
  checker.require(!run.dir.empty(), {"run.dir"}, "expected a folder, found an empty string");
}

void check_rope(const Model& m, Checker& checker) {
  if (m.rope_type == RopeType::plain) return;
  const char* const type = kRopeNames[static_cast<size_t>(m.rope_type)];
  const bool llama3 = m.rope_type == RopeType::llama3, yarn = m.rope_type == RopeType::yarn;
  checker.require(has_rope_positions(m), {"model.rope_type", "model.arch"},
                  "\"{}\" scales RoPE, but arch = \"{}\" has learned positions; remove it, or use arch = \"llama\"",
                  type, family_of(m).name);
  checker.require(
      m.rope_factor > 0, {"model.rope_factor", "model.rope_type"},
      "rope_factor is missing; rope_type = \"{}\" requires the factor by which the context grows, as in 8.0", type);
  checker.require(m.rope_original > 0 || !(llama3 || yarn), {"model.rope_original", "model.rope_type"},
                  "rope_original is missing; rope_type = \"{}\" requires the context length before scaling, as in 8192",
                  type);
  checker.require(!llama3 || m.rope_low_freq < m.rope_high_freq, {"model.rope_low_freq", "model.rope_high_freq"},
                  "rope_low_freq = {} must be below rope_high_freq = {}", m.rope_low_freq, m.rope_high_freq);
  checker.require(!yarn || m.rope_beta_slow <= m.rope_beta_fast, {"model.rope_beta_slow", "model.rope_beta_fast"},
                  "rope_beta_slow = {} must be at most rope_beta_fast = {}", m.rope_beta_slow, m.rope_beta_fast);
  checker.require(!yarn || m.rope_theta > 1, {"model.rope_theta", "model.rope_type"},
                  "rope_type = \"yarn\" requires a base above 1, found {}", m.rope_theta);
}

void check_model(const Model& m, Checker& checker) {
  const bool heads_fit = m.head_dim > 0 || m.d_model % m.n_head == 0;
  checker.require(heads_fit, {"model.n_head", "model.d_model"},
                  "d_model = {} is not divisible by n_head = {}; use d_model = {} or {}, or set head_dim", m.d_model,
                  m.n_head, std::max<int64_t>(1, m.d_model / m.n_head) * m.n_head,
                  (m.d_model / m.n_head + 1) * m.n_head);
  checker.require(m.head_dim == 0 || !has_rope_positions(m) || m.head_dim % 2 == 0, {"model.head_dim", "model.arch"},
                  "head_dim = {} is odd; RoPE rotates pairs of features, so it must be even", m.head_dim);
  checker.require(
      !heads_fit || m.head_dim > 0 || !has_rope_positions(m) || (m.d_model / m.n_head) % 2 == 0,
      {"model.n_head", "model.d_model", "model.arch"},
      "head size d_model / n_head = {} / {} = {} is odd; RoPE rotates pairs of features, so it must be even", m.d_model,
      m.n_head, m.d_model / m.n_head);
  checker.require(
      m.n_head % m.n_kv_head == 0, {"model.n_kv_head", "model.n_head"},
      "n_head = {} query heads cannot share n_kv_head = {} key and value heads evenly; n_kv_head must divide "
      "n_head",
      m.n_head, m.n_kv_head);
  checker.require(m.max_positions == 0 || m.max_positions >= m.seq_len, {"model.max_positions", "model.seq_len"},
                  "max_positions = {} is below seq_len = {}; raise it, or remove it", m.max_positions, m.seq_len);
  checker.require(m.window_full_every == 0 || m.window > 0, {"model.window_full_every", "model.window"},
                  "window_full_every = {} has no effect without a window; set window, or remove it",
                  m.window_full_every);
  checker.require(m.window_rope_theta == 0 || m.window > 0, {"model.window_rope_theta", "model.window"},
                  "window_rope_theta = {} has no effect without a window; set window, or remove it",
                  m.window_rope_theta);
  checker.require(m.window_rope_theta == 0 || m.window_rope_theta >= 1, {"model.window_rope_theta"},
                  "{} is below 1; use a base of at least 1, or 0 for one RoPE in all blocks", m.window_rope_theta);
  checker.require(m.window_rope_theta == 0 || has_rope_positions(m), {"model.window_rope_theta", "model.arch"},
                  "{} is a base of RoPE, but arch = \"{}\" has learned positions; remove it", m.window_rope_theta,
                  family_of(m).name);
  checker.require(
      nope_interval(m) == 0 || has_rope_positions(m), {"model.nope_every", "model.arch"},
      "nope_every = {} leaves out RoPE, but arch = \"{}\" has learned positions; remove it, or use arch = \"llama\"",
      nope_interval(m), family_of(m).name);
  checker.require(!has_parallel_residual(m) || !has_norms_after(m), {"model.parallel_residual", "model.norm_place"},
                  "parallel blocks have a norm before each branch; use norm_place = \"pre\"");
  checker.require(has_gated_mlp(m) || activation_of(m) != Activation::silu, {"model.activation", "model.arch"},
                  "only gated MLPs use silu, and those of arch = \"{}\" have no gate; use gelu or gelu_erf",
                  family_of(m).name);
  checker.require(m.rotary_dim == 0 || has_rope_positions(m), {"model.rotary_dim", "model.arch"},
                  "rotary_dim = {} is for RoPE, but arch = \"{}\" has learned positions; remove it", m.rotary_dim,
                  family_of(m).name);
  checker.require(m.rotary_dim % 2 == 0, {"model.rotary_dim"},
                  "rotary_dim = {} is odd; RoPE rotates pairs of features, so it must be even", m.rotary_dim);
  checker.require(!heads_fit || m.rotary_dim <= head_size(m), {"model.rotary_dim", "model.head_dim"},
                  "rotary_dim = {} is more than a head has; use at most head_dim = {}", m.rotary_dim, head_size(m));
  check_rope(m, checker);
}

/// `plans`: the planner chooses a micro-batch that is not given.
void check_batches(const Config& config, bool plans, Checker& checker) {
  const Train& train = config.train;
  const bool chosen = (plans || is_automatic(config)) && !is_given(config, "train.micro_batch");
  checker.require(train.steps == 0 || train.tokens == 0, {"train.tokens", "train.steps"},
                  "steps = {} and tokens = {} both set the length of the run; keep one", train.steps, train.tokens);
  checker.require(
      chosen || train.global_batch % train.micro_batch == 0, {"train.global_batch", "train.micro_batch"},
      "global_batch = {} is not a multiple of micro_batch = {}; change one of them, such as global_batch = {}",
      train.global_batch, train.micro_batch, (train.global_batch / train.micro_batch + 1) * train.micro_batch);
  const int64_t length = config.model.seq_len, most = std::numeric_limits<int32_t>::max();
  checker.require(
      chosen || train.micro_batch <= most / length, {"train.micro_batch", "model.seq_len"},
      "a micro-batch has at most {} token rows, found micro_batch x seq_len = {} x {}; use micro_batch = {} "
      "or less",
      most, train.micro_batch, length, most / length);
  checker.require(train.recompute_layers <= config.model.n_layer, {"train.recompute_layers", "model.n_layer"},
                  "recompute_layers = {} is more than n_layer = {}; lower it, or replace it with recompute = \"full\"",
                  train.recompute_layers, config.model.n_layer);
}

/// `steps`: those of the whole run.
void check_schedule(const Config& config, int64_t steps, Checker& checker) {
  const Optim& optim = config.optim;
  checker.require(optim.warmup_steps <= steps,
                  {"optim.warmup_steps", "train.steps", "train.tokens", "train.global_batch", "model.seq_len"},
                  "a warm-up of {} steps is longer than the run of {} steps of {} tokens; shorten it",
                  optim.warmup_steps, steps, config.train.global_batch * config.model.seq_len);
  const int64_t decay = final_decay(optim, steps);
  checker.require(optim.schedule != Schedule::wsd || optim.warmup_steps > steps || optim.warmup_steps + decay <= steps,
                  {optim.decay_steps > 0 ? "optim.decay_steps" : "optim.decay_fraction", "optim.warmup_steps",
                   "optim.schedule", "train.steps", "train.tokens", "train.global_batch", "model.seq_len"},
                  "a warm-up of {} steps and a final decay over {} of {} steps ({}) overlap; shorten one of them",
                  optim.warmup_steps, decay, steps,
                  optim.decay_steps > 0 ? format("decay_steps = {}", optim.decay_steps)
                                        : format("decay_fraction = {}", optim.decay_fraction));
}

bool is_there(const std::filesystem::path& path) {
  std::error_code failed;  // for example, the name is too long or the folder is not readable
  return std::filesystem::exists(path, failed);
}

bool is_path(const std::string& resume) {
  return !resume.empty() && resume != "auto" && resume != "must" && resume != "verified" && resume != "never";
}

/// True if the run has a checkpoint to resume from.
bool resumes(const Config& config) {
  const std::string& resume = config.checkpoint.resume;
  return resume != "never" && (is_path(resume) || is_there(checkpoint_folder(config) / "latest"));
}

void check_checkpoints(const Config& config, bool files, Checker& checker) {
  const std::string& best = config.checkpoint.best;
  std::vector<std::string> sets = validation_names(config.data);
  for (const Task& task : config.data.task) sets.push_back(task.name);
  checker.require(best.empty() || std::ranges::count(sets, best) > 0,
                  {"checkpoint.best", "data.validation", "data.task"}, "no validation set or task is called \"{}\"{}",
                  best,
                  sets.empty() ? "; validation sets are named in [[data.validation]], tasks in [[data.task]]"
                               : did_you_mean(best, sets));
  const std::string& resume = config.checkpoint.resume;
  checker.require(!resume.empty(), {"checkpoint.resume"},
                  "expected auto, must, verified, never or a path, found an empty string");
  if (!files) return;
  checker.require_as(Code::checkpoint, !is_path(resume) || is_there(resume), {"checkpoint.resume"},
                     "checkpoint \"{}\" not found; expected auto, must, verified, never or a path{}", resume,
                     did_you_mean(resume, {"auto", "must", "verified", "never"}));
  // A run that has checkpoints resumes from them.
  checker.require_as(Code::checkpoint,
                     config.model.init_from.empty() || is_there(config.model.init_from) || resumes(config),
                     {"model.init_from"}, "checkpoint \"{}\" not found; expected a checkpoint or a Hugging Face folder",
                     config.model.init_from);
}

void check_hardware(const Hardware& hardware, bool files, Checker& checker) {
  std::error_code ignored;
  checker.require(
      !files || hardware.gemm_tuning.empty() || std::filesystem::is_regular_file(hardware.gemm_tuning, ignored),
      {"hardware.gemm_tuning"}, "\"{}\" not found; `trainer bench gemm --write-tuning` writes it",
      hardware.gemm_tuning);
  checker.require(!files || hardware.profile.empty() || std::filesystem::is_regular_file(hardware.profile, ignored),
                  {"hardware.profile"},
                  "\"{}\" not found; `trainer bench all --write-profile` writes it, and without the key a run predicts "
                  "no times",
                  hardware.profile);
}

void check_log(const Log& log, Checker& checker) {
  checker.require(log.jsonl || !log.report, {"log.jsonl", "log.report"},
                  "the report requires metrics.jsonl, which jsonl = false disables; also set report = false");
  checker.require(log.trace.empty() || (log.trace.size() == 2 && log.trace.front() <= log.trace.back()), {"log.trace"},
                  "expected the first and the last step, [first, last], or [] for no trace; found [{}]",
                  fmt::join(log.trace, ", "));
}

void check_world(const Config& config, const LoadOptions& options, Checker& checker) {
  const Parallel& parallel = config.parallel;
  if (options.plans) return;
  const std::optional<int64_t> launched = options.world;
  for (const BrokenRule& rule : broken_rules(config)) checker.add(rule);
  checker.require(!is_automatic(config) || !config.hardware.profile.empty(), {"parallel.strategy", "hardware.profile"},
                  "\"auto\" requires hardware.profile, which is not set; measure this machine with `trainer bench all "
                  "--write-profile FILE`");
  if (is_automatic(config)) return;  // the planner checks the layouts
  checker.require(parallel.transport != Transport::nccl || config.run.device != DeviceChoice::cpu,
                  {"parallel.transport", "run.device"},
                  "\"nccl\" requires GPUs, but device = \"cpu\"; use \"auto\" or \"mpi\"");
  int64_t data = parallel.data;
  if (launched) {
    checker.require(
        *launched == 1 || parallel.transport != Transport::threads, {"parallel.transport"},
        "\"threads\" runs all ranks in one process, but mpirun started {}; run without mpirun, or use \"auto\"",
        *launched);
    checker.require(*launched > 1 || (parallel.transport != Transport::mpi && parallel.transport != Transport::nccl),
                    {"parallel.transport"},
                    "\"{}\" requires mpirun, but the program was started without it; use mpirun -np N, or \"auto\"",
                    kTransportNames[static_cast<size_t>(parallel.transport)]);
    const int64_t world = world_size(config, *launched), replica = ranks_of_replica(config);
    const int64_t needed = replica * std::max<int64_t>(1, data);
    const bool fits = data == 0 ? world % replica == 0 : world == needed;
    const std::string size = data == 0 ? format(" requires a multiple of {}, but this is", counted(replica, "rank"))
                                       : format(" x data = {} does not match", data);
    checker.require_as(Code::plan, fits, {"parallel.data", replica_key(config), "parallel.stages"},
                       "{}{} {}; start with mpirun -np {}, or change these keys", replica_text(config), size,
                       counted(world, "rank"), needed);
    if (data == 0 && fits) data = world / replica;
  }
  data = std::max<int64_t>(1, data);  // any number of replicas requires this, too
  const Train& train = config.train;
  const int64_t round = train.micro_batch * data;
  checker.require(data == 1 || train.global_batch % train.micro_batch != 0 || train.global_batch % round == 0,
                  {"train.global_batch", "train.micro_batch", "parallel.data", replica_key(config)},
                  "global_batch = {} is not a multiple of micro_batch x data = {} x {} = {}; change it",
                  train.global_batch, train.micro_batch, data, round);
  const int64_t stages = parallel.stages, all = round * stages;
  checker.require(parallel.chunks == 1 || train.global_batch % round != 0 || train.global_batch % all == 0,
                  {"parallel.chunks", "parallel.stages", "train.global_batch", "train.micro_batch", "parallel.data"},
                  "chunks = {} needs a multiple of stages = {} micro-batches per step, found {} (global_batch {} / "
                  "micro_batch {} / "
                  "{} replicas); use global_batch = {}",
                  parallel.chunks, stages, train.global_batch / round, train.global_batch, train.micro_batch, data,
                  round_up(train.global_batch, all));
}

void check_offload(const Config& config, Checker& checker) {
  const Offload& offload = config.offload;
  checker.require(offload.gpu_fraction == "auto" || fraction_of(offload.gpu_fraction), {"offload.gpu_fraction"},
                  "expected \"auto\", a fraction as in \"1/2\" or a number from 0 to 1, found {}",
                  offload.gpu_fraction);
  const bool some = offload.gpu_fraction != "auto" && fraction_of(offload.gpu_fraction).value_or(Fraction()).num > 0;
  checker.require(offload.optimizer != OffloadOptimizer::cpu || !some, {"offload.gpu_fraction", "offload.optimizer"},
                  "gpu_fraction = {} conflicts with optimizer = \"cpu\", which updates everything on the host; use "
                  "\"interleaved\"",
                  offload.gpu_fraction);
  checker.require(offload.optimizer != OffloadOptimizer::cpu || offload.resident == 0,
                  {"offload.resident", "offload.optimizer"},
                  "resident = {} conflicts with optimizer = \"cpu\", which keeps no state on the device; use "
                  "\"interleaved\"",
                  offload.resident);
  checker.require(
      offload.grad_transport == GradTransport::fp32 || config.precision.compute != Compute::fp64,
      {"offload.grad_transport", "precision.compute"},
      "grad_transport = \"bf16\" conflicts with compute = \"fp64\", whose gradients are fp64; use \"fp32\", "
      "which sends them unrounded");
  const bool muon = config.optim.name == OptimizerName::muon;
  checker.require(!muon || offload.optimizer == OffloadOptimizer::none, {"optim.name", "offload.optimizer"},
                  "name = \"muon\" conflicts with offload.optimizer, which updates ranges of elements, not whole "
                  "matrices; use offload.optimizer = \"none\" or name = \"adamw\"");
  checker.require(!muon || offload.grad_transport == GradTransport::fp32, {"optim.name", "offload.grad_transport"},
                  "name = \"muon\" conflicts with offload.grad_transport = \"bf16\": Muon does not round gradients; "
                  "use \"fp32\"");
  checker.require(!muon || config.muon.compute != Compute::fp64 || config.precision.compute == Compute::fp64,
                  {"muon.compute", "precision.compute"},
                  "muon.compute = \"fp64\" requires precision.compute = \"fp64\"; use \"auto\" or \"fp32\"");
  checker.require(config.optim.moments == Moments::fp32 || config.precision.compute != Compute::fp64,
                  {"optim.moments", "precision.compute"},
                  "moments = \"bf16\" conflicts with compute = \"fp64\", whose moments are fp64; use \"fp32\", the "
                  "default, which stores them unrounded");
}

void check_mup(const Config& config, Checker& checker) {
  const int64_t base = config.optim.mup_base_width;
  checker.require(base == 0 || !config.model.tie_embeddings.value_or(false),
                  {"optim.mup_base_width", "model.tie_embeddings"},
                  "{} cannot be used with model.tie_embeddings = true, whose table would need two learning rates; set "
                  "tie_embeddings = false",
                  base);
  checker.require(
      base == 0 || config.optim.name == OptimizerName::adamw, {"optim.mup_base_width", "optim.name"},
      "{} scales AdamW's learning rates, but the updates of \"{}\" follow the width by rules of their own; use "
      "name = \"adamw\", or 0",
      base, find_key("optim", "name")->names[static_cast<size_t>(config.optim.name)]);
}

void check_debug(const Debug& debug, Checker& checker) {
  for (const std::string& fault : debug.inject)
    checker.require(
        injected_delay(fault).has_value() || planted_fault(fault).has_value(), {"debug.inject"},
        "unknown fault \"{}\"; expected \"delay:SECONDS\", as in \"delay:0.002\", \"slow:RANK:SECONDS\", or a "
        "fault for `trainer verify`, as in \"weight:1:wte:0:52\"",
        fault);
  checker.require(debug.emulate_device.empty() || emulated_rates(debug.emulate_device), {"debug.emulate_device"},
                  "expected \"h100\", \"a100\", or rates above 0 as in \"to_device=55,to_host=55,host=3,device=100,"
                  "memory=87.5,pageable=3.3\", found \"{}\"",
                  debug.emulate_device);
}

}  // namespace

std::optional<double> injected_delay(std::string_view fault) {
  constexpr std::string_view kDelay = "delay:";
  if (!fault.starts_with(kDelay)) return std::nullopt;
  fault.remove_prefix(kDelay.size());
  double seconds = 0;
  const auto [end, error] = std::from_chars(fault.data(), fault.data() + fault.size(), seconds);
  if (error != std::errc() || end != fault.data() + fault.size() || !(seconds >= 0 && seconds <= 60))
    return std::nullopt;
  return seconds;
}

void require_schedule(const Config& config, int64_t steps) {
  Mistakes mistakes(config.path);
  Checker checker(config, mistakes);
  check_schedule(config, steps, checker);
  mistakes.throw_if_any();
}

void validate(const Config& config, const LoadOptions& options, Mistakes& mistakes) {
  const bool files = options.files;
  Checker checker(config, mistakes);
  check_names(config, checker);
  check_run(config, checker);
  if (files) check_place_holders(config, checker);
  check_model(config.model, checker);
  check_experts(config, options, checker);
  check_data(config, files, checker);
  check_batches(config, options.plans, checker);
  checker.require(config.optim.min_lr <= config.optim.lr, {"optim.min_lr", "optim.lr"},
                  "min_lr = {} is above lr = {}; lower it", config.optim.min_lr, config.optim.lr);
  // With train.tokens, the steps of a resumed run follow from the tokens that it has seen: see require_schedule().
  if (config.train.steps > 0 || (files && !resumes(config))) check_schedule(config, total_steps(config), checker);
  check_world(config, options, checker);
  check_checkpoints(config, files, checker);
  check_hardware(config.hardware, files, checker);
  check_log(config.log, checker);
  check_offload(config, checker);
  check_mup(config, checker);
  check_debug(config.debug, checker);
  checker.require(config.debug.replay_every == 0 || config.precision.deterministic,
                  {"debug.replay_every", "precision.deterministic"},
                  "a replay compares bits, which deterministic = false does not repeat; use true, or replay_every = 0");
}

}  // namespace trainer::config
