#include "ops/routing.h"

#include <array>
#include <cstring>
#include <optional>
#include <type_traits>

#include "ops/cpu/routing_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

const RoutingKernels& routing_kernels_of(const Exec& ex) { return TRAINER_KERNELS(ex.device.isa(), routing_kernels); }

void check_router(int64_t experts, int64_t per_row) {
  TRAINER_CHECK(experts >= 1 && experts <= kMostExperts && per_row >= 1 && per_row <= std::min(kMostChoices, experts),
                "{} of {} experts per row: at most {} of {}", per_row, experts, kMostChoices, kMostExperts);
}
/// The lines of counts that rows belong to.
struct Lines {
  template <typename Op>
  Lines(const Exec& ex, const Op& op, int64_t rows, int64_t experts)
      : first_row(op.first_row),
        rows_per_line(op.rows_per_count == 0 ? INT64_MAX : op.rows_per_count),
        count(op.counts.count() / experts) {
    expect_count(op.counts, count * experts, DType::i32, "router counts");
    if (op.order && op.rows_per_count > 0) {
      expect_places(ex, op.order, rows, count * rows_per_line, "order of routed rows");
      order = op.order.template as<int32_t>();
    } else {
      TRAINER_CHECK(first_row >= 0 && (rows == 0 || of(rows - 1) < count),
                    "rows {} to {}, {} per line of {} lines of counts", first_row, first_row + rows, rows_per_line,
                    count);
    }
  }
  int64_t of(int64_t row) const { return (order != nullptr ? order[row] : first_row + row) / rows_per_line; }
  /// Returns the end of the rows from `row` on that belong to the same line, at most `most`.
  int64_t end(int64_t row, int64_t most) const {
    const int64_t line = of(row);
    while (++row < most && of(row) == line) {
    }
    return row;
  }
  int64_t first_row, rows_per_line, count;
  const int32_t* order = nullptr;
};

std::byte* element(const Tensor& packed, int64_t i) { return packed.data + i * size_of(packed.dtype); }

/// Calls fn with the bytes of a row, as a constant for single elements: weights, and their gradients.
template <typename F>
void with_width(int64_t width, F&& fn) {
  switch (width) {
    case 4:
      return fn(std::integral_constant<size_t, 4>());
    case 8:
      return fn(std::integral_constant<size_t, 8>());
    default:
      return fn(static_cast<size_t>(width));
  }
}

}  // namespace

void run(Exec& ex, const Route& op) {
  const int64_t rows = op.logits.rows(), experts = op.logits.cols(), k = op.choices.cols();
  const size_t type = state_index(op.logits.dtype, "router logits");
  check_router(experts, k);
  expect_count(op.logits, rows * experts, op.logits.dtype, "router logits");
  expect_count(op.choices, rows * k, DType::i32, "router choices");
  expect_count(op.weights, rows * k, op.logits.dtype, "router weights");
  expect_count(op.lse, rows, op.logits.dtype, "router lse");
  std::optional<Lines> lines;
  if (op.counts) lines.emplace(ex, op, rows, experts);
  const OpTimer timer(ex.meter, OpKind::elementwise,
                      {20.0 * static_cast<double>(op.logits.count()),
                       bytes_of(op.logits) + bytes_of(op.choices) + bytes_of(op.weights) + bytes_of(op.lse)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  int32_t* const choices = op.choices.as<int32_t>();
  const auto kernel = routing_kernels_of(ex).route[type];
  for_row_blocks(ex, rows, rows_per_task(8 * experts), [&](int64_t first, int64_t n) {
    if (op.from == Route::From::balanced)
      for (int64_t i = first * k; i < (first + n) * k; ++i) {
        const int64_t row = op.order ? op.order.as<int32_t>()[i / k] : op.first_row + i / k;
        choices[i] = static_cast<int32_t>((row * k + i % k) % experts);
      }
    kernel({.logits = element(op.logits, first * experts),
            .choices = choices + first * k,
            .weights = element(op.weights, first * k),
            .lse = element(op.lse, first),
            .rows = n,
            .experts = experts,
            .per_row = k,
            .given = op.from != Route::From::logits,
            .normalize = op.normalize});
  });
  if (!lines) return;
  int32_t* const counts = op.counts.as<int32_t>();
  std::fill_n(counts, op.counts.count(), 0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < k; ++j) ++counts[lines->of(r) * experts + choices[r * k + j]];
}

void run(Exec& ex, const SortRows& op) {
  const int64_t n = op.choices.count();
  TRAINER_CHECK(op.experts >= 1 && op.experts <= kMostExperts, "sorting rows by {} experts: at most {}", op.experts,
                kMostExperts);
  expect_count(op.choices, n, DType::i32, "choices");
  expect_count(op.order, n, DType::i32, "order of rows");
  expect_count(op.place, n, DType::i32, "places of rows");
  const OpTimer timer(ex.meter, OpKind::elementwise, {0, bytes_of(op.choices, 4)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const int32_t* const choices = op.choices.as<int32_t>();
  int32_t *const order = op.order.as<int32_t>(), *const place = op.place.as<int32_t>();
  std::array<int32_t, kMostExperts + 1> next{};  // the place of the next choice of each expert
  for (int64_t i = 0; i < n; ++i) {
    TRAINER_CHECK(choices[i] >= 0 && choices[i] < op.experts, "row {} chose expert {} of {}", i, choices[i],
                  op.experts);
    ++next[static_cast<size_t>(choices[i]) + 1];
  }
  for (size_t e = 1; e < static_cast<size_t>(op.experts); ++e) next[e] += next[e - 1];
  for (int64_t i = 0; i < n; ++i) {
    place[i] = next[static_cast<size_t>(choices[i])]++;
    order[place[i]] = static_cast<int32_t>(i);
  }
}

void run(Exec& ex, const GatherRows& op) {
  const int64_t rows = op.index.count(), size = size_of(op.x.dtype), width = op.y.cols() * size;
  expect_count(op.index, rows, DType::i32, "row index");
  expect_rows(op.y, rows, op.x.cols(), op.x.dtype, "gathered rows");
  const OpTimer timer(ex.meter, OpKind::elementwise, {0, bytes_of(op.y, 2) + bytes_of(op.index)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const int32_t* const index = op.index.as<int32_t>();
  const int64_t from_pitch = op.x.ld() * size, to_pitch = op.y.ld() * size;
  for_row_blocks(ex, rows, rows_per_task(op.y.cols()), [&](int64_t first, int64_t n) {
    with_width(width, [&](auto bytes) {
      for (int64_t i = first; i < first + n; ++i) {
        std::byte* const to = op.y.data + i * to_pitch;
        if (index[i] < 0)
          std::memset(to, 0, bytes);
        else
          std::memcpy(to, op.x.data + index[i] / op.per_row * from_pitch, bytes);
      }
    });
  });
}

void run(Exec& ex, const CombineRows& op) {
  const int64_t rows = op.y.rows(), cols = op.y.cols(), k = rows == 0 ? 1 : op.place.count() / rows;
  const size_t type = kernel_index(op.rows.dtype, "rows to combine");
  expect_rows(op.rows, op.rows.rows(), cols, op.rows.dtype, "rows to combine");
  TRAINER_CHECK(op.y.dtype == op.rows.dtype || op.y.dtype == accumulator_of(op.rows.dtype),
                "{} cannot be combined as {}", to_string(op.rows), name_of(op.y.dtype));
  expect_count(op.place, rows * k, DType::i32, "places of rows");
  if (op.residual) expect_rows(op.residual, rows, cols, op.y.dtype, "residual of combined rows");
  TRAINER_CHECK(k <= kMostChoices, "{} rows cannot be combined, at most {}", k, kMostChoices);
  const OpTimer timer(
      ex.meter, OpKind::elementwise,
      {static_cast<double>(k * op.y.count()), static_cast<double>(k * op.y.count() * size_of(op.rows.dtype)) +
                                                  bytes_of(op.y) + bytes_of(op.place) + bytes_of(op.residual)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = routing_kernels_of(ex).combine[op.y.dtype == op.rows.dtype ? 0 : 1][type];
  for_row_blocks(ex, rows, rows_per_task(k * cols), [&](int64_t first, int64_t n) {
    kernel({.from = op.rows.data,
            .ld_from = op.rows.ld(),
            .place = op.place.as<int32_t>() + first * k,
            .residual = op.residual ? row_at(op.residual, first) : nullptr,
            .ld_residual = op.residual.ld(),
            .y = row_at(op.y, first),
            .ldy = op.y.ld(),
            .rows = n,
            .cols = cols,
            .per_row = k});
  });
}

void run(Exec& ex, const RouteBackward& op) {
  const int64_t rows = op.logits.rows(), experts = op.logits.cols(), k = op.choices.cols();
  const size_t type = kernel_index(op.dl.dtype, "router gradient");
  const DType sums = accumulator_of(op.dl.dtype);
  check_router(experts, k);
  expect_count(op.logits, rows * experts, sums, "router logits");
  expect_count(op.lse, rows, sums, "router lse");
  expect_count(op.choices, rows * k, DType::i32, "router choices");
  expect_count(op.weights, rows * k, sums, "router weights");
  expect_count(op.dweights, rows * k, sums, "gradient of router weights");
  expect_count(op.dl, rows * experts, op.dl.dtype, "router gradient");
  if (op.terms) expect_count(op.terms, rows * 3, sums, "router loss terms");
  std::optional<Lines> lines;
  if (op.counts) lines.emplace(ex, op, rows, experts);
  TRAINER_CHECK(!op.counts || op.counted_rows > 0, "counts of {} rows", op.counted_rows);
  const OpTimer timer(ex.meter, OpKind::elementwise,
                      {40.0 * static_cast<double>(op.logits.count()), bytes_of(op.logits) + bytes_of(op.dl)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  const int64_t all = lines ? lines->count * experts : experts;
  const Scratch shares = ex.take("route", {all}, sums);  // f of all lines
  if (ex.device.dry()) return;
  for (int64_t i = 0; i < all; ++i) {
    const double f = lines ? op.counts.as<int32_t>()[i] / static_cast<double>(k * op.counted_rows) : 0;
    sums == DType::f64 ? shares.tensor().as<double>()[i] = f : shares.tensor().as<float>()[i] = static_cast<float>(f);
  }
  const auto kernel = routing_kernels_of(ex).backward[type];
  for_row_blocks(ex, rows, rows_per_task(8 * experts), [&](int64_t begin, int64_t n) {
    for (int64_t first = begin, end; first < begin + n; first = end) {  // the rows of one line
      const int64_t line = lines ? lines->of(first) : 0;
      end = lines ? lines->end(first, begin + n) : begin + n;
      kernel({.dweights = element(op.dweights, first * k),
              .logits = element(op.logits, first * experts),
              .lse = element(op.lse, first),
              .weights = element(op.weights, first * k),
              .f = element(shares, line * experts),
              .choices = op.choices.as<int32_t>() + first * k,
              .dl = element(op.dl, first * experts),
              .terms = op.terms ? element(op.terms, 3 * first) : nullptr,
              .balance = op.balance,
              .z = op.z,
              .rows = end - first,
              .experts = experts,
              .per_row = k,
              .normalize = op.normalize});
    }
  });
}

}  // namespace trainer::ops
