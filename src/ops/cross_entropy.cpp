#include "ops/cross_entropy.h"

#include <cmath>
#include <limits>

#include "base/philox.h"
#include "ops/cpu/cross_entropy_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

const CrossEntropyKernels& cross_entropy_kernels(const Exec& ex) {
  return TRAINER_KERNELS(ex.device.isa(), cross_entropy_kernels);
}

/// Returns the weight of row r; 1 without weights.
double weight_of(const Tensor& weights, int64_t r) {
  if (!weights) return 1.0;
  return weights.dtype == DType::f64 ? weights.as<double>()[r] : static_cast<double>(weights.as<float>()[r]);
}

/// Returns the scale of gradients; 1 without one.
double scale_of(const Tensor& scale) { return scale ? *scale.as<double>() : 1.0; }

/// Checks the outputs among the terms: each has this number of rows.
void expect_terms(const LossTerms& terms, int64_t rows) {
  if (terms.z_loss) expect_count(terms.z_loss, rows, DType::f64, "z loss");
  if (terms.margin) expect_count(terms.margin, rows, DType::f64, "margin");
}
/// Returns the place of a row's value; null: it is not stored.
double* row_of(const Tensor& values, int64_t r) { return values ? values.as<double>() + r : nullptr; }

void check_targets(const Tensor& targets, const Tensor& weights, int64_t vocabulary) {
  const int32_t* target = targets.as<int32_t>();
  for (int64_t r = 0; r < targets.count(); ++r)
    TRAINER_CHECK(weight_of(weights, r) == 0 || (target[r] >= 0 && target[r] < vocabulary),
                  "target {} in row {} is outside the vocabulary of {}", target[r], r, vocabulary);
}

/// Returns the column of row r's target, or −1 if that column is on a different rank.
int64_t target_here(const CrossEntropyShard& shard, int64_t r) {
  const int64_t column = shard.targets.as<int32_t>()[r] - shard.first;
  return column >= 0 && column < shard.vocab ? column : -1;
}
double logit(const Tensor& logits, int64_t r, int64_t column) {
  const int64_t at = r * logits.ld() + column;
  return logits.dtype == DType::f64 ? logits.as<double>()[at] : static_cast<double>(logits.as<float>()[at]);
}

/// Returns the kernel index of the gradient's type. Checks that the logits have its accumulator type.
size_t shard_type(const CrossEntropyShard& shard, DType gradient) {
  TRAINER_CHECK(
      shard.logits.dtype == accumulator_of(gradient) && shard.vocab >= 0 && shard.vocab <= shard.logits.cols(),
      "cross entropy of {} tokens: logits are {}, which does not match a gradient in {}", shard.vocab,
      to_string(shard.logits), name_of(gradient));
  expect_count(shard.targets, shard.logits.rows(), DType::i32, "targets");
  return kernel_index(gradient, "cross entropy gradient");
}

}  // namespace

void run(Exec& ex, const CrossEntropy& op) {
  const int64_t rows = op.logits.rows(), padded = op.logits.cols();
  const DType sums = op.logits.dtype, gradient = op.dlogits ? op.dlogits.dtype : sums;
  const size_t type = kernel_index(gradient, "cross entropy dlogits");
  TRAINER_CHECK(sums == accumulator_of(gradient), "logits are {}, expected the accumulator dtype of dlogits, {}",
                to_string(op.logits), to_string(op.dlogits));
  TRAINER_CHECK(op.vocab >= 1 && op.vocab <= padded, "a vocabulary of {} exceeds the columns of logits, {}", op.vocab,
                to_string(op.logits));
  expect_count(op.targets, rows, DType::i32, "targets");
  if (op.weights) expect_count(op.weights, rows, sums, "weights");
  expect_count(op.loss, rows, DType::f64, "loss");
  if (op.dlogits) expect_rows(op.dlogits, rows, padded, gradient, "dlogits");
  expect_terms(op.terms, rows);
  if (op.scale) expect_count(op.scale, 1, DType::f64, "loss scale");
  const double count = static_cast<double>(op.logits.count());
  const OpTimer timer(
      ex.meter, OpKind::loss,
      {(op.dlogits ? 40.0 : 20.0) * count,
       static_cast<double>(op.logits.bytes()) + (op.dlogits ? static_cast<double>(op.dlogits.bytes()) : 0.0)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;

  check_targets(op.targets, op.weights, op.vocab);
  const int32_t* targets = op.targets.as<int32_t>();
  const auto kernel = cross_entropy_kernels(ex).row[type];
  double* loss = op.loss.as<double>();
  const double scale = scale_of(op.scale);
  for_row_blocks(ex, rows, rows_per_task(padded), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r)
      loss[r] = kernel({row_at(op.logits, r), op.dlogits ? row_at(op.dlogits, r) : nullptr, op.vocab, padded,
                        targets[r], weight_of(op.weights, r), scale, op.terms.z, op.terms.cap,
                        row_of(op.terms.z_loss, r), row_of(op.terms.margin, r)});
  });
}

void run(Exec& ex, const ShardSums& op) {
  const CrossEntropyShard& shard = op.shard;
  const int64_t rows = shard.logits.rows();
  const size_t type = shard_type(shard, shard.logits.dtype);
  expect_count(op.largest, rows, DType::f64, "largest logits");
  expect_count(op.sums, 2 * rows, DType::f64, "sums");
  const OpTimer timer(ex.meter, OpKind::loss,
                      {20.0 * static_cast<double>(shard.logits.count()), bytes_of(shard.logits)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = cross_entropy_kernels(ex).sums[type];
  double *largest = op.largest.as<double>(), *sums = op.sums.as<double>();
  for_row_blocks(ex, rows, rows_per_task(shard.logits.cols()), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      const CrossEntropySums found = shard.vocab > 0 ? kernel(row_at(shard.logits, r), shard.vocab)
                                                     : CrossEntropySums{-std::numeric_limits<double>::infinity(), 0};
      largest[r] = found.largest;
      sums[r] = found.sum;
    }
  });
}

void run(Exec& ex, const ShardRescale& op) {
  const int64_t rows = op.shard.logits.rows();
  for (const Tensor& tensor : {op.largest_here, op.largest}) expect_count(tensor, rows, DType::f64, "largest logits");
  expect_count(op.sums, 2 * rows, DType::f64, "sums");
  const OpTimer timer(ex.meter, OpKind::loss, {10.0 * static_cast<double>(rows), 5 * bytes_of(op.largest)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const double *here = op.largest_here.as<double>(), *largest = op.largest.as<double>();
  double *sums = op.sums.as<double>(), *at_target = sums + rows;
  for (int64_t r = 0; r < rows; ++r) {
    if (op.shard.vocab > 0 && here[r] != largest[r]) sums[r] *= std::exp(here[r] - largest[r]);
    const int64_t target = target_here(op.shard, r);
    at_target[r] = target < 0 ? 0 : logit(op.shard.logits, r, target) - largest[r];
  }
}

void run(Exec& ex, const ShardLoss& op) {
  const CrossEntropyShard& shard = op.shard;
  const int64_t rows = shard.logits.rows(), padded = shard.logits.cols();
  const DType gradient = op.dlogits ? op.dlogits.dtype : shard.logits.dtype;
  const size_t type = shard_type(shard, gradient);
  expect_count(op.largest, rows, DType::f64, "largest logits");
  expect_count(op.sums, 2 * rows, DType::f64, "sums");
  if (op.weights) expect_count(op.weights, rows, shard.logits.dtype, "weights");
  expect_count(op.loss, rows, DType::f64, "loss");
  if (op.dlogits) expect_rows(op.dlogits, rows, padded, gradient, "dlogits");
  expect_terms(op.terms, rows);
  if (op.scale) expect_count(op.scale, 1, DType::f64, "loss scale");
  const double count = op.dlogits ? static_cast<double>(shard.logits.count()) : static_cast<double>(rows);
  const OpTimer timer(ex.meter, OpKind::loss,
                      {20.0 * count, op.dlogits ? bytes_of(shard.logits) + bytes_of(op.dlogits) : 0.0});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  check_targets(shard.targets, op.weights, op.vocabulary);
  const auto kernel = cross_entropy_kernels(ex).gradient[type];
  const double *largest = op.largest.as<double>(), *sums = op.sums.as<double>();
  double* loss = op.loss.as<double>();
  const double scale = scale_of(op.scale);
  for_row_blocks(ex, rows, rows_per_task(padded), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      const double weight = weight_of(op.weights, r);
      const double log_sum = std::isfinite(sums[r]) ? portable_log(sums[r]) : sums[r];
      loss[r] = weight == 0 ? 0 : weight * (log_sum - sums[rows + r]);
      const double lse = largest[r] + log_sum;
      if (op.terms.z_loss) *row_of(op.terms.z_loss, r) = weight == 0 ? 0 : weight * op.terms.z * lse * lse;
      if (op.terms.margin) *row_of(op.terms.margin, r) = weight == 0 ? 0 : sums[rows + r];
      if (op.dlogits)
        kernel({row_at(shard.logits, r), row_at(op.dlogits, r), shard.vocab, padded, target_here(shard, r), weight,
                scale, op.terms.z, op.terms.cap, nullptr, nullptr},
               {largest[r], sums[r]});
    }
  });
}

}  // namespace trainer::ops
