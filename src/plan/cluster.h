#pragma once
// Cluster: the properties of a machine that determine the time of a step. It comes from a file: either the profile that
// `trainer bench --write-profile` measured, or a description from data sheets (configs/clusters/). Numbers that were
// not measured are derived from a few constants, which predictions then mention.
//
//   [cluster]     name, source, devices_per_node, lanes, ranks (profiles only: number of ranks measured together),
//                 skew, price_per_gpu_hour
//   [device]      name, kind, memory_gib, memory_gb_per_s, tflops_{bf16,fp32,fp64} (peaks), efficiency, half_m, half_k,
//                 half_n, units, tile_m, tile_n, attention (share of the peak, without [[attention]]),
//                 memory_share (for kinds without [[operator]]), operator_us, in_step_{forward,dx,dw,attention}
//   [host]        memory_gib, memory_gb_per_s, to_device_gb_per_s, to_host_gb_per_s, gparams_per_s    per rank
//   [[product]]   compute, form, m, k, n, tflops          form: "forward" X·W, "dx" dY·Wᵀ, "dw" Xᵀ·dY
//   [[attention]] compute, pass, length, head_dim, tflops  pass: "forward", "backward"
//   [[operator]]  kind, gb_per_s                          any other operator, by its minimal memory traffic
//   [intra], [inter]  gb_per_s, start_us, hop_us, slowdown, progress; gb_per_s is per rank within a node, per node
//                 between nodes
//   [[collective]]  op, ranks, per_node, bytes, us        a measurement; bytes is the payload (comm/bytes.h)
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/meter.h"

namespace trainer::plan {

/// A link between ranks. Within a node each rank has its own gb_per_s; between nodes the ranks of a node share it.
struct Link {
  double gb_per_s = 0;  // 10⁹ bytes per second, in each direction
  double start_us = 0;  // per operation
  double hop_us = 0;    // per step from rank to rank
  /// Fraction of compute speed lost during communication: 0 if overlap is free, 1 if the same unit does both.
  double slowdown = 0;
  /// Fraction of communication speed kept during compute: less than 1 if communication has to wait for a core.
  double progress = 1;
};

/// A rank's share of its host while all ranks of the node use it: memory, memory bandwidth, the link to and from the
/// device with both directions in use, and the parameters that the host updates per second. A CPU is its own host.
struct Host {
  double memory_bytes = 0, memory_rate = 0, to_device = 0, to_host = 0, updates = 0;
  bool known() const { return updates > 0; }
};

enum class ProductForm : uint8_t { forward, dx, dw };
std::string_view name_of(ProductForm form);
/// The form of a linear's GEMM: forward transposes neither operand, dx the right one, dw the left one.
ProductForm form_of(const ProductShape& product);

/// A measured GEMM rate. Rates of the same form are interpolated in the logarithms of m, k and n.
struct ProductPoint {
  DType compute = DType::f32;
  ProductForm form = ProductForm::forward;
  double m = 0, k = 0, n = 0;
  double flops = 0;  // a second
};
/// A measured rate of attention, interpolated in the logarithms of both extents.
struct AttentionPoint {
  DType compute = DType::f32;
  bool backward = false;
  double length = 0, head_dim = 0;
  double flops = 0;  // a second
};
struct CollectivePoint {
  CommOp op = CommOp::all_reduce;
  int ranks = 2, per_node = 1;
  double bytes = 0, seconds = 0;
};

struct Cluster {
  std::string name, source, path;
  bool measured = false;          // true for profiles
  int devices_per_node = 1;       // ranks per node
  int ranks = 0;                  // in a profile: the number of ranks that were measured together
  int lanes = 3;                  // see parallel.lanes
  double price_per_gpu_hour = 0;  // in any currency; 0: unknown
  double skew = 1;  // time of equal work on the slowest rank relative to the mean; above 1 if ranks share cores
  /// The rows of the rank whose experts have most, relative to the mean, if ranks divide experts: an assumption about
  /// the run, not a property of the machine. If it exceeds the number of these ranks, that number counts.
  double imbalance = 1;

  std::string device;
  bool cpu = false;
  double memory_bytes = 0;                    // per rank
  double memory_rate = 0;                     // bytes per second
  double memory_share = 1;                    // share of memory_rate that operators reach
  double operator_seconds = 0;                // fixed cost of an operator
  std::map<DType, double> peaks;              // FLOP/s
  double efficiency = 1;                      // share of the peak that GEMMs of infinite extents reach
  double half_m = 0, half_k = 0, half_n = 0;  // extent for half the rate if the others are infinite
  /// Units that each compute one tile of a GEMM's output at a time: NVIDIA's SMs, AMD's compute units. A GEMM runs
  /// in whole waves of tiles ("wave quantization"); half_m and half_n are then ignored. 0: unknown.
  double units = 0;
  double tile_m = 256, tile_n = 128;  // the largest tile
  double attention = 1;               // share of the peak that attention reaches if it was not measured

  std::vector<ProductPoint> products;
  std::vector<AttentionPoint> attentions;
  /// Shares of the measured rates that GEMMs (by form) and attention reach within a training step, where operands come
  /// from memory instead of caches, GEMMs have epilogues, and ranks share the resources of a node.
  std::array<double, 3> in_step = {1, 1, 1};
  double attention_in_step = 1;
  std::map<OpKind, double> operators;  // bytes per second in training steps; other kinds: memory_rate · memory_share
  std::vector<CollectivePoint> collectives;
  Link intra, inter;
  Host host;

  /// Returns the peak in this type; 0 if the file has none.
  double peak(DType compute) const;
  /// Returns the FLOP/s of a GEMM, or of attention, from the tables; 0 if the tables have none for its form or pass.
  double measured_rate(DType compute, const ProductShape& product) const;
  double measured_rate(DType compute, const AttentionExtents& extents) const;
  /// Returns the seconds of a GEMM on one device.
  double product_seconds(DType compute, const ProductShape& product, double bytes) const;
  /// Returns the seconds of a GEMM on units that compute tiles.
  double tiled_seconds(DType compute, const ProductShape& product) const;
  /// Returns the seconds of any operator.
  double seconds_of(DType compute, const OpCall& call) const;
};

/// The properties of a group of ranks that determine the time of its collectives.
struct GroupShape {
  int ranks = 1;
  int per_node = 1;  // ranks of the group on one node
  bool spans_nodes() const { return per_node < ranks; }
};
/// The time of a collective on an otherwise idle machine, on which all groups along the same axes run it concurrently:
/// start-up seconds, which are independent of the size, and seconds in which the link is busy.
struct CollectiveTime {
  double fixed = 0, busy = 0;
  bool measured = false;
  double total() const { return fixed + busy; }
};
/// `payload` is in elements, as counted in comm/bytes.h.
///   ring (all_reduce, reduce_scatter, all_gather)   wire bytes / ranks / β;  each step costs hop_us: in one round
///                                                   over n nodes, n steps on [inter], the rest on [intra]
///   tree (all_reduce on GPUs, if it is faster)      2 payload / β; twice log₂ n steps between and log₂ within nodes
///   few elements (sent straight to all)             the same bytes in log₂ g steps
///   chain (broadcast, reduce)                       payload / β + (g − 1) steps
///   send, to a neighbour along the axes             a chain of two ranks, on different nodes if the group spans nodes
/// β: within a node intra.gb_per_s; between nodes inter.gb_per_s · per_node / devices_per_node, since the other groups
/// of the node share its link, and at most intra.gb_per_s.
CollectiveTime collective_time(const Cluster& cluster, const GroupShape& group, CommOp op, DType dtype,
                               int64_t payload);

/// Returns the bytes per second that each rank sends, from two measurements of a ring collective.
double fitted_rate(const CollectivePoint& less, const CollectivePoint& more);

/// Reads a file. Throws Code::config with file, line, key and the expected value.
Cluster read_cluster(const std::string& path);
/// Returns only the file's text, for ranks that cannot read the file.
std::string cluster_text(const std::string& path);
Cluster parse_cluster(std::string_view text, const std::string& path);
/// Returns the text of a profile; parse_cluster() reads it back.
std::string to_toml(const Cluster& cluster);

}  // namespace trainer::plan
