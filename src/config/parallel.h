#pragma once
// The section [parallel].
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace trainer::sharding {
enum class PipelineSchedule : uint8_t;
}

namespace trainer::config {

enum class StrategyName { megatron_1d, fsdp, optimus_2d, axonn_4d, autoddl, automatic };
enum class AxisOrder { yxzd, xyzd, yzxd, zyxd, xzyd, zxyd };
enum class VocabAxes { automatic, x, xy };
enum class Stationary { automatic, paper };
enum class Panels { automatic, gather, ring };
enum class Transport { automatic, nccl, mpi, threads };

/// The sharding specs of strategy "autoddl" for some consecutive layers: one letter for each of Parallel::axes
/// (config/sharding_spec.h).
struct LayerSpec {
  std::string stream, attention;
  std::string hidden;  // between up and down
  std::string qkv, out, up, down;
  std::string experts;   // axes that divide them; empty: none
  std::string schedule;  // schedule of the linears: at_once or ring; empty: at_once
  int64_t layers = 0;    // number of layers with these specs; 0: all remaining layers
  bool operator==(const LayerSpec&) const = default;
};

struct Parallel {
  StrategyName strategy = StrategyName::megatron_1d;
  int64_t tensor = 1;  // megatron-1d
  bool sequence_parallel = true;
  int64_t shards = 0;                     // fsdp; 0: all ranks of a replica
  int64_t context = 1;                    // ranks that share each sequence
  int64_t context_heads = 0;              // fsdp: the number of them that exchange heads; 0: with the fewest bytes
  Panels context_kv = Panels::automatic;  // exchange of keys and values; automatic: choices_by_memory()
  int64_t experts = 1;                    // fsdp, megatron-1d: ranks that divide the experts
  double expert_buffer = 1.5;  // rows that a rank receives in one round of their exchange, relative to the mean
  std::vector<int64_t> grid = {1, 1, 1};        // axonn-4d: x, y, z
  AxisOrder order = AxisOrder::yxzd;            // axonn-4d: order of x, y, z and d over ranks, innermost first
  VocabAxes vocab_axes = VocabAxes::automatic;  // axonn-4d
  bool overlap_all_reduce = true, overlap_reduce_scatter = true, overlap_all_gather = true;
  int64_t cache_layers = 0;
  DType rs_dtype = DType::f32, sum_dtype = DType::bf16;  // f32 or bf16
  std::vector<int64_t> mesh = {1, 1};                    // optimus-2d: rows, columns and optionally depth
  Stationary stationary = Stationary::automatic;         // optimus-2d, as is the next
  Panels panels = Panels::automatic;
  std::vector<int64_t> node_tile = {1, 1};  // optimus-2d: rows and columns of the mesh tile that consecutive ranks form
  std::vector<int64_t> axes = {1};          // autoddl: extents of the axes, outermost first
  std::vector<LayerSpec> layer;             // autoddl, in the order of the layers
  std::string head, table;                  // autoddl: sharding specs of head and embedding table; empty: from `layer`
  int64_t data = 0;                         // replicas; 0: all remaining ranks
  int64_t stages = 1, chunks = 1;           // pipeline stages of a replica; chunks of layers per stage
  sharding::PipelineSchedule pipeline_schedule{};
  std::vector<int64_t> stage_layers;  // layers of each chunk; empty: not chosen yet (choose_stage_layers)
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

}  // namespace trainer::config
