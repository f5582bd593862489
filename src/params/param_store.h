#pragma once
// ParamStore: the model's parameters. A parameter is logical (a global tensor with a name); its storage is local. Each
// group (embedding, a block, the head) is one flat space; a slot is a local tensor in it that one operator uses; a slot
// may hold several parameters side by side (q, k, v; gate, up), so that one product serves them.
//
// Per group there are flat buffers of equal element count: master weights (accumulator type), compute weights (bf16, or
// the master itself when the compute type is the accumulator type), gradients, first and second moments.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mesh/runs.h"
#include "ops/gemm.h"
#include "tensor/buffer.h"

namespace trainer::params {

using SlotId = int;

struct Init {
  enum class Kind { zeros, ones, normal } kind = Kind::zeros;
  double std = 0;
};

struct Param {
  std::string name;
  Shape shape;  // global
  Init init;
  bool decay = false;  // weight decay applies (two or more dimensions)
  int group = 0;
  std::vector<mesh::Run> runs;  // global offset ↔ offset in the group's flat space
  int64_t count() const { return shape.count(); }
};

/// One parameter of a slot: a global [in, out] matrix (or [out] vector when in = 0).
struct Part {
  std::string name;
  int64_t out = 0;
  Init init;
};

struct Group {
  std::string name;
  int64_t elements = 0;  // of the flat space, padding included
  std::vector<int> params;
  Buffer master, compute, grad, m, v;  // compute is empty when the master serves
};

class ParamStore {
 public:
  ParamStore(device::Device& device, DType compute) : device_(device), compute_(compute) {}

  // Declaring (before allocate()).
  int add_group(std::string name);
  /// Local [rows, Σ out] with the parts side by side; parts are global [rows, out]. `padded_rows` >= rows (vocabulary).
  SlotId add_matrix(int group, int64_t rows, std::vector<Part> parts, bool decay, int64_t padded_rows = 0);
  /// Local [Σ out], parts are global [out].
  SlotId add_vector(int group, std::vector<Part> parts);

  /// Allocates what the run needs: `training` adds gradients and moments.
  void allocate(bool training);
  /// Initial values by (seed, name, global index); refreshes the compute weights.
  void initialize(uint64_t seed);
  /// Compute weights from the master weights (after initialize, load); packed forms become stale.
  void refresh_compute();
  /// The optimizer has just written master and compute weights.
  void weights_changed() { ++version_; }

  DType compute_dtype() const { return compute_; }
  DType state_dtype() const { return accumulator_of(compute_); }

  Tensor weight(SlotId slot) const;  // compute type
  /// Packed op(b) for products with this slot (see ops::prefers_packed), made on first use after each change of the
  /// weights; empty when packing does not pay here.
  Tensor packed(Exec& ex, SlotId slot, bool transposed);
  Tensor gradient(SlotId slot) const;  // accumulator type

  const std::vector<Param>& params() const { return params_; }
  std::vector<Group>& groups() { return groups_; }
  const std::vector<Group>& groups() const { return groups_; }
  int group_of(SlotId slot) const { return slots_[static_cast<size_t>(slot)].group; }
  const std::vector<int>& params_of(SlotId slot) const { return slots_[static_cast<size_t>(slot)].params; }
  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
  int64_t parameter_count() const;  // global elements, padding not counted
  /// Elements of the slot's range in its group's flat space.
  struct Range {
    int64_t offset, count;
  };
  Range range_of(SlotId slot) const;
  bool decays(SlotId slot) const { return slots_[static_cast<size_t>(slot)].decay; }

 private:
  struct Packed {
    Buffer buffer;
    int64_t version = -1;
  };
  struct Slot {
    int group = 0;
    int64_t offset = 0;  // in the group's flat space
    Shape shape;         // local
    bool decay = false;
    std::vector<int> params;
    Packed packed[2];  // as b, as bᵀ
  };
  SlotId add_slot(int group, Shape shape, bool decay);

  device::Device& device_;
  DType compute_;
  std::vector<Param> params_;
  std::vector<Slot> slots_;
  std::vector<Group> groups_;
  int64_t version_ = 0;
};

}  // namespace trainer::params
