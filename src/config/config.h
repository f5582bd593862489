#pragma once
// The run's configuration as typed structs. Every key is declared once, in config/keys*.cpp (default, range, unit,
// help); parsing, --set, validation, `config reference|show|check` and --help are driven by those declarations.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace trainer::config {

enum class DeviceChoice { automatic, cpu, cuda };
enum class Arch { gpt2, llama, mistral, qwen2, qwen3, smollm3, olmo2 };
enum class AttentionBias { none, qkv, all };
enum class QkNorm { none, head, full };
enum class NormPlace { pre, post };
enum class NormKind { layer, rms };
enum class Positions { learned, rope };
enum class MlpKind { plain, gated };  // down(gelu(up(x))), down(silu(gate(x)) ∘ up(x))
enum class RopeType { plain, linear, llama3, yarn };
enum class Document { file, line, block };
enum class Bos { automatic, on, off };
enum class DataFormat { automatic, text, jsonl, tokens };
enum class Recompute { none, selective, full };
enum class Schedule { cosine, linear, wsd, constant };
enum class Compute { automatic, bf16, fp32, fp64 };
enum class AttentionKernels { automatic, own, cudnn };
enum class ProgressMode { automatic, on, off };
enum class OffloadOptimizer { none, cpu, interleaved };
enum class GradTransport { fp32, bf16 };
enum class Moments { fp32, bf16 };
enum class OptimizerName { adamw, muon };
enum class MuonCoefficients { jordan, polar };
enum class MuonScale { rms, spectral };
enum class MuonOwners { all, replica };
enum class StrategyName { megatron_1d, fsdp, optimus_2d, axonn_4d, autoddl, automatic };
enum class AxisOrder { yxzd, xyzd, yzxd, zyxd, xzyd, zxyd };
enum class VocabAxes { automatic, x, xy };
enum class Stationary { automatic, paper };
enum class Panels { automatic, gather, ring };
enum class Transport { automatic, nccl, mpi, threads };

struct Run {
  std::string name;
  std::string dir;  // "{name}" is replaced, as in all paths
  int64_t seed = 0;
  DeviceChoice device = DeviceChoice::automatic;
  int64_t threads = 0;  // 0: decided from the affinity mask
};

/// The facts by which the models of a family differ from those of another.
struct FamilyFacts {
  NormKind norm = NormKind::layer;
  Positions positions = Positions::learned;
  MlpKind mlp = MlpKind::plain;
  // Values of keys that are not set:
  bool bias = false, tied = false;
  AttentionBias attn_bias = AttentionBias::none;  // without bias; with bias all linears of attention have one
  QkNorm qk_norm = QkNorm::none;
  NormPlace norm_place = NormPlace::pre;
  int64_t nope_every = 0;
};

struct Model {
  Arch arch = Arch::gpt2;  // only config/ and huggingface/ read it; `family` contains what follows from it
  FamilyFacts family;      // set by resolve(): those of arch (config/families.h)
  int64_t n_layer = 0, n_head = 0, n_kv_head = 0 /* 0: n_head */, d_model = 0, d_ff = 0 /* 0: by family */, seq_len = 0;
  int64_t head_dim = 0;                      // 0: d_model / n_head; head_size() returns the effective value
  std::optional<bool> tie_embeddings, bias;  // default depends on the family
  double norm_eps = 0, rope_theta = 0, dropout = 0, init_std = 0;
  int64_t vocab_multiple = 0;  // 0: 128
  std::string init_from;
  RopeType rope_type = RopeType::plain;
  double rope_factor = 0;                          // linear, llama3 and yarn
  int64_t rope_original = 0;                       // llama3 and yarn: context length before scaling, in tokens
  double rope_low_freq = 1, rope_high_freq = 4;    // llama3
  double rope_beta_fast = 32, rope_beta_slow = 1;  // yarn, as are the next two
  double rope_attention = 0;                       // 0: derived from rope_factor
  bool rope_truncate = true;
  std::optional<AttentionBias> attn_bias;  // if this or one of the next two is unset, the family decides: see below
  std::optional<bool> mlp_bias;
  std::optional<QkNorm> qk_norm;
  std::optional<NormPlace> norm_place;  // unset: the family decides; has_post_norms() returns the effective value
  int64_t max_positions = 0;            // 0: seq_len
  // Keys that a row sees at most, 0: all earlier ones; each layer whose number is a multiple of window_full_every sees
  // all of them. window_of() returns a layer's window.
  int64_t window = 0, window_full_every = 0;
  double logit_softcap = 0;           // 0: none
  std::optional<int64_t> nope_every;  // unset: the family decides; nope_interval() returns the effective value
};

/// The names of AttentionBias, in order.
inline constexpr const char* kAttentionBiasNames[] = {"none", "qkv", "all"};
/// The names of QkNorm, in order.
inline constexpr const char* kQkNormNames[] = {"none", "head", "full"};
/// The names of NormPlace, in order.
inline constexpr const char* kNormPlaceNames[] = {"pre", "post"};
/// The names of RopeType, in order.
inline constexpr const char* kRopeNames[] = {"default", "linear", "llama3", "yarn"};
inline bool has_rope_positions(const Model& model) { return model.family.positions == Positions::rope; }
inline bool has_gated_mlp(const Model& model) { return model.family.mlp == MlpKind::gated; }
/// Returns the number of features of one attention head.
inline int64_t head_size(const Model& model) {
  return model.head_dim > 0 ? model.head_dim : model.d_model / model.n_head;
}
/// Returns which linears of attention have biases in a resolved model.
inline AttentionBias attention_bias(const Model& model) {
  return model.attn_bias.value_or(model.bias.value_or(model.family.bias) ? AttentionBias::all : model.family.attn_bias);
}
inline bool has_mlp_bias(const Model& model) { return model.mlp_bias.value_or(model.bias.value_or(model.family.bias)); }
/// Returns whether a layer, counted from 0, has a sliding window.
inline bool has_window(const Model& model, int64_t layer) {
  const bool full = model.window_full_every > 0 && (layer + 1) % model.window_full_every == 0;
  return model.window > 0 && !full;
}
/// Returns how many keys a row sees at most in a layer, counted from 0; 0: all earlier ones.
inline int64_t window_of(const Model& model, int64_t layer) {
  return !has_window(model, layer) || model.window >= model.seq_len ? 0 : model.window;
}
/// Returns n if layers n, 2n, …, counted from 1, have no RoPE; 0 if all have it.
inline int64_t nope_interval(const Model& model) { return model.nope_every.value_or(model.family.nope_every); }
/// Returns whether queries and keys are rotated in a layer, counted from 0.
inline bool has_rope(const Model& model, int64_t layer) {
  const int64_t every = nope_interval(model);
  return has_rope_positions(model) && (every == 0 || (layer + 1) % every != 0);
}
/// Returns the norms that are applied to queries and keys.
inline QkNorm query_key_norm(const Model& model) { return model.qk_norm.value_or(model.family.qk_norm); }
/// True if norms are applied to the outputs of attention and MLP instead of their inputs.
inline bool has_post_norms(const Model& model) {
  return model.norm_place.value_or(model.family.norm_place) == NormPlace::post;
}
/// Returns the total width of the query heads, which is also the width of the attention output.
inline int64_t attention_width(const Model& model) { return model.n_head * head_size(model); }
/// Returns the total width of the key heads, which equals that of the value heads.
inline int64_t key_width(const Model& model) {
  return (model.n_kv_head > 0 ? model.n_kv_head : model.n_head) * head_size(model);
}

/// A table [[data.source]] or [[data.validation]]: a named set of files. Members that are not set default to [data].
struct FileSet {
  std::string name;
  std::vector<std::string> files;
  std::optional<DataFormat> format;
  std::string text_key;
  std::optional<Document> document;
  std::optional<bool> strict;
  std::optional<double> weight;  // only for sources, like max_epochs
  int64_t max_epochs = 0;        // 0: no limit
  int64_t line = 0;              // line in the configuration file, for messages
};

/// A table [[data.phase]]: the weights of the sources after from_tokens training tokens. Sources not listed have
/// weight 0.
struct DataPhase {
  int64_t from_tokens = 0;
  std::map<std::string, double> weights;
  int64_t line = 0;
};

struct Data {
  std::vector<std::string> train, val;
  std::vector<FileSet> source;                // instead of `train`: a weighted mixture
  std::vector<DataPhase> phase;               // changes of the sources' weights, in chronological order
  std::vector<FileSet> validation;            // instead of `val`: named sets
  double val_fraction = 0;                    // resolve() turns a negative number into 0.05, or 0 with other sets
  DataFormat format = DataFormat::automatic;  // the format of files whose names do not determine it
  std::string tokenizer;                      // "train", a path to a .model, or empty
  int64_t vocab_size = 0;
  Bos bos = Bos::automatic;  // if on, each document begins with the tokenizer's BOS token
  std::string text_key;
  Document document = Document::file;
  bool strict = false;              // invalid UTF-8 is an error instead of being replaced and counted
  bool separate_documents = false;  // attention sees only the row's own document
};

struct Train {
  int64_t steps = 0, tokens = 0;  // only one is set; total_steps() converts either to steps
  int64_t global_batch = 0, micro_batch = 0;
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = 0;  // the first layers, which are recomputed fully whatever `recompute` is
  int64_t eval_interval = 0, eval_batches = 0, sample_interval = 0;
  std::string sample_prompt;
  int64_t sample_tokens = 0;
  int64_t max_skipped_steps = 0;
  double skip_sigma = 0;  // 0: no spikes are skipped
  int64_t skip_window = 0;
  double z_loss = 0;  // coefficient; 0: none
  bool cuda_graph = false;
};
/// The names of Recompute, in order.
inline constexpr const char* kRecomputeNames[] = {"none", "selective", "full"};
/// Returns what is recomputed of a layer, counted from 0.
inline Recompute recompute_of(const Train& train, int64_t layer) {
  return layer < train.recompute_layers ? Recompute::full : train.recompute;
}

struct Optim {
  OptimizerName name = OptimizerName::adamw;
  double lr = 0, min_lr = 0;  // resolve() turns a negative min_lr into lr / 10
  int64_t warmup_steps = 0;   // resolve() turns a negative number into a share of the steps
  Schedule schedule = Schedule::cosine;
  double decay_fraction = 0;  // wsd: fraction of the steps in the final decay
  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, grad_clip = 0;  // grad_clip 0: no clipping
  Moments moments = Moments::fp32;
  bool overlap = true;
};

/// Muon updates the weight matrices of the blocks' linears (optim/muon.h).
struct Muon {
  double momentum = 0;
  bool nesterov = true;
  int64_t steps = 0;
  MuonCoefficients coefficients = MuonCoefficients::jordan;
  MuonScale scale = MuonScale::rms;
  double lr_ratio = 1, weight_decay = 0;  // resolve() turns a negative weight_decay into that of Optim
  Compute compute = Compute::automatic;   // operand type of the GEMMs
  MuonOwners owners = MuonOwners::all;
};

struct Precision {
  Compute compute = Compute::automatic;
  bool deterministic = true;
};

/// The sharding specs of strategy "autoddl" for some consecutive layers: one letter for each of Parallel::axes
/// (config/sharding_spec.h).
struct LayerSpec {
  std::string stream, attention;
  std::string hidden;  // between up and down
  std::string qkv, out, up, down;
  std::string schedule;  // schedule of the linears: at_once or ring; empty: at_once
  int64_t layers = 0;    // number of layers with these specs; 0: all remaining layers
  bool operator==(const LayerSpec&) const = default;
};

struct Parallel {
  StrategyName strategy = StrategyName::megatron_1d;
  int64_t tensor = 1;  // megatron-1d
  bool sequence_parallel = true;
  int64_t shards = 0;                           // fsdp; 0: all ranks of a replica
  int64_t context = 1;                          // fsdp: ranks that share each sequence
  std::vector<int64_t> grid = {1, 1, 1};        // axonn-4d: x, y, z
  AxisOrder order = AxisOrder::yxzd;            // axonn-4d: order of x, y, z and d over ranks, innermost first
  VocabAxes vocab_axes = VocabAxes::automatic;  // axonn-4d
  bool overlap_all_reduce = true, overlap_reduce_scatter = true, overlap_all_gather = true;
  int64_t cache_layers = 0;
  DType rs_dtype = DType::f32, sum_dtype = DType::bf16;  // f32 or bf16: sums of gradients and of activations
  std::vector<int64_t> mesh = {1, 1};                    // optimus-2d: rows, columns and optionally depth
  Stationary stationary = Stationary::automatic;         // optimus-2d, as is the next
  Panels panels = Panels::automatic;
  std::vector<int64_t> node_tile = {1, 1};  // optimus-2d: rows and columns of the mesh tile that consecutive ranks form
  std::vector<int64_t> axes = {1};          // autoddl: extents of the axes, outermost first
  std::vector<LayerSpec> layer;             // autoddl, in the order of the layers
  std::string head, table;                  // autoddl: sharding specs of head and embedding table; empty: from `layer`
  int64_t data = 0;                         // replicas; 0: all remaining ranks
  int64_t zero_stage = 0;
  Transport transport = Transport::automatic;
  int64_t lanes = 0;   // 0: depends on the transport
  double timeout = 0;  // seconds
};
/// Returns the request for NCCL between GPUs; empty for an automatic choice.
inline std::optional<bool> requested_nccl(const Parallel& parallel) {
  if (parallel.transport == Transport::automatic) return std::nullopt;
  return parallel.transport == Transport::nccl;
}
/// The names of AxisOrder, in order.
inline constexpr const char* kAxisOrderNames[] = {"yxzd", "xyzd", "yzxd", "zyxd", "xzyd", "zxyd"};
/// The names of VocabAxes, in order.
inline constexpr const char* kVocabAxesNames[] = {"auto", "x", "xy"};
/// The names of Transport, in order.
inline constexpr const char* kTransportNames[] = {"auto", "nccl", "mpi", "threads"};

/// An exact fraction, num / den.
struct Fraction {
  int64_t num = 0, den = 1;
  double value() const { return static_cast<double>(num) / static_cast<double>(den); }
  bool operator==(const Fraction&) const = default;
};
/// Parses a number from 0 to 1, such as "1/2", "0.35" or "1"; returns an empty result for other text.
std::optional<Fraction> fraction_of(std::string_view text);

struct Offload {
  OffloadOptimizer optimizer = OffloadOptimizer::none;
  std::string gpu_fraction = "auto";  // "auto", or a fraction in the syntax of fraction_of()
  int64_t subgroup = 100'000'000;     // largest number of elements
  int64_t slots = 3;
  int64_t resident = 0;  // subgroups
  GradTransport grad_transport = GradTransport::fp32;
  bool pinned = true;
};

struct Checkpoint {
  std::string dir;  // empty: RUN_DIR/checkpoints
  int64_t interval = 0, keep = 0, keep_every = 0;
  bool keep_best = false, async = false;
  std::string best;               // validation set that keep_best follows; empty: the first
  std::string resume;             // auto | must | never | PATH
  bool allow_other_data = false;  // resume even if tokenizer or data hashes differ
};

struct Log {
  int64_t interval = 0;
  bool jsonl = true, report = true, tensorboard = false;
  std::vector<int64_t> trace;  // empty, or the first and the last step to trace
  ProgressMode progress = ProgressMode::automatic;
};

struct Hardware {
  double peak_tflops = 0;   // 0: measured
  double memory_limit = 0;  // GiB, 0: the machine's memory
  std::string gemm_tuning;  // path; empty: the library chooses
  std::string profile;      // path of a machine's profile, for predictions of time; empty: none
  AttentionKernels attention = AttentionKernels::automatic;
};

/// The rates of debug.emulate_device.
struct EmulatedRates {
  double to_device = 55, to_host = 55;  // GB/s
  double host = 3, device = 100;        // update rates, 1e9 parameters/s
  double memory = 87.5;                 // GB/s of host memory for this rank
  double pageable = 3.3;                // GB/s to pageable host memory, blocking tensor by tensor
};
/// Parses "h100", "a100", or "to_device=55,to_host=55,host=3,device=100,memory=87.5,pageable=3.3", in which omitted
/// rates default to those of "h100"; returns an empty result for other text.
std::optional<EmulatedRates> emulated_rates(std::string_view text);

struct Debug {
  bool overlap = true;
  int64_t check_replicas_every = 0;
  std::vector<std::string> inject;
  std::string emulate_device;  // rates in the syntax of emulated_rates(); empty: no emulation
};

/// The place where a value was set: a position in a file, or the command line. In the latter case `set` is
/// "--set section.key=value", or a different option with its value, and the other members are empty.
struct Origin {
  std::string file;
  int64_t line = 0, column = 0;
  std::string set;
};

struct Config {
  Run run;
  Model model;
  Data data;
  Train train;
  Optim optim;
  Muon muon;
  Precision precision;
  Parallel parallel;
  Offload offload;
  Checkpoint checkpoint;
  Log log;
  Hardware hardware;
  Debug debug;

  std::string path;                       // the file it was loaded from, empty when built in memory
  std::map<std::string, Origin> origins;  // by "section.key", for every value that was set; all others are defaults
};

/// Returns the number of layers, counted from the first, whose whole forward pass is recomputed.
inline int64_t recomputed_layers(const Config& config) {
  if (config.train.recompute == Recompute::full) return config.model.n_layer;
  return config.train.recompute_layers;
}

/// Returns the number of optimizer steps of the whole run: train.steps, or enough for train.tokens, rounded up.
int64_t total_steps(const Config& config);

/// Returns the same for a run that has made `step` steps over `tokens_seen` tokens, possibly with a different batch
/// size.
int64_t total_steps(const Config& config, int64_t step, int64_t tokens_seen);

}  // namespace trainer::config
