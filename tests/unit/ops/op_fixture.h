#pragma once
// Helpers of the tests of row-wise operators: tensors in their own memory, and runs on every instruction set of this
// machine and several numbers of threads, whose results must agree in every bit.
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "unit/ops/test_device.h"

namespace trainer::ops::testing {

using device::Isa;

/// A tensor in its own memory, rows `gap` elements further apart than they are long; the gaps hold a sentinel.
class TestTensor {
 public:
  TestTensor() = default;
  TestTensor(Shape shape, DType dtype, int64_t gap = 0) {
    const int64_t pitch = shape[-1] + gap, rows = shape[-1] == 0 ? 0 : shape.count() / shape[-1];
    memory_.assign(static_cast<size_t>(std::max<int64_t>(1, rows * pitch * size_of(dtype))), std::byte{0x5a});
    tensor_ = {memory_.data(), shape, dtype, gap == 0 ? 0 : pitch};
  }
  TestTensor(const TestTensor& other) : memory_(other.memory_), tensor_(other.tensor_) {
    tensor_.data = memory_.data();
  }
  TestTensor& operator=(TestTensor other) {
    memory_.swap(other.memory_);
    tensor_ = other.tensor_;
    tensor_.data = tensor_ ? memory_.data() : nullptr;
    return *this;
  }
  operator Tensor() { return tensor_; }
  const Tensor& tensor() const { return tensor_; }
  const std::vector<std::byte>& memory() const { return memory_; }

  double at(int64_t i) const { return at(i / tensor_.cols(), i % tensor_.cols()); }
  double at(int64_t r, int64_t c) const {
    const int64_t i = r * tensor_.ld() + c;
    if (tensor_.dtype == DType::f64) return tensor_.as<double>()[i];
    if (tensor_.dtype == DType::f32) return static_cast<double>(tensor_.as<float>()[i]);
    if (tensor_.dtype == DType::bf16) return static_cast<double>(tensor_.as<bf16>()[i]);
    return tensor_.as<int32_t>()[i];
  }
  void set(int64_t i, double value) {
    const int64_t at = i / tensor_.cols() * tensor_.ld() + i % tensor_.cols();
    if (tensor_.dtype == DType::f64) {
      tensor_.as<double>()[at] = value;
    } else if (tensor_.dtype == DType::f32) {
      tensor_.as<float>()[at] = static_cast<float>(value);
    } else if (tensor_.dtype == DType::bf16) {
      tensor_.as<bf16>()[at] = bf16(value);
    } else {
      tensor_.as<int32_t>()[at] = static_cast<int32_t>(value);
    }
  }
  template <typename F>
  TestTensor& fill(F&& next) {
    for (int64_t i = 0; i < tensor_.count(); ++i) set(i, next());
    return *this;
  }
  int64_t count() const { return tensor_.count(); }
  bool gaps_intact() const {
    const int64_t size = size_of(tensor_.dtype);
    for (int64_t r = 0; r < tensor_.rows(); ++r)
      for (int64_t byte = (r * tensor_.ld() + tensor_.cols()) * size; byte < (r + 1) * tensor_.ld() * size; ++byte)
        if (memory_[static_cast<size_t>(byte)] != std::byte{0x5a}) return false;
    return true;
  }

 private:
  std::vector<std::byte> memory_;
  Tensor tensor_;
};

/// Normal draws from a fixed seed.
class Normal {
 public:
  explicit Normal(uint64_t seed, double mean = 0, double std = 1) : engine_(seed), draw_(mean, std) {}
  double operator()() { return draw_(engine_); }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> draw_;
};

/// Calls body(ex), which runs operators on copies of its operands and returns the results, on a CPU for every
/// instruction set and 1, 2, 3, 7 threads, or on a CUDA device in several orders of its blocks; results may depend on
/// the instruction set only. check(results) sees each set's results once.
inline void on_every_device(const std::function<std::vector<TestTensor>(TestExec&)>& body,
                            const std::function<void(const std::vector<TestTensor>&)>& check) {
  for (const Isa isa : instruction_sets()) {
    std::vector<TestTensor> first;
    bool checked = false;
    const auto run_once = [&](int threads) {
      Machine machine(threads, isa);
      const std::vector<TestTensor> results = body(machine.ex);
      for (const TestTensor& grid : results) EXPECT_TRUE(grid.gaps_intact());
      if (!checked) {
        first = results;
        check(results);
        checked = true;
      }
      ASSERT_EQ(results.size(), first.size());
      for (size_t i = 0; i < results.size(); ++i)
        EXPECT_TRUE(results[i].memory() == first[i].memory()) << "result " << i << " depends on threads or their order";
    };
    if (on_cuda()) {
      for_each_order([&] { run_once(1); });
      continue;
    }
    for (const int threads : {1, 2, 3, 7}) {
      SCOPED_TRACE(format("{}, {} threads", device::name_of(isa), threads));
      run_once(threads);
    }
  }
}

template <typename T>
inline constexpr double kEps = std::numeric_limits<double>::epsilon();
template <>
inline constexpr double kEps<float> = std::numeric_limits<float>::epsilon();
template <>
inline constexpr double kEps<bf16> = 0x1p-8;

/// Expects |got − want| <= k·ε_accumulator·scale + rounding of the store.
template <typename T>
void expect_close(double got, double want, double k, double scale, const std::string& what) {
  const double bound = k * kEps<AccumulatorOf<T>> * scale + kEps<T> * std::abs(want) + 1e-300;
  EXPECT_LE(std::abs(got - want), bound) << what << ": got " << got << ", want " << want;
}

using ComputeTypes = ::testing::Types<double, float, bf16>;

}  // namespace trainer::ops::testing
