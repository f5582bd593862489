#pragma once
// The device that a suite of operators runs on: CPUs of every instruction set, or, where TRAINER_TEST_DEVICE=cuda is
// set and in the programs that are linked with the emulated runtime, a CUDA device; there TRAINER_TEST_ATTENTION=cudnn
// selects cuDNN's attention. Operands stay in host memory: on a CUDA device an operator gets copies of them, which are
// copied back.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "cuda/emulation/emulator.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/ops.h"
#include "ops/grouped_gemm.h"
#include "ops/routing.h"
#include "tensor/exec.h"

namespace emulator {
[[gnu::weak]] void set_order(Order order);  // defined only in programs that are linked with the emulated runtime
}

namespace trainer::ops::testing {

inline bool emulated() { return emulator::set_order != nullptr; }

inline bool on_cuda() {
  if (emulated()) return true;
  const char* requested = std::getenv("TRAINER_TEST_DEVICE");
  return requested != nullptr && std::string_view(requested) == "cuda";
}

/// Calls fn for every order in which the device may start blocks and threads; an emulated one tries three.
template <typename F>
void for_each_order(F&& fn) {
  for (const auto order : {emulator::Order::descending, emulator::Order::shuffled, emulator::Order::ascending}) {
    if (emulated()) emulator::set_order(order);
    fn();
  }
}

inline std::unique_ptr<device::Device> make_test_device(int threads, device::Isa isa) {
  if (!on_cuda()) return std::make_unique<device::CpuDevice>(threads, isa);
  auto device = device::cuda::make_device(0, threads);
  const char* attention = std::getenv("TRAINER_TEST_ATTENTION");
  if (attention != nullptr && std::string_view(attention) == "cudnn")
    device->libraries()->attention = cudnn_attention(device->gpu(), /*deterministic=*/true);
  return device;
}

/// Skips a case that the CUDA device cannot run: fp64, and everything if there is no GPU.
struct DeviceTest : ::testing::Test {
  void SetUp() override {
    if (!on_cuda()) return;
    if (device::cuda::devices().empty()) GTEST_SKIP() << device::cuda::no_device_reason();
    try {
      make_test_device(1, device::Isa::plain);
    } catch (const Error& error) {
      if (error.code() != Code::usage) throw;
      GTEST_SKIP() << error.what();
    }
    const char* type = ::testing::UnitTest::GetInstance()->current_test_info()->type_param();
    if (type != nullptr && std::string_view(type) == "double") GTEST_SKIP() << "fp64 is computed on CPUs only";
  }
};
/// Begins a test of features that only CPUs have.
#define SKIP_ON_CUDA(why) \
  if (::trainer::ops::testing::on_cuda()) GTEST_SKIP() << why

/// An operator's tensors, including those that are not given.
using Operands = std::vector<Tensor*>;
inline Operands operands(Gemm& o) {
  return {&o.a, &o.b, &o.c, &o.epilogue.bias, &o.epilogue.pre, &o.epilogue.residual, &o.packed_b};
}
inline Operands operands(PackB& o) { return {&o.b, &o.packed}; }
inline Operands operands(AttentionForward& o) { return {&o.q, &o.k, &o.v, &o.out, &o.lse, &o.mask.first}; }
inline Operands operands(AttentionBackward& o) {
  return {&o.q, &o.k, &o.v, &o.out, &o.lse, &o.dout, &o.dq, &o.dk, &o.dv, &o.mask.first};
}
inline Operands operands(MergeAttention& o) { return {&o.part, &o.part_lse, &o.sum, &o.sum_lse}; }
inline Operands operands(NormForward& o) { return {&o.x, &o.gain, &o.bias, &o.y, &o.mean, &o.rstd}; }
inline Operands operands(NormApply& o) { return {&o.x, &o.gain, &o.bias, &o.mean, &o.rstd, &o.y}; }
inline Operands operands(NormBackward& o) {
  return {&o.dy, &o.x, &o.gain, &o.mean, &o.rstd, &o.residual, &o.dx, &o.dgain, &o.dbias};
}
inline Operands operands(NormMoments& o) { return {&o.x, &o.moments}; }
inline Operands operands(NormMerge& o) { return {&o.all, &o.mean, &o.rstd}; }
inline Operands operands(SplitNormSums& o) { return {&o.dy, &o.x, &o.gain, &o.mean, &o.rstd, &o.sums}; }
inline Operands operands(SplitNormBackward& o) {
  return {&o.dy, &o.x, &o.gain, &o.mean, &o.rstd, &o.sums, &o.residual, &o.dx, &o.dgain, &o.dbias};
}
inline Operands operands(BiasActivation& o) { return {&o.x, &o.bias, &o.pre, &o.y}; }
inline Operands operands(ActivationBackward& o) { return {&o.dy, &o.x, &o.dx}; }
inline Operands operands(Add& o) { return {&o.x, &o.other, &o.y, &o.bias}; }
inline Operands operands(Scale& o) { return {&o.x}; }
inline Operands operands(SoftCap& o) { return {&o.x}; }
inline Operands operands(GatedForward& o) { return {&o.gate, &o.up, &o.y, &o.weights}; }
inline Operands operands(GatedBackward& o) {
  return {&o.dy, &o.gate, &o.up, &o.dgate, &o.dup, &o.weights, &o.dweights};
}
inline Operands operands(Sigmoid& o) { return {&o.x, &o.y}; }
inline Operands operands(SigmoidBackward& o) { return {&o.dy, &o.y, &o.dx}; }
inline Operands operands(Route& o) { return {&o.logits, &o.choices, &o.weights, &o.lse, &o.counts, &o.order}; }
inline Operands operands(SortRows& o) { return {&o.choices, &o.order, &o.place}; }
inline Operands operands(GatherRows& o) { return {&o.x, &o.index, &o.y}; }
inline Operands operands(CombineRows& o) { return {&o.rows, &o.place, &o.y, &o.residual}; }
inline Operands operands(RouteBackward& o) {
  return {&o.dweights, &o.logits, &o.lse, &o.choices, &o.weights, &o.counts, &o.dl, &o.terms, &o.order};
}
inline Operands operands(GroupedGemm& o) { return {&o.a, &o.b, &o.c}; }
inline Operands operands(GroupedWeightGradient& o) { return {&o.x, &o.dy, &o.dw}; }
inline Operands operands(Rope& o) { return {&o.x, &o.table, &o.position_ids}; }
inline Operands operands(EmbeddingForward& o) { return {&o.ids, &o.table, &o.positions, &o.y, &o.position_ids}; }
inline Operands operands(AddPositions& o) { return {&o.positions, &o.y, &o.position_ids}; }
inline Operands operands(EmbeddingBackward& o) { return {&o.ids, &o.order, &o.dy, &o.dtable}; }
inline Operands operands(PositionsBackward& o) { return {&o.dy, &o.dpositions}; }
inline Operands operands(CrossEntropy& o) {
  return {&o.logits, &o.targets, &o.weights, &o.loss, &o.dlogits, &o.scale, &o.terms.z_loss};
}
inline Operands operands(ShardSums& o) { return {&o.shard.logits, &o.shard.targets, &o.largest, &o.sums}; }
inline Operands operands(ShardRescale& o) {
  return {&o.shard.logits, &o.shard.targets, &o.largest_here, &o.largest, &o.sums};
}
inline Operands operands(ShardLoss& o) {
  return {&o.shard.logits, &o.shard.targets, &o.largest, &o.sums,        &o.weights,
          &o.loss,         &o.dlogits,       &o.scale,   &o.terms.z_loss};
}
inline Operands operands(DropoutAdd& o) { return {&o.x, &o.residual, &o.y, &o.bias, &o.site.order}; }
inline Operands operands(ColumnSum& o) { return {&o.x, &o.sums}; }
inline Operands operands(Cast& o) { return {&o.x, &o.y}; }
inline Operands operands(Copy& o) { return {&o.x, &o.y}; }
inline Operands operands(Update& o) {
  Operands all{&o.p, &o.g, &o.compute};
  for (const Tensor& state : o.states) all.push_back(const_cast<Tensor*>(&state));
  return all;
}
inline Operands operands(SquaredNorm& o) { return {&o.x, &o.blocks}; }
inline Operands operands(SquaredNorms& o) {
  Operands all;
  for (const SquaredNorm& part : o.parts) {
    all.push_back(const_cast<Tensor*>(&part.x));
    all.push_back(const_cast<Tensor*>(&part.blocks));
  }
  return all;
}
inline Operands operands(Fingerprints& o) {
  Operands all = {&o.sums};
  for (const Fingerprint& part : o.parts) all.push_back(const_cast<Tensor*>(&part.x));
  return all;
}
inline Operands operands(MuonMomentum& o) { return {&o.m, &o.g}; }
inline Operands operands(GatherStrips& o) { return {&o.flat, &o.strips, &o.packed}; }
inline Operands operands(ScatterStrips& o) { return {&o.packed, &o.strips, &o.flat}; }
inline Operands operands(MuonNormalize& o) { return {&o.x, &o.blocks}; }
inline Operands operands(MuonCombine& o) { return {&o.product, &o.x, &o.y}; }

/// Exec whose operators take operands in host memory.
struct TestExec : Exec {};

/// Calls ops::run, on copies if the device cannot access host memory. Overlapping tensors are copied as one block.
template <typename Op>
void run(TestExec& ex, Op op) {
  if (ex.device.kind() == device::DeviceKind::cpu || ex.device.dry()) return ops::run(static_cast<Exec&>(ex), op);
  struct Block {
    std::byte *begin, *end, *there;
  };
  std::vector<Block> blocks;
  const auto end_of = [](const Tensor& t) {
    return t.data + (t.count() == 0 ? 0 : ((t.rows() - 1) * t.ld() + t.cols()) * size_of(t.dtype));
  };
  for (const Tensor* t : operands(op)) {
    if (t->data == nullptr) continue;
    Block joined{t->data, end_of(*t), nullptr};
    std::erase_if(blocks, [&](const Block& other) {
      if (other.end <= joined.begin || joined.end <= other.begin) return false;
      joined.begin = std::min(joined.begin, other.begin);
      joined.end = std::max(joined.end, other.end);
      return true;
    });
    blocks.push_back(joined);
  }
  for (Block& block : blocks) {
    // As far from a multiple of 16 bytes as in host memory, so that unaligned operands stay unaligned.
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(block.begin) % 16);
    block.there = ex.device.allocate("operands", block.end - block.begin + offset) + offset;
    ex.device.copy_to_device(block.there, block.begin, block.end - block.begin);
  }
  for (Tensor* t : operands(op))
    for (const Block& block : blocks)
      if (t->data >= block.begin && end_of(*t) <= block.end) {
        t->data = block.there + (t->data - block.begin);
        break;
      }
  const auto give_back = [&] {
    for (const Block& block : blocks) {
      const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(block.begin) % 16);
      ex.device.release("operands", block.there - offset, block.end - block.begin + offset);
    }
  };
  try {
    ops::run(static_cast<Exec&>(ex), op);
    for (const Block& block : blocks) ex.device.copy_to_host(block.begin, block.there, block.end - block.begin);
  } catch (...) {
    give_back();
    throw;
  }
  give_back();
}

/// A device with a heap arena.
struct Machine {
  explicit Machine(int threads, device::Isa isa = device::detect_isa()) : device(make_test_device(threads, isa)) {}
  std::unique_ptr<device::Device> device;
  Arena arena{*device, Arena::Mode::heap};
  Meter meter;
  TestExec ex{{*device, arena, meter}};
};

/// Returns the instruction sets of this CPU; on CUDA a single one.
inline std::vector<device::Isa> instruction_sets() {
  if (on_cuda()) return {device::Isa::plain};
  std::vector<device::Isa> sets;
  for (const device::Isa isa : device::kIsas)
    if (isa <= device::detect_isa() && device::available(isa)) sets.push_back(isa);
  return sets;
}

}  // namespace trainer::ops::testing
