// Attention on a CUDA device: chooses the built-in kernels or a library's, and takes their scratch.
#include "ops/attention.h"

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/fused_attention.h"
#include "ops/cuda/ops.h"
#include "ops/elementwise.h"

namespace trainer::ops::cuda {
namespace {

/// With at most this many queries, attention is bound by reading the key-value cache.
constexpr int64_t kDecodeQueries = 4;
constexpr double kLog2e = 1.44269504088896340736;

AttentionRows operand(const Tensor& x, int64_t head_dim) {
  const int64_t size = size_of(x.dtype);
  const bool vectors =
      reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.ld() * size % 16 == 0 && head_dim * size % 16 == 0;
  return {x.data, x.ld(), vectors};
}

/// Returns the kernels' arguments, with k_len keys.
AttentionArgs args_of(const AttentionForward& op, int64_t k_len) {
  const AttentionShape& s = op.shape;
  AttentionArgs args;
  args.q_len = static_cast<int>(s.q_len);
  args.k_len = static_cast<int>(k_len);
  args.heads = static_cast<int>(s.heads);
  args.kv_heads = static_cast<int>(s.kv_heads);
  args.head_dim = static_cast<int>(s.head_dim);
  args.group = static_cast<int>(s.heads / s.kv_heads);
  args.shift = static_cast<int>(s.earlier());
  args.first_key = static_cast<int>(s.first_key);
  args.k_capacity = s.capacity();
  args.scale = static_cast<float>(op.scale);
  args.scale_log2 = static_cast<float>(op.scale * kLog2e);
  args.window = static_cast<int>(std::min(op.mask.window, s.first_query + s.q_len));  // a longer one hides nothing
  args.first_keys = op.mask.first ? op.mask.first.as<int32_t>() : nullptr;
  if (op.dropout.p > 0) {
    args.threshold = dropout_threshold(op.dropout.p);
    args.keep_scale = static_cast<float>(1 / (1 - op.dropout.p));
    args.length = static_cast<int>(s.length == 0 ? s.first_query + s.q_len : s.length);
    args.step = op.dropout.step;
    args.key = op.dropout.key;
    args.first_head = op.dropout.first_sample * op.dropout.heads_global + op.dropout.first_head;
    args.heads_global = op.dropout.heads_global;
  }
  args.q = operand(op.q, s.head_dim);
  args.k = operand(op.k, s.head_dim);
  args.v = operand(op.v, s.head_dim);
  args.out = operand(op.out, s.head_dim);
  args.lse = op.lse ? op.lse.as<float>() : nullptr;
  return args;
}

/// Checks that sizes fit the kernels' grids and 32-bit positions.
void check_limits(const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  constexpr int64_t kGrid = 65535, kLength = int64_t{1} << 30;
  TRAINER_CHECK(op.q.dtype == DType::f32 || op.q.dtype == DType::bf16,
                "attention in {}: CUDA devices support only fp32 and bf16", name_of(op.q.dtype));
  const int64_t length = std::max({s.first_query + s.q_len, s.first_key + s.k_len, s.length});
  TRAINER_CHECK(s.batch <= kGrid && s.heads * kDecodeQueries <= kGrid && length <= kLength,
                "attention over {} sequences, {} heads, {} positions: CUDA kernels support at most {}, {} and {}",
                s.batch, s.heads, length, kGrid, kGrid / kDecodeQueries, kLength);
  TRAINER_CHECK(op.scale > 0, "attention scale is {}, expected a positive number", op.scale);
}

/// Returns the library used instead of the built-in kernels, or null.
FusedAttention* fused_on(const device::Device& device) {
  return static_cast<FusedAttention*>(device.libraries()->attention.get());
}

/// Returns the keys that queries see; empty if a library knows no such mask, or sees too few such passes: every length
/// of a prompt would be a plan.
std::optional<FusedMask> fused_mask(const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  if (s.earlier() == 0 && s.q_len == s.k_len && s.capacity() == s.k_len) return FusedMask::causal;
  if (!op.lse) return {};  // not in training
  if (s.earlier() >= s.k_len - 1) return FusedMask::none;
  if (s.earlier() + s.q_len != s.k_len) return {};
  return s.earlier() == 0 ? FusedMask::causal : FusedMask::bottom_right;
}

/// Returns the pass as a library may run it; empty if only the built-in kernels support it. Operands on a dry device
/// count as aligned, as all memory in an arena is.
std::optional<FusedShape> fused_shape(const AttentionForward& op, std::initializer_list<const Tensor*> operands) {
  const AttentionShape& s = op.shape;
  const std::optional<FusedMask> mask = fused_mask(op);
  if (!mask || op.dropout.p > 0 || op.mask.hides() || s.q_len <= kDecodeQueries || s.head_dim % 8 != 0) return {};
  FusedShape shape{.mask = *mask,
                   .batch = s.batch,
                   .length = s.q_len,
                   .heads = s.heads,
                   .kv_heads = s.kv_heads,
                   .head_dim = s.head_dim,
                   .keys = s.k_len,
                   .key_rows = s.capacity(),
                   .scale = static_cast<float>(op.scale)};
  size_t place = 0;
  for (const Tensor* x : operands) {
    if (x->dtype != DType::bf16 || x->ld() % 8 != 0 || reinterpret_cast<uintptr_t>(x->data) % 16 != 0) return {};
    shape.row_distance[place++] = x->ld();
  }
  return shape;
}
FusedOperands fused_operands(const AttentionForward& op) {
  return {op.q.data, op.k.data, op.v.data, op.out.data, op.lse ? reinterpret_cast<float*>(op.lse.data) : nullptr};
}

/// Returns the library's way to run the pass; empty if there is none that supports it.
std::optional<FusedWay> fused_way(Exec& ex, const std::optional<FusedShape>& shape) {
  FusedAttention* const library = fused_on(ex.device);
  return library != nullptr && shape ? library->way(*shape) : std::nullopt;
}

void run_fused(Exec& ex, const FusedShape& shape, const FusedWay& way, const FusedOperands& operands) {
  const Scratch workspace = ex.take("attention.workspace", {std::max<int64_t>(1, way.workspace)}, DType::u8);
  if (!ex.device.dry())
    fused_on(ex.device)->run(device::cuda::stream_of(ex.device), shape, way, operands, workspace.tensor().data);
}

/// A gradient that a library writes in bf16: to its place, or to scratch if it is added to a sum in fp32.
class FusedGradient {
 public:
  FusedGradient(const Tensor& place, bool adds) : place_(place), adds_(adds) {
    if (adds) part_ = {nullptr, place.shape, DType::bf16, 0};
  }
  /// Describes the bf16 gradient; it has memory after take().
  const Tensor& written() const { return adds_ ? part_ : place_; }
  void take(Exec& ex) {
    if (!adds_) return;
    scratch_ = ex.take("attention.part", part_.shape, DType::bf16);
    part_ = scratch_;
  }
  /// Adds the part to the sum: `rows` of each of `batch` sequences, whose first ones are `distance` rows apart.
  void add(Exec& ex, int64_t batch, int64_t rows, int64_t distance) const {
    if (!adds_ || ex.device.dry()) return;
    for (int64_t i = 0; i < batch; ++i)
      add_bf16(ex, part_.row_range(i * distance, rows), place_.row_range(i * distance, rows));
  }

 private:
  Tensor place_, part_;
  bool adds_;
  Scratch scratch_;
};

/// Runs the backward pass with a library that supports it; returns whether it did.
bool run_fused(Exec& ex, const AttentionBackward& op) {
  FusedGradient dq(op.dq, op.add_dq), dk(op.dk, op.add_dkv), dv(op.dv, op.add_dkv);
  std::optional<FusedShape> shape =
      fused_shape(op, {&op.q, &op.k, &op.v, &op.out, &op.dout, &dq.written(), &dk.written(), &dv.written()});
  if (shape) shape->backward = true;
  const std::optional<FusedWay> way = fused_way(ex, shape);
  if (!way) return false;
  for (FusedGradient* gradient : {&dq, &dk, &dv}) gradient->take(ex);
  FusedOperands operands = fused_operands(op);
  operands.dout = op.dout.data;
  operands.dq = dq.written().data;
  operands.dk = dk.written().data;
  operands.dv = dv.written().data;
  run_fused(ex, *shape, *way, operands);
  dq.add(ex, shape->batch, shape->length, shape->length);
  dk.add(ex, shape->batch, shape->keys, shape->key_rows);
  dv.add(ex, shape->batch, shape->keys, shape->key_rows);
  return true;
}

}  // namespace

std::string attention_path(const device::Device& device) {
  const FusedAttention* const library = fused_on(device);
  return library == nullptr ? "built-in kernels" : library->name();
}

void run(Exec& ex, const AttentionForward& op) {
  check_limits(op);
  const AttentionShape& s = op.shape;
  const DType dtype = op.q.dtype;
  std::optional<FusedShape> fused = fused_shape(op, {&op.q, &op.k, &op.v, &op.out});
  if (fused) fused->keeps_lse = static_cast<bool>(op.lse);
  if (const std::optional<FusedWay> way = fused_way(ex, fused)) return run_fused(ex, *fused, *way, fused_operands(op));
  AttentionArgs args = args_of(op, s.seen());
  // The size of scratch depends only on k_capacity, so that one arena program decodes at every length.
  const bool decodes = s.q_len <= kDecodeQueries && op.dropout.p == 0;
  Scratch scratch;
  if (decodes)
    scratch =
        ex.take("attention.parts", {decode_parts(s.batch, s.q_len, s.heads, s.head_dim, args.k_capacity)}, DType::f32);
  if (ex.device.dry()) return;

  const cudaStream_t stream = device::cuda::stream_of(ex.device);
  if (decodes) {
    args.parts = scratch.tensor().as<float>();
    return dtype == DType::bf16 ? decode<bf16>(stream, args, s.batch) : decode<float>(stream, args, s.batch);
  }
  if (dtype == DType::f32) return plain_forward<float>(stream, args, s.batch);
  if (s.head_dim <= kTensorHeadDim && tensor_forward_shared_bytes(s.head_dim) <= ex.device.gpu().shared_per_block)
    return tensor_forward(stream, args, s.batch);
  plain_forward<bf16>(stream, args, s.batch);
}

void run(Exec& ex, const AttentionBackward& op) {
  check_limits(op);
  const AttentionShape& s = op.shape;
  const DType dtype = op.q.dtype;
  if (run_fused(ex, op)) return;
  const Scratch delta = ex.take("attention.delta", {s.batch * s.heads, s.q_len}, DType::f32);
  if (ex.device.dry()) return;

  AttentionArgs args = args_of(op, s.k_len);  // all: keys that no query sees have gradients, too
  args.dout = operand(op.dout, s.head_dim);
  args.dq = operand(op.dq, s.head_dim);
  args.dk = operand(op.dk, s.head_dim);
  args.dv = operand(op.dv, s.head_dim);
  args.dq.adds = op.add_dq;
  args.dk.adds = args.dv.adds = op.add_dkv;
  args.delta = delta.tensor().as<float>();
  const cudaStream_t stream = device::cuda::stream_of(ex.device);
  if (dtype == DType::f32) {
    row_products<float>(stream, args, s.batch);
    return plain_backward<float>(stream, args, s.batch);
  }
  row_products<bf16>(stream, args, s.batch);
  if (s.head_dim <= kTensorHeadDim && tensor_backward_shared_bytes(s.head_dim) <= ex.device.gpu().shared_per_block)
    return tensor_backward(stream, args, s.batch);
  plain_backward<bf16>(stream, args, s.batch);
}

}  // namespace trainer::ops::cuda

namespace trainer::ops {

std::unique_ptr<device::Library> cudnn_attention(const device::cuda::Facts& gpu, bool deterministic) {
  return cuda::load_cudnn(gpu, deterministic);
}

}  // namespace trainer::ops
