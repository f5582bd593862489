#include "ops/attention.h"

#include "ops/cpu/attention_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/elementwise.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

/// With at most this many queries, keys and values are not packed: each query reads them in place.
constexpr int64_t kDecodeQueries = 4;

/// Returns the vector kernels.
const AttentionKernels& kernels_for(const Exec& ex, DType dtype) {
  return TRAINER_KERNELS(ex.device.isa(), attention_kernels)(dtype);
}
/// Returns the fastest kernels for whole blocks of queries.
const AttentionKernels& block_kernels_for(const Exec& ex, DType dtype) {
#ifndef TRAINER_WITHOUT_AVX512
  if (dtype == DType::bf16 && ex.device.kind() == device::DeviceKind::cpu) {
    if (ex.device.isa() == device::Isa::amx) return avx512::attention_tiles;
    if (ex.device.isa() == device::Isa::avx512bf16) return avx512::attention_pairs;
  }
#endif
  return kernels_for(ex, dtype);
}
int64_t vector_bytes(device::Isa isa) { return isa >= device::Isa::avx512 ? 64 : isa == device::Isa::avx2 ? 32 : 16; }

/// Returns the number of (query, key) pairs in one head of one sequence that are visible within the window.
double visible_pairs(const AttentionShape& s, int64_t window) {
  // Query i sees the first earlier + i + 1 keys, without those of the query that is `window` positions before it.
  const auto sum_to = [&](int64_t last) {  // the sum of min(j, k_len), 0 < j <= last
    const int64_t growing = std::clamp<int64_t>(last, 0, s.k_len);
    return growing * (growing + 1) / 2 + std::max<int64_t>(last - s.k_len, 0) * s.k_len;
  };
  const auto pairs = [&](int64_t earlier) { return sum_to(earlier + s.q_len) - sum_to(earlier); };
  return static_cast<double>(pairs(s.earlier()) - (window > 0 ? pairs(s.earlier() - window) : 0));
}
/// `tensors`: number of tensors of the size of the queries, and of that of the keys, that are read or written.
Cost attention_cost(const AttentionForward& op, double flops_per_pair_and_dim, int64_t tensors) {
  const AttentionShape& s = op.shape;
  const double pairs = static_cast<double>(s.batch * s.heads) * visible_pairs(s, op.mask.window);
  const int64_t queries = s.batch * s.q_len * s.heads, keys = s.batch * s.k_len * s.kv_heads;
  return {flops_per_pair_and_dim * static_cast<double>(s.head_dim) * pairs,
          static_cast<double>(tensors * (queries + keys) * s.head_dim * size_of(op.q.dtype) +
                              queries * size_of(accumulator_of(op.q.dtype)))};
}
AttentionRows operand(const Tensor& x, int64_t head) { return {x.data, x.ld(), head}; }

/// Checks keys, values or their gradients.
void expect_keys(const Tensor& x, const AttentionShape& s, DType dtype, const char* name) {
  const int64_t needed = s.by_head ? s.batch * s.kv_heads * s.capacity() : (s.batch - 1) * s.capacity() + s.k_len;
  expect_rows(x, std::max(x.rows(), needed), s.by_head ? s.head_dim : s.kv_heads * s.head_dim, dtype, name);
}

/// Checks the operands that both passes have, and returns a job with them.
AttentionJob job_of(const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  const DType dtype = op.q.dtype;
  kernel_index(dtype, "attention");  // checks the type
  TRAINER_CHECK(s.batch > 0 && s.q_len > 0 && s.k_len > 0 && s.head_dim > 0,
                "attention over {} sequences of {} queries and {} keys of size {}", s.batch, s.q_len, s.k_len,
                s.head_dim);
  TRAINER_CHECK(s.first_query >= 0 && s.first_key >= 0, "attention: queries from {} on and keys from {} on",
                s.first_query, s.first_key);
  TRAINER_CHECK(s.capacity() >= s.k_len, "attention: {} keys exceed a capacity of {}", s.k_len, s.k_capacity);
  TRAINER_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0,
                "attention: {} query heads are not a multiple of {} key/value heads", s.heads, s.kv_heads);
  AttentionJob job{};
  job.q_len = s.q_len;
  job.k_len = s.seen();
  job.shift = s.earlier();
  job.first_query = s.first_query;
  job.first_key = s.first_key;
  job.length = s.length == 0 ? s.first_query + s.q_len : s.length;
  job.k_capacity = s.capacity();
  job.key_rows = s.by_head ? s.kv_heads * job.k_capacity : job.k_capacity;
  job.heads = s.heads;
  job.kv_heads = s.kv_heads;
  job.head_dim = s.head_dim;
  job.group = s.heads / s.kv_heads;
  job.scale = op.scale;
  job.query_blocks = divide_up(s.q_len, kQueryBlock);
  job.key_blocks = divide_up(job.k_len, kKeyBlock);
  if (op.mask.first) {
    expect_count(op.mask.first, s.batch * s.q_len, DType::i32, "attention first visible keys");
    job.first_keys = op.mask.first.as<int32_t>();
  }
  job.window = op.mask.window;
  if (op.dropout.p > 0) {
    TRAINER_CHECK(s.first_query + s.q_len <= job.length, "attention: {} queries from {} on exceed a length of {}",
                  s.q_len, s.first_query, job.length);
    job.dropout = true;
    job.threshold = dropout_threshold(op.dropout.p);
    job.keep_scale = 1 / (1 - op.dropout.p);
    job.key = op.dropout.key;
    job.step = op.dropout.step;
    job.first_sample = op.dropout.first_sample;
    job.first_head = op.dropout.first_head;
    job.heads_global = op.dropout.heads_global;
  }
  expect_rows(op.q, s.batch * s.q_len, s.heads * s.head_dim, dtype, "attention q");
  expect_keys(op.k, s, dtype, "attention k");
  expect_keys(op.v, s, dtype, "attention v");
  expect_rows(op.out, s.batch * s.q_len, s.heads * s.head_dim, dtype, "attention out");
  if (op.lse) expect_rows(op.lse, s.batch * s.heads, s.q_len, accumulator_of(dtype), "attention lse");
  TRAINER_CHECK(!op.lse || op.lse.packed(), "attention: lse has row stride {}, expected {}", op.lse.ld(), s.q_len);
  job.q = operand(op.q, s.head_dim);
  job.k = operand(op.k, s.by_head ? job.k_capacity * op.k.ld() : s.head_dim);
  job.v = operand(op.v, s.by_head ? job.k_capacity * op.v.ld() : s.head_dim);
  job.out = operand(op.out, s.head_dim);
  job.lse = op.lse ? op.lse.data : nullptr;
  return job;
}

/// Sets the sizes of packed operands, which depend on shape, type and kernels.
void set_packing(AttentionJob& job, DType accumulator, device::Isa isa, bool panels) {
  if (panels) {
    constexpr int64_t kPanel = 32;
    job.row_ld = round_up(job.head_dim, kPanel);
    job.k_pad = round_up(job.k_capacity, kPanel);  // so that scratch fits every number of keys in a cache
    job.q_pad = round_up(job.q_len, kQueryBlock);
    return;
  }
  const int64_t size = size_of(accumulator), line = 64 / size, panel = 2 * vector_bytes(isa) / size;
  int64_t lines = round_up(job.head_dim, std::max(panel, line)) / line;
  if (lines % 2 == 0) ++lines;  // with an even number of lines as stride, rows would share few cache sets
  job.row_ld = lines * line;
  job.k_pad = round_up(job.k_capacity, panel);
  job.q_pad = job.q_len;
}

/// Divides one scratch block into pieces.
class Pieces {
 public:
  explicit Pieces(std::byte* data) : data_(data) {}
  /// Returns the next piece: 64-byte aligned, or null on the dry device.
  std::byte* next(int64_t bytes) {
    std::byte* piece = data_ == nullptr ? nullptr : data_ + used_;
    used_ += round_up(bytes, 64);
    return piece;
  }
  int64_t bytes() const { return used_; }

 private:
  std::byte* data_;
  int64_t used_ = 0;
};

/// Lays out the job's scratch from `data` and returns its bytes. `pairs` is the number of pairs in a wave.
int64_t lay_out(AttentionJob& job, std::byte* data, DType accumulator, int64_t pairs, int threads,
                const AttentionKernels& kernels) {
  Pieces pieces(data);
  const bool panels = kernels.pack_queries != nullptr;
  const int64_t sum = size_of(accumulator), operand = panels ? size_of(DType::bf16) : sum;
  const int64_t rows = pairs * job.k_pad * job.row_ld, queries = pairs * job.q_pad * job.row_ld;
  const int64_t columns = panels ? rows : pairs * job.k_pad * job.head_dim;
  if (job.backward || !panels) job.keys_t = pieces.next(columns * operand);
  if (job.backward || panels) job.keys = pieces.next(rows * operand);
  if (job.backward != panels) job.values_t = pieces.next(columns * operand);
  if (job.backward == panels) job.values = pieces.next(rows * operand);
  if (job.backward) {
    job.dk_sum = pieces.next(rows * sum);
    job.dv_sum = pieces.next(rows * sum);
    job.dq_parts = pieces.next(queries * job.chunks * sum);
    if (panels) {
      for (std::byte** piece : {&job.queries_t, &job.queries, &job.douts_t, &job.douts})
        *piece = pieces.next(queries * operand);
      for (std::byte** piece : {&job.shifts, &job.deltas}) *piece = pieces.next(pairs * job.q_pad * sum);
    }
  }
  job.worker_bytes = round_up(kernels.worker_bytes(job.row_ld, job.backward), 64);
  job.workers = pieces.next(threads * job.worker_bytes);
  return pieces.bytes();
}

/// Calls work(task, worker) for the blocks of each head, task = head·blocks + block, whose first block takes longest.
/// If all threads can have the same number of heads, each works on its own heads, whose operands stay in its caches.
/// Otherwise they are dealt the blocks of all heads, the longest first.
template <typename F>
void for_blocks(device::ThreadPool& pool, int64_t heads, int64_t blocks, F&& work) {
  if (heads % pool.threads() == 0) return pool.parallel_for(heads * blocks, work);
  pool.deal(heads * blocks, [&](int64_t nth, int worker) { work(nth % heads * blocks + nth / heads, worker); });
}

/// Calls work(pool) for each wave of pairs, whose keys and values are packed. A wave has enough tasks to keep all
/// threads busy until the end, but no more packed memory than necessary.
template <typename F>
void run_waves(Exec& ex, const AttentionForward& op, AttentionJob& job, const AttentionKernels& kernels, F&& work) {
  const DType accumulator = accumulator_of(op.q.dtype);
  const int threads = ex.device.threads();
  const int64_t pairs = op.shape.batch * op.shape.kv_heads;
  const int64_t wave = std::min(
      pairs, job.backward ? divide_up(8 * threads, job.chunks) : divide_up(16 * threads, job.group * job.query_blocks));
  const Scratch scratch =
      ex.take("attention.packed", {lay_out(job, nullptr, accumulator, wave, threads, kernels)}, DType::u8);
  if (ex.device.dry()) return;
  lay_out(job, scratch.tensor().data, accumulator, wave, threads, kernels);
  device::ThreadPool& pool = device::pool_of(ex.device);
  for (job.first_pair = 0; job.first_pair < pairs; job.first_pair += wave) {
    job.pairs = std::min(wave, pairs - job.first_pair);
    pool.parallel_for(job.pairs * job.key_blocks, [&](int64_t task) { kernels.pack(job, task); });
    work(pool);
  }
}

void run_decode(Exec& ex, const AttentionForward& op, AttentionJob& job, const AttentionKernels& kernels) {
  const DType accumulator = accumulator_of(op.q.dtype);
  const int64_t elements = round_up(job.row_ld + round_up(job.k_capacity, 16), 16);
  job.worker_bytes = elements * size_of(accumulator);
  const Scratch scratch = ex.take("attention.scores", {ex.device.threads(), elements}, accumulator);
  if (ex.device.dry()) return;
  job.workers = scratch.tensor().data;
  device::pool_of(ex.device).parallel_for(op.shape.batch * op.shape.heads,
                                          [&](int64_t task, int worker) { kernels.decode(job, task, worker); });
}

OpCall call_of(const AttentionShape& shape, const Cost& cost, bool backward) {
  return {.kind = OpKind::attention,
          .cost = cost,
          .product = {},
          .attention = {.length = shape.k_len, .head_dim = shape.head_dim, .backward = backward}};
}

}  // namespace

Cost cost(const AttentionForward& op) { return attention_cost(op, 4, 2); }
Cost cost(const AttentionBackward& op) { return attention_cost(op, 10, 4); }

std::string attention_path(const device::Device& device) {
  return device.kind() == device::DeviceKind::cuda ? cuda::attention_path(device) : "built-in kernels";
}

void run(Exec& ex, const AttentionForward& op) { own_attention(ex, op, block_kernels_for(ex, op.q.dtype)); }
void run(Exec& ex, const AttentionBackward& op) { own_attention(ex, op, block_kernels_for(ex, op.q.dtype)); }

void own_attention(Exec& ex, const AttentionForward& op, const AttentionKernels& kernels) {
  AttentionJob job = job_of(op);
  const OpTimer timer(ex.meter, call_of(op.shape, cost(op), /*backward=*/false));
  if (ex.device.kind() == device::DeviceKind::cuda) {
    TRAINER_CHECK(!op.shape.by_head, "attention kernels for GPUs require keys of all heads side by side");
    return cuda::run(ex, op);
  }
  const bool few = job.q_len <= kDecodeQueries && !job.dropout;
  set_packing(job, accumulator_of(op.q.dtype), ex.device.isa(), !few && kernels.pack_queries != nullptr);
  if (few) return run_decode(ex, op, job, kernels_for(ex, op.q.dtype));
  run_waves(ex, op, job, kernels, [&](device::ThreadPool& pool) {
    for_blocks(pool, job.pairs * job.group, job.query_blocks,
               [&](int64_t task, int worker) { kernels.forward(job, task, worker); });
  });
}

void own_attention(Exec& ex, const AttentionBackward& op, const AttentionKernels& kernels) {
  const AttentionShape& s = op.shape;
  AttentionJob job = job_of(op);
  TRAINER_CHECK(!s.by_head, "attention backward requires keys of all heads side by side");
  TRAINER_CHECK(op.lse, "attention backward requires the log-sum-exps of the forward pass");
  expect_rows(op.dout, op.q.rows(), op.q.cols(), op.q.dtype, "attention dout");
  const auto type_of = [&](bool added) { return added ? accumulator_of(op.q.dtype) : op.q.dtype; };
  expect_rows(op.dq, op.q.rows(), op.q.cols(), type_of(op.add_dq), "attention dq");
  expect_keys(op.dk, s, type_of(op.add_dkv), "attention dk");
  expect_keys(op.dv, s, type_of(op.add_dkv), "attention dv");

  const OpTimer timer(ex.meter, call_of(s, cost(op), /*backward=*/true));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  job.backward = true;
  job.add_dq = op.add_dq;
  job.add_dkv = op.add_dkv;
  job.k_len = s.k_len;  // also of keys that no query sees there are gradients
  job.key_blocks = divide_up(job.k_len, kKeyBlock);
  job.dout = operand(op.dout, s.head_dim);
  job.dq = operand(op.dq, s.head_dim);
  job.dk = operand(op.dk, s.head_dim);
  job.dv = operand(op.dv, s.head_dim);
  set_packing(job, accumulator_of(op.q.dtype), ex.device.isa(), kernels.pack_queries != nullptr);
  // dq is summed in at most eight parts, each over enough keys to amortise reading the queries again.
  job.chunk_keys = std::max(s.k_len <= 512 ? int64_t{128} : int64_t{256}, round_up(divide_up(s.k_len, 8), kKeyBlock));
  job.chunks = divide_up(s.k_len, job.chunk_keys);
  run_waves(ex, op, job, kernels, [&](device::ThreadPool& pool) {
    for (job.head_in_group = 0; job.head_in_group < job.group; ++job.head_in_group) {
      if (kernels.pack_queries != nullptr)
        pool.parallel_for(job.pairs * job.query_blocks, [&](int64_t task) { kernels.pack_queries(job, task); });
      for_blocks(pool, job.pairs, job.chunks, [&](int64_t task, int worker) { kernels.backward(job, task, worker); });
      pool.parallel_for(job.pairs * job.query_blocks, [&](int64_t task) { kernels.sum_dq(job, task); });
    }
  });
}

}  // namespace trainer::ops
