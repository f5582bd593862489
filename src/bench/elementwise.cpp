#include "bench/elementwise.h"

#include "base/philox.h"
#include "ops/activation.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "ops/op_timing.h"
#include "ops/rope.h"
#include "ops/routing.h"
#include "tensor/host_copy.h"

namespace trainer::bench {

ElementwiseRates bench_elementwise(Exec& ex, DType compute, int64_t bytes, int repeats) {
  constexpr int64_t kCols = 2048, kHeadDim = 64, kVocab = 50304, kSequence = 64;
  const int64_t size = size_of(compute), rows = round_up(std::max<int64_t>(1, bytes / (kCols * size)), kSequence);
  const DType sum = accumulator_of(compute);
  TRAINER_CHECK(repeats >= 1, "bench_elementwise() requires at least one repeat, not {}", repeats);
  const auto buffer = [&](Shape shape, DType dtype) { return Buffer(ex.device, "bench", shape, dtype); };
  const Buffer x = buffer({rows, kCols}, compute), y = buffer({rows, kCols}, compute),
               z = buffer({rows, kCols}, compute), u = buffer({rows, kCols}, compute),
               v = buffer({rows, kCols}, compute);
  const Buffer gain = buffer({kCols}, compute), bias = buffer({kCols}, compute), dgain = buffer({kCols}, sum),
               dbias = buffer({kCols}, sum), mean = buffer({rows}, sum), rstd = buffer({rows}, sum);
  for (const auto& [tensor, name] : {std::pair{&x, "x"}, {&y, "y"}, {&z, "z"}, {&gain, "gain"}, {&bias, "bias"}})
    ops::fill_uniform(ex.device, *tensor, name);

  ElementwiseRates rates;
  rates.copy_gb_per_s =
      2e-9 * static_cast<double>(x.tensor().bytes()) / ops::median_seconds(ex, ops::Copy{x, u}, repeats);
  const auto time = [&](const char* name, const auto& op, double operand_bytes) {
    const double seconds = ops::median_seconds(ex, op, repeats);
    const double rate = operand_bytes / seconds * 1e-9;
    rates.operators.push_back({name, seconds, rate, rate / rates.copy_gb_per_s});
  };
  const double operand = static_cast<double>(x.tensor().bytes()), statistic = static_cast<double>(rows * size_of(sum));
  time("layer norm", ops::NormForward{.x = x, .gain = gain, .bias = bias, .y = u, .mean = mean, .rstd = rstd},
       2 * operand + 2 * statistic);
  time("layer norm backward",
       ops::NormBackward{.dy = y,
                         .x = x,
                         .gain = gain,
                         .mean = mean,
                         .rstd = rstd,
                         .residual = z,
                         .dx = u,
                         .dgain = dgain,
                         .dbias = dbias},
       4 * operand + 2 * statistic);
  time("RMS norm",
       ops::NormForward{.x = x, .gain = gain, .bias = {}, .y = u, .mean = {}, .rstd = rstd, .center = false},
       2 * operand + statistic);
  time("GELU", ops::BiasActivation{.x = x, .bias = {}, .pre = {}, .y = u, .act = ops::Activation::gelu}, 2 * operand);
  time("SwiGLU", ops::GatedForward{x, y, u}, 3 * operand);
  time("SwiGLU backward", ops::GatedBackward{z, x, y, u, v}, 5 * operand);
  const Buffer weights = buffer({rows}, sum), dweights = buffer({rows}, sum);
  time("SwiGLU, weights", ops::GatedForward{x, y, u, weights}, 3 * operand + statistic);
  time("SwiGLU backward, weights", ops::GatedBackward{z, x, y, u, v, weights, dweights}, 5 * operand + 2 * statistic);
  {  // two experts, each of which computes half as many rows as x has
    const int64_t half = rows / 2;
    const Buffer order = buffer({rows}, DType::i32), place = buffer({rows}, DType::i32);
    HostCopy orders(ex.device, order), places(ex.device, place);
    for (int64_t i = 0; i < rows; ++i) {
      orders.tensor().as<int32_t>()[i] = static_cast<int32_t>(2 * (i % half) + i / half);
      places.tensor().as<int32_t>()[i] = static_cast<int32_t>(i % 2 * half + i / 2);
    }
    orders.put();
    places.put();
    time("gather rows of experts", ops::GatherRows{x.tensor().row_range(0, half), order, u, 2}, 1.5 * operand);
    time("combine rows of experts", ops::CombineRows{y, place, u.tensor().row_range(0, half)}, 1.5 * operand);
  }
  time("dropout and residual",
       ops::DropoutAdd{.x = x,
                       .residual = y,
                       .y = u,
                       .site = {.p = 0.1, .key = philox_key(1, "mask"), .width = kCols},
                       .bias = bias},
       3 * operand);
  time("bias gradient", ops::ColumnSum{x, dbias}, operand);
  {
    const Buffer table = buffer({kSequence, kHeadDim}, sum);
    HostCopy here(ex.device, table);
    ops::fill_rope_table(here.tensor(), 1e4);
    here.put();
    time("rotary positions", ops::Rope{.x = z, .table = table, .head_dim = kHeadDim, .rows_per_sequence = kSequence},
         2 * operand);
  }
  if (compute == DType::bf16) {
    const Buffer wide = buffer({rows, kCols}, DType::f32);
    time("cast to fp32", ops::Cast{x, wide}, 3 * operand);
    time("cast to bf16", ops::Cast{wide, x}, 3 * operand);
  }
  {
    const int64_t tokens = std::max<int64_t>(1, bytes / (kVocab * size_of(sum)));
    const Buffer logits = buffer({tokens, kVocab}, sum), gradient = buffer({tokens, kVocab}, compute),
                 targets = buffer({tokens}, DType::i32), loss = buffer({tokens}, DType::f64);
    ops::fill_uniform(ex.device, logits, "logits");
    time("cross-entropy, gradient",
         ops::CrossEntropy{
             .logits = logits, .targets = targets, .weights = {}, .loss = loss, .dlogits = gradient, .vocab = kVocab},
         static_cast<double>(logits.tensor().bytes() + gradient.tensor().bytes()));
  }
  return rates;
}

}  // namespace trainer::bench
