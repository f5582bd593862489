#pragma once
// Routing: what the routers of layers with experts contribute to a step's losses and statistics, on one rank.
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "mesh/mesh_shape.h"
#include "tensor/buffer.h"
#include "tensor/host_copy.h"

namespace trainer::parallel {

/// Sums over rows of token rows and layers: of E·Σ f·p (the balance loss), of the squared log-sum-exp of the logits
/// (the router z-loss), and of the entropy of the probabilities, in nats.
struct RouterTerms {
  double balance = 0, z_loss = 0, entropy = 0;
};

/// Layers are those with experts, numbered from 0. Rows that several ranks hold are counted on one of them.
class Routing {
 public:
  /// `accumulator`: the type of the routers' logits.
  Routing(device::Device& device, DType accumulator, int64_t layers, int64_t experts);

  // Factors of a row's gradients: α·E/(layers·T) and 2·ζ/(layers·T), with T rows in the whole step.
  double balance = 0, z_loss = 0;
  bool per_sequence = false;  // f of the balance loss is over the rows of a sequence, not of the micro-step
  /// [layers, N, k] i32, in the batch's order of rows: the routers choose these experts. Empty except in `verify`.
  Tensor choices;
  /// If set, called when a router has chosen, not when a layer is recomputed: with the layer, this rank's first row of
  /// the micro-batch, and the logits [n, E] and choices [n, k] of its rows, on the device.
  std::function<void(int64_t layer, int64_t first_row, const Tensor& logits, const Tensor& choices)> on_choice;

  void begin_step();
  /// Adds to the step how often a layer's experts were chosen: [any number, E], on the host. Does not allocate.
  void count(int64_t layer, std::span<const int32_t> counts);
  /// Returns the destination of a layer's terms [3] in the order of RouterTerms, accumulator type.
  struct Sums {
    Tensor tensor;
    bool accumulate = false;  // add to the tensor instead of overwriting it
  };
  Sums sums(int64_t layer);

  /// Notes a layer's exchange of rows: its rounds, and the bytes that it sent along `axes` beyond those of balanced
  /// routing, which are planned.
  void exchanged(int64_t layer, int64_t rounds, mesh::AxisSet axes, int64_t bytes);
  /// Returns the most rounds in which a layer's rows of a micro-batch were exchanged in the step; 0: no exchange.
  std::span<const int64_t> rounds() const { return rounds_; }
  const std::map<mesh::AxisSet, int64_t>& unplanned_bytes() const { return unplanned_; }

  /// Returns this rank's terms of the step. Waits for the device.
  RouterTerms terms();
  /// Returns this rank's counts of the step, [layers · E].
  std::span<const int64_t> counts() const { return counts_; }

 private:
  device::Device& device_;
  int64_t experts_;
  std::vector<int64_t> counts_, rounds_;
  std::map<mesh::AxisSet, int64_t> unplanned_;
  std::vector<bool> written_;  // by layer: sums_ has terms of this step
  Buffer sums_;                // [layers, 3]
  HostCopy on_host_;
};

}  // namespace trainer::parallel
