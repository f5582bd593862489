#ifdef TRAINER_HAS_ONEDNN
#include "ops/cpu/onednn_gemm.h"

#include <dlfcn.h>

#include <algorithm>
#include <compare>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "ops/cpu/gemm.h"

namespace trainer::ops::onednn {
namespace {

using Desc = dnnl::memory::desc;

constexpr int64_t kTileCols = 512;
constexpr int64_t kAlign = 64;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

/// oneDNN uses OpenMP, whose number of threads is a setting of each thread. The pool already has the threads, so each
/// asks for one.
void use_one_thread() {
  using SetThreads = void (*)(int);
  static const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  thread_local bool done = false;
  if (!done && set_threads != nullptr) set_threads(1);
  done = true;
}

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}
Desc matrix(int64_t rows, int64_t cols, DType dtype, int64_t ld, bool transposed = false) {
  return {{rows, cols}, type_of(dtype), transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1}};
}

dnnl::primitive_attr attributes(bool add_to_result) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add_to_result) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  return attr;
}

dnnl::matmul::primitive_desc describe(const Desc& src, const Desc& weights, const Desc& bias, const Desc& dst,
                                      const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), src, weights, bias, dst, attr};
#else
  return {{src, weights, bias, dst}, attr, engine()};
#endif
}

/// Returns the packed form of a tile of a weight that oneDNN prefers for many rows.
Desc packed_desc(DType compute, int64_t k, int64_t n) {
  const Desc any({k, n}, type_of(compute), dnnl::memory::format_tag::any);
  return describe(matrix(kTileCols, k, compute, k), any, Desc(), matrix(kTileCols, n, compute, n), attributes(false))
      .weights_desc();
}

/// A primitive and its descriptors. It is immutable, and several threads execute it at a time.
struct TileProduct {
  dnnl::matmul primitive;
  Desc src, weights, bias, dst, scratchpad;
};
struct TileKey {
  int64_t m, n, k, lda, ldc;
  DType in, out;
  bool trans_a, bias, accumulate;
  auto operator<=>(const TileKey&) const = default;
};
struct PackKey {
  int64_t k, n, ld;
  DType compute;
  bool trans;
  auto operator<=>(const PackKey&) const = default;
};

/// Primitives by shape, created on first use, so that the training loop creates none.
class Cache {
 public:
  static Cache& instance() {
    static Cache cache;
    return cache;
  }

  const TileProduct& product(const TileKey& key) {
    return find(products_, key, [&] {
      TileProduct made;
      made.src = matrix(key.m, key.k, key.in, key.lda, key.trans_a);
      made.weights = weights(key.in, key.k, key.n);
      if (key.bias) made.bias = matrix(1, key.n, key.in, key.n);
      made.dst = matrix(key.m, key.n, key.out, key.ldc);
      const auto desc = describe(made.src, made.weights, made.bias, made.dst, attributes(key.accumulate));
      made.scratchpad = desc.scratchpad_desc();
      made.primitive = dnnl::matmul(desc);
      return made;
    });
  }
  const Desc& weights(DType compute, int64_t k, int64_t n) {
    return find(weights_, PackKey{k, n, 0, compute, false}, [&] { return packed_desc(compute, k, n); });
  }
  const dnnl::reorder& pack(const PackKey& key) {
    return find(packs_, key, [&] {
      const Desc from = matrix(key.k, key.n, key.compute, key.ld, key.trans);
      return dnnl::reorder({engine(), from, engine(), weights(key.compute, key.k, key.n)});
    });
  }

 private:
  template <typename Map, typename Make>
  const typename Map::mapped_type& find(Map& map, const typename Map::key_type& key, Make&& make) {
    const std::lock_guard lock(mutex_);
    if (const auto it = map.find(key); it != map.end()) return it->second;
    use_one_thread();
    try {
      return map.emplace(key, make()).first->second;
    } catch (const dnnl::error& error) {
      throw Error(Code::internal, format("oneDNN: {}", error.what()));
    }
  }

  std::recursive_mutex mutex_;
  std::map<TileKey, TileProduct> products_;
  std::map<PackKey, Desc> weights_;
  std::map<PackKey, dnnl::reorder> packs_;
};

dnnl::memory memory(const Desc& desc, const std::byte* data) { return {desc, engine(), const_cast<std::byte*>(data)}; }

/// Columns of op(B), and so of C, in tiles. They depend on n alone, since packed weights serve any m.
struct ColumnTiles {
  explicit ColumnTiles(int64_t cols)
      : n(cols),
        width(std::min(cols, round_up(divide_up(cols, divide_up(cols, kTileCols)), int64_t{64}))),
        count(divide_up(n, width)) {}
  int64_t first(int64_t tile) const { return tile * width; }
  int64_t size(int64_t tile) const { return std::min(width, n - first(tile)); }
  int64_t n, width, count;
};
int64_t tile_bytes(DType compute, int64_t k, int64_t n) {
  return round_up(static_cast<int64_t>(Cache::instance().weights(compute, k, n).get_size()), kAlign);
}

void pack_tiles(device::ThreadPool& pool, const Tensor& b, bool trans, int64_t k, int64_t n, std::byte* packed) {
  const ColumnTiles tiles(n);
  const int64_t stride = tile_bytes(b.dtype, k, tiles.width);
  pool.parallel_for(tiles.count, [&](int64_t tile) {
    use_one_thread();
    const int64_t cols = tiles.size(tile), offset = tiles.first(tile) * (trans ? b.ld() : 1);
    Cache& cache = Cache::instance();
    const dnnl::reorder& reorder = cache.pack({k, cols, b.ld(), b.dtype, trans});
    dnnl::stream stream(engine());
    auto from = memory(matrix(k, cols, b.dtype, b.ld(), trans), b.data + offset * size_of(b.dtype));
    auto to = memory(cache.weights(b.dtype, k, cols), packed + tile * stride);
    reorder.execute(stream, from, to);
    stream.wait();
  });
}

/// Returns the rows of a tile of C: enough to reuse the weights, few enough to give every thread some. Depends on shape
/// only.
int64_t rows_per_tile(int64_t m) { return m >= 2048 ? 512 : m >= 512 ? 256 : 128; }

template <typename T, typename C>
void product_of(Exec& ex, const Gemm& op, const GemmKernels<T, C>& kernels) {
  const int64_t m = op.c.shape[0], n = op.c.shape[1], k = op.a.shape[op.trans_a ? 0 : 1];
  const DType in = op.a.dtype, out = op.c.dtype;
  const Epilogue& e = op.epilogue;
  // oneDNN adds to c and adds a bias. Other epilogues are a pass of ours over a tile of unrounded sums.
  const bool by_us = e.pre || e.residual || e.act != Activation::none;
  const bool bias = e.bias && !by_us;
  const ColumnTiles tiles(n);
  const int64_t tile_rows = std::min(m, rows_per_tile(m)), row_tiles = divide_up(m, tile_rows);
  const auto tile_product = [&](int64_t rows, int64_t cols) -> const TileProduct& {
    return Cache::instance().product({rows, cols, k, op.a.ld(), by_us ? cols : op.c.ld(), in, by_us ? DType::f32 : out,
                                      op.trans_a, bias, op.accumulate});
  };

  int64_t work_bytes = 0;  // of oneDNN, per thread
  for (const int64_t rows : {tile_rows, m - (row_tiles - 1) * tile_rows})
    for (const int64_t cols : {tiles.width, tiles.size(tiles.count - 1)})
      work_bytes = std::max(work_bytes, static_cast<int64_t>(tile_product(rows, cols).scratchpad.get_size()));
  work_bytes = round_up(work_bytes, kAlign);
  const int64_t sums_bytes = by_us ? round_up(tile_rows * tiles.width * int64_t{4}, kAlign) : 0;
  const int64_t packed_size = op.packed_b ? 0 : packed_bytes(in, k, n);
  const Scratch scratch = ex.take("gemm", {packed_size + ex.device.threads() * (work_bytes + sums_bytes)}, DType::u8);
  if (ex.device.dry()) return;

  device::ThreadPool& pool = device::pool_of(ex.device);
  std::byte* const own = scratch.tensor().data;
  const std::byte* const packed = op.packed_b ? op.packed_b.data : own;
  if (!op.packed_b) pack_tiles(pool, op.b, op.trans_b, k, n, own);
  const int64_t stride = tile_bytes(in, k, tiles.width);
  const GemmStore<T, C> store = store_of<T, C>(op);

  pool.parallel_for(row_tiles * tiles.count, [&](int64_t task, int worker) {
    use_one_thread();
    const int64_t row = task % row_tiles * tile_rows, tile = task / row_tiles;
    const int64_t rows = std::min(tile_rows, m - row), col = tiles.first(tile), cols = tiles.size(tile);
    const TileProduct& call = tile_product(rows, cols);
    std::byte* const work = own + packed_size + worker * (work_bytes + sums_bytes);
    std::byte* const sums = work + work_bytes;
    const std::byte* const a = op.a.data + (op.trans_a ? row : row * op.a.ld()) * size_of(in);
    const std::byte* const result = by_us ? sums : op.c.data + (row * op.c.ld() + col) * size_of(out);

    std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, memory(call.src, a)},
                                                    {DNNL_ARG_WEIGHTS, memory(call.weights, packed + tile * stride)},
                                                    {DNNL_ARG_DST, memory(call.dst, result)},
                                                    {DNNL_ARG_SCRATCHPAD, memory(call.scratchpad, work)}};
    if (bias) arguments.emplace(DNNL_ARG_BIAS, memory(call.bias, e.bias.data + col * size_of(in)));
    dnnl::stream stream(engine());
    call.primitive.execute(stream, arguments);
    stream.wait();
    if (by_us) kernels.finish(reinterpret_cast<const float*>(sums), cols, row, col, rows, cols, store);
  });
}

}  // namespace

bool supports(DType compute) {
  if (compute != DType::f32 && compute != DType::bf16) return false;
  try {
    Cache::instance().weights(compute, 64, 64);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string description() {
  const dnnl::version_t& version = *dnnl::version();
  return format("oneDNN {}.{}.{} amx-bf16", version.major, version.minor, version.patch);
}

int64_t packed_bytes(DType compute, int64_t k, int64_t n) {
  const ColumnTiles tiles(n);
  return (tiles.count - 1) * tile_bytes(compute, k, tiles.width) + tile_bytes(compute, k, tiles.size(tiles.count - 1));
}

void pack(Exec& ex, const PackB& op) {
  if (ex.device.dry() || op.b.count() == 0) return;
  const int64_t k = op.b.shape[op.trans_b ? 1 : 0], n = op.b.shape[op.trans_b ? 0 : 1];
  pack_tiles(device::pool_of(ex.device), op.b, op.trans_b, k, n, op.packed.data);
}

void product(Exec& ex, const Gemm& op) {
  const GemmTable& table = gemm_table(ex.device.isa());
  if (op.a.dtype == DType::f32) {
    product_of(ex, op, table.f32);
  } else if (op.c.dtype == DType::bf16) {
    product_of(ex, op, table.bf16_out);
  } else {
    product_of(ex, op, table.bf16_f32_out);
  }
}

}  // namespace trainer::ops::onednn
#endif
