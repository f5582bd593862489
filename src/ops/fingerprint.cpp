#include "ops/fingerprint.h"

#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

/// Adds up bits and bits · position, which vectorize, and multiplies by the number of the first element once.
template <typename Bits>
uint64_t row_sum(const Bits* x, int64_t stride, int64_t count, int64_t first) {
  constexpr int64_t kBlock = 65536;  // positions in a block and narrow bits are factors of 32 bits
  uint64_t sum = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const auto n = static_cast<uint32_t>(std::min(kBlock, count - begin));
    uint64_t plain = 0, weighted = 0;
    const Bits* block = x + begin * stride;
    if (stride == 1) {
      for (uint32_t i = 0; i < n; ++i) {
        plain += block[i];
        weighted += static_cast<uint64_t>(block[i]) * i;
      }
    } else {
      for (uint32_t i = 0; i < n; ++i) {
        plain += block[i * stride];
        weighted += static_cast<uint64_t>(block[i * stride]) * i;
      }
    }
    sum += plain * (2 * static_cast<uint64_t>(first + begin) + 1) + 2 * weighted;
  }
  return sum;
}

template <typename Bits>
uint64_t sum_of(const Fingerprint& part) {
  const auto* x = reinterpret_cast<const Bits*>(part.x.data);
  uint64_t sum = 0;
  for (int64_t r = 0; r < part.rows; ++r)
    sum += row_sum(x + r * part.pitch, part.stride, part.cols, part.first + r * part.step);
  return sum;
}

}  // namespace

void run(Exec& ex, const Fingerprints& op) {
  const auto parts = std::ssize(op.parts);
  if (parts == 0) return;
  const DType dtype = op.parts.front().x.dtype;
  const size_t type = kernel_index(dtype, "fingerprint x");
  expect_count(op.sums, parts, DType::i64, "fingerprint sums");
  Cost cost;
  for (const Fingerprint& part : op.parts) {
    TRAINER_CHECK(part.x.dtype == dtype && part.x.packed() && part.rows > 0 && part.cols > 0 &&
                      (part.rows - 1) * part.pitch + (part.cols - 1) * part.stride < part.x.count(),
                  "{} rows of {} elements {} apart, at a pitch of {}, are not in {}", part.rows, part.cols, part.stride,
                  part.pitch, to_string(part.x));
    cost.bytes += static_cast<double>(part.rows * part.cols * size_of(dtype));
  }
  const OpTimer timer(ex.meter, OpKind::elementwise, cost);
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  constexpr uint64_t (*kSums[])(const Fingerprint&) = {sum_of<uint64_t>, sum_of<uint32_t>, sum_of<uint16_t>};
  for_row_blocks(ex, parts, 1, [&](int64_t part, int64_t) {
    op.sums.as<int64_t>()[part] = static_cast<int64_t>(kSums[type](op.parts[static_cast<size_t>(part)]));
  });
}

}  // namespace trainer::ops
