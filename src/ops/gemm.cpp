#include "ops/gemm.h"

#include "ops/cpu/gemm.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

struct Sizes {
  int64_t m, n, k;
};
Sizes sizes_of(const Gemm& op) { return {op.c.shape[0], op.c.shape[1], op.a.shape[op.trans_a ? 0 : 1]}; }

bool is_compute(DType dtype) { return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16; }

void check_like_c(const Gemm& op, const Tensor& tensor, const char* role) {
  TRAINER_CHECK(!tensor || (tensor.shape == op.c.shape && tensor.dtype == op.c.dtype),
                "GEMM: {} is {}, expected the shape and dtype of c, {}", role, to_string(tensor), to_string(op.c));
}

void check(const device::Device& device, const Gemm& op) {
  const auto text = [&] {
    return format("a {}{}, b {}{}, c {}", to_string(op.a), op.trans_a ? " transposed" : "", to_string(op.b),
                  op.trans_b ? " transposed" : "", to_string(op.c));
  };
  TRAINER_CHECK(op.a.shape.dims() == 2 && op.b.shape.dims() == 2 && op.c.shape.dims() == 2,
                "GEMM requires matrices: {}", text());
  const auto [m, n, k] = sizes_of(op);
  TRAINER_CHECK(
      op.a.shape[op.trans_a ? 1 : 0] == m && op.b.shape[op.trans_b ? 1 : 0] == k && op.b.shape[op.trans_b ? 0 : 1] == n,
      "GEMM: shapes do not match: {}", text());
  TRAINER_CHECK(is_compute(op.a.dtype) && op.b.dtype == op.a.dtype &&
                    (op.c.dtype == op.a.dtype || op.c.dtype == accumulator_of(op.a.dtype)),
                "GEMM: dtypes do not match: {}", text());
  const Epilogue& e = op.epilogue;
  const bool plain = !e.bias && !e.pre && !e.residual && e.act == Activation::none;
  TRAINER_CHECK(!op.accumulate || (plain && op.c.dtype == accumulator_of(op.a.dtype)),
                "GEMM: accumulation requires c in the accumulator dtype, and no epilogue: {}", text());
  TRAINER_CHECK(!e.bias || (e.bias.count() == n && e.bias.packed() && e.bias.dtype == op.a.dtype),
                "GEMM: bias is {}, expected {} [{}]", to_string(e.bias), name_of(op.a.dtype), n);
  check_like_c(op, e.pre, "pre");
  check_like_c(op, e.residual, "residual");
  TRAINER_CHECK(e.act != Activation::silu, "GEMM: an epilogue cannot have the activation of a gated MLP: {}", text());
  TRAINER_CHECK(!e.gradient || (e.act != Activation::none && e.pre && !e.bias),
                "GEMM: a gradient epilogue requires an activation and pre, and no bias: {}", text());
  TRAINER_CHECK(!op.packed_b || op.packed_b.bytes() == packed_bytes(device, op.a.dtype, k, n),
                "GEMM: packed_b has {} bytes, expected {} for {}", op.packed_b.bytes(),
                packed_bytes(device, op.a.dtype, k, n), text());
}

}  // namespace

Cost cost(const Gemm& op) {
  const auto [m, n, k] = sizes_of(op);
  const Epilogue& e = op.epilogue;
  return {2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
          bytes_of(op.a) + bytes_of(op.b) + bytes_of(op.c) * (op.accumulate ? 2 : 1) + bytes_of(e.bias) +
              bytes_of(e.pre) + bytes_of(e.residual)};
}

void run(Exec& ex, const Gemm& op) {
  check(ex.device, op);
  const auto [m, n, k] = sizes_of(op);
  const OpTimer timer(ex.meter, {.kind = op.kind,
                                 .cost = cost(op),
                                 .product = {.m = m, .k = k, .n = n, .trans_a = op.trans_a, .trans_b = op.trans_b},
                                 .attention = {}});
  if (op.c.count() == 0) return;
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  own_product(ex, op, gemm_table(ex.device.isa()));
}

bool prefers_packed(const device::Device& device, DType compute, const WeightUse& use) {
  constexpr int64_t kManyRows = 64;  // packing then takes less than a third of the GEMM's time
  if (device.kind() != device::DeviceKind::cpu) return false;
  if (use.constant && !use.transposed) return true;
  if (use.m <= kSmallBatchRows) return false;
  if (compute != DType::bf16 || device.isa() < device::Isa::avx512bf16) return use.constant && use.m < kManyRows;
  return use.uses > kFewUses || !packs_strips(gemm_table(device.isa()), compute, use.m, use.k);
}

int64_t packed_bytes(const device::Device& device, DType compute, int64_t k, int64_t n) {
  if (device.kind() == device::DeviceKind::cuda) return 0;
  return own_packed_bytes(compute, k, n, gemm_table(device.isa()));
}

void run(Exec& ex, const PackB& op) {
  TRAINER_CHECK(ex.device.kind() == device::DeviceKind::cpu, "weights are packed only for GEMMs on a CPU");
  TRAINER_CHECK(op.b.shape.dims() == 2 && is_compute(op.b.dtype), "packing {}: expected a matrix of a compute dtype",
                to_string(op.b));
  const int64_t k = op.b.shape[op.trans_b ? 1 : 0], n = op.b.shape[op.trans_b ? 0 : 1];
  const int64_t expected = packed_bytes(ex.device, op.b.dtype, k, n);
  TRAINER_CHECK(op.packed.bytes() == expected, "packing {}{}: packed has {} bytes, expected {}", to_string(op.b),
                op.trans_b ? " transposed" : "", op.packed.bytes(), expected);
  const OpTimer timer(ex.meter, OpKind::pack, {0, bytes_of(op.b) + bytes_of(op.packed)});
  own_pack(ex, op, gemm_table(ex.device.isa()));
}

std::string product_path(const device::Device& device, DType compute) {
  if (device.kind() == device::DeviceKind::cuda) return cuda::library_name();
  const bool other = compute != DType::bf16 && device.isa() > device::Isa::avx512;  // pairs and tiles are for bf16
  return format("built-in {} kernels", name_of(other ? device::Isa::avx512 : device.isa()));
}

}  // namespace trainer::ops
