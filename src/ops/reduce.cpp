#include "ops/reduce.h"

#include "ops/cpu/elementwise_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {

void sum_partials(Exec& ex, const Tensor& partials, const Tensor& sums, bool accumulate) {
  constexpr int64_t kColumns = 256;
  const auto kernel =
      TRAINER_KERNELS(ex.device.isa(), elementwise_kernels).partial_sum[kernel_index(sums.dtype, "sums")];
  for_row_blocks(ex, sums.count(), kColumns, [&](int64_t first, int64_t n) {
    kernel(partials.data, partials.rows(), partials.ld(), sums.data, accumulate, first, n);
  });
}

void PartialSums::add(Scratch partials, std::initializer_list<ColumnSums> sums) {
  const auto given = std::ranges::count_if(sums, [](const ColumnSums& each) { return static_cast<bool>(each.sums); });
  if (given == 0) return;
  const Tensor& all = partials;
  const int64_t blocks = all.rows() / given;
  TRAINER_CHECK(all.rows() % given == 0, "{} blocks of {} sums", all.rows(), given);
  int64_t first = 0;
  for (const ColumnSums& each : sums) {
    if (!each.sums) continue;
    expect_count(each.sums, all.cols(), DType::f32, "column sums");
    TRAINER_CHECK(each.sums.data == nullptr ||
                      std::ranges::none_of(sums_, [&](const Sum& s) { return s.into.sums.data == each.sums.data; }),
                  "column sums are written twice before they are added up");
    sums_.push_back({all.row_range(first, blocks), each});
    first += blocks;
  }
  memory_.push_back(std::move(partials));
}

void PartialSums::finish(Exec& ex) {
  if (sums_.empty()) return;
  double count = 0;
  for (const Sum& each : sums_) count += static_cast<double>(each.partials.count());
  {
    const OpTimer timer(ex.meter, OpKind::column_sum, {count, sizeof(float) * count});
    cuda::add_up(ex, sums_);
  }
  sums_.clear();
  memory_.clear();
}

}  // namespace trainer::ops
