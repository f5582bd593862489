#pragma once
// Runs parts of a strategy one at a time on ranks that are threads, and reassembles their results.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <span>

#include "base/philox.h"
#include "config/strategies.h"
#include "parallel/strategy.h"

namespace trainer::pieces {

using parallel::Batch;
using parallel::Spread;
using parallel::Strategy;
using params::GradSink;
using params::ParamStore;

constexpr int64_t kSequences = 2, kLength = 12, kRows = kSequences * kLength;

/// Returns the configured sharding of one layer on a mesh of `ranks` ranks.
inline sharding::ModelSharding on_ranks(config::Config c, int64_t ranks, int64_t kv_heads) {
  c.model.n_layer = 1;
  sharding::ModelSharding s = config::sharding_of(c);
  s.axes.front().size = ranks / s.ranks_of_replica();
  return sharding::on_mesh(std::move(s), kv_heads);
}

/// A rank's store, strategy and sink.
struct Rig {
  Rig(comm::World& world, const sharding::ModelSharding& sharding, DType dtype = DType::f64, bool overlap = true)
      : type(dtype),
        mesh(world, device, parallel::mesh_shape(sharding)),
        store(device, dtype, &mesh),
        strategy(std::make_unique<Strategy>(mesh, store, sharding, overlap)) {
    batch.sequences = kSequences;
    batch.seq_len = kLength;
    batch.loss_scale = {reinterpret_cast<std::byte*>(&loss_scale), {1}, DType::f64};
  }
  parallel::Tile tile(int64_t width) const { return strategy->ranks().tile(strategy->stream(0), batch.rows(), width); }
  void ready() {
    store.allocate(true);
    sink = std::make_unique<GradSink>(store);
    sink->prepare(device);
    sink->begin_step();
    sink->begin_micro(true);
  }
  void done() {
    for (size_t g = store.groups().size(); g-- > 0;) sink->end_group(ex, static_cast<int>(g));
    sink->end_micro(ex);
    sink->finish(ex);
  }
  /// Runs a step of one micro-batch through embedding and head, groups 0 and 1; returns the head's dX, keeps losses.
  Scratch backward(parallel::Embedding& embedding, parallel::Head& head, const Tensor& x, const Tensor& dy) {
    Scratch dx;
    losses = ex.take("losses", {head.loss_rows(batch.rows())}, DType::f64);
    head.loss_backward(ex, batch, x, {losses}, dx, *sink);
    sink->end_group(ex, 1);
    embedding.backward(ex, batch, dy, *sink);
    sink->end_group(ex, 0);
    sink->end_micro(ex);
    sink->finish(ex);
    return dx;
  }
  DType type;
  device::CpuDevice device{1};
  mesh::Mesh mesh;
  ParamStore store;
  std::unique_ptr<Strategy> strategy;
  std::unique_ptr<GradSink> sink;
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
  double loss_scale = 0.25;
  Batch batch;
  Scratch losses;
};

using Values = std::vector<double>;
using Named = std::map<std::string, Values>;

inline double draw(const std::string& name, int64_t i, bool integers) {
  const uint32_t bits = philox_at(philox_key(11, name), static_cast<uint64_t>(i));
  return integers ? static_cast<double>(bits % 5) - 2 : static_cast<double>(bits) * 0x1p-31 - 1;
}

inline void set(const Tensor& t, int64_t i, double value) {
  if (t.dtype == DType::f64) {
    t.as<double>()[i] = value;
  } else if (t.dtype == DType::bf16) {
    t.as<bf16>()[i] = bf16(value);
  } else {
    t.as<float>()[i] = static_cast<float>(value);
  }
}
inline double get(const Tensor& t, int64_t i) {
  if (t.dtype == DType::bf16) return static_cast<double>(t.as<bf16>()[i]);
  return t.dtype == DType::f64 ? t.as<double>()[i] : static_cast<double>(t.as<float>()[i]);
}

inline void fill_weights(ParamStore& store, bool integers) {
  for (const params::Param& param : store.params()) {
    const Tensor flat = store.groups()[static_cast<size_t>(param.group)].master;
    for (const mesh::Run& run : param.runs)
      for (int64_t i = 0; i < run.length; ++i)
        set(flat, run.local + i * run.stride, draw(param.name, run.global + i, integers));
  }
  store.weights_changed();
}

/// Element (row, col) of a local tensor is element (first_row + row, first_col + col) of the global one, `width` wide;
/// with an order of rows, order[row] takes the place of `row`.
struct Piece {
  int64_t first_row, first_col, width;
  std::span<const int32_t> order = {};
  int64_t row(int64_t r) const { return first_row + (order.empty() ? r : order[static_cast<size_t>(r)]); }
};
inline Scratch local(Rig& rig, const char* name, Shape shape, Piece at, bool integers) {
  Scratch t = rig.ex.take(name, shape, rig.type);
  for (int64_t r = 0; r < shape[0]; ++r)
    for (int64_t c = 0; c < shape[1]; ++c)
      set(t, r * shape[1] + c, draw(name, at.row(r) * at.width + at.first_col + c, integers));
  return t;
}
inline void collect(Named& all, const std::string& name, const Tensor& t, Piece at, int64_t rows) {
  Values& out = all[name];
  out.resize(static_cast<size_t>(rows * at.width), NAN);
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c) {
      double& element = out[static_cast<size_t>(at.row(r) * at.width + at.first_col + c)];
      const double value = get(t, r * t.cols() + c);
      if (!std::isnan(element)) {
        EXPECT_EQ(element, value) << name << ": ranks that share an element";
      }
      element = value;
    }
}
inline void collect_gradients(Named& all, const ParamStore& store) {
  for (const params::Param& param : store.params()) {
    Values& out = all["d" + param.name];
    out.resize(static_cast<size_t>(param.count()), NAN);
    const Tensor flat = store.groups()[static_cast<size_t>(param.group)].grad;
    for (const mesh::Run& run : param.runs)
      for (int64_t i = 0; i < run.length; ++i) {
        double& element = out[static_cast<size_t>(run.global + i)];
        const double value = get(flat, run.local + i * run.stride);
        if (!std::isnan(element)) {
          EXPECT_EQ(element, value) << param.name << ": ranks that share an element";
        }
        element = value;
      }
  }
}

template <typename F>
Named on_ranks(int ranks, F&& body) {
  Named all;
  std::mutex mutex;
  comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) { body(world, all, mutex); });
  return all;
}

/// Returns the largest difference relative to the largest element.
inline double difference(const Values& a, const Values& b) {
  double largest = 0, size = 1e-300;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= largest)) largest = d;
    size = std::max(size, std::abs(b[i]));
  }
  return largest / size;
}

}  // namespace trainer::pieces
