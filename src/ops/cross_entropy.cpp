#include "ops/cross_entropy.h"

#include "ops/cpu/cross_entropy_kernels.h"
#include "ops/operands.h"

namespace trainer::ops {

void run(Exec& ex, const CrossEntropy& op) {
  const int64_t rows = op.logits.rows(), padded = op.logits.cols();
  const DType sums = op.logits.dtype, gradient = op.dlogits ? op.dlogits.dtype : sums;
  const size_t type = kernel_index(gradient, "cross entropy dlogits");
  TRAINER_CHECK(sums == accumulator_of(gradient), "logits are {}, dlogits {}", to_string(op.logits),
                to_string(op.dlogits));
  TRAINER_CHECK(op.vocab >= 1 && op.vocab <= padded, "vocabulary of {}, logits {}", op.vocab, to_string(op.logits));
  expect_count(op.targets, rows, DType::i32, "targets");
  if (op.weights) expect_count(op.weights, rows, sums, "weights");
  expect_count(op.loss, rows, DType::f64, "loss");
  if (op.dlogits) expect_rows(op.dlogits, rows, padded, gradient, "dlogits");
  const double count = static_cast<double>(op.logits.count());
  const OpTimer timer(
      ex.meter, OpKind::loss,
      {(op.dlogits ? 40.0 : 20.0) * count,
       static_cast<double>(op.logits.bytes()) + (op.dlogits ? static_cast<double>(op.dlogits.bytes()) : 0.0)});
  if (ex.device.dry()) return;

  auto weight_of = [&](int64_t r) {
    if (!op.weights) return 1.0;
    return sums == DType::f64 ? op.weights.as<double>()[r] : static_cast<double>(op.weights.as<float>()[r]);
  };
  const int32_t* targets = op.targets.as<int32_t>();
  for (int64_t r = 0; r < rows; ++r)
    TRAINER_CHECK(weight_of(r) == 0 || (targets[r] >= 0 && targets[r] < op.vocab),
                  "target {} of row {}, vocabulary of {}", targets[r], r, op.vocab);
  const auto kernel =
      table_for(ex, plain::cross_entropy_kernels, avx2::cross_entropy_kernels, avx512::cross_entropy_kernels).row[type];
  double* loss = op.loss.as<double>();
  for_row_blocks(ex, rows, rows_per_task(padded), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r)
      loss[r] = kernel({row_at(op.logits, r), op.dlogits ? row_at(op.dlogits, r) : nullptr, op.vocab, padded,
                        targets[r], weight_of(r), op.scale});
  });
}

}  // namespace trainer::ops
