#pragma once
// Compares every operation with values computed here in the documented order, for groups of every size within a world.
// Ranks are threads (collectives_test.cpp) or processes (tests/mpi).
#include "comm/collective.h"
#include "unit/comm/rig.h"

namespace trainer::comm {

/// Returns a sum or maximum rounded to T, as a step of a ring computes it.
template <typename T>
T combined(Reduce reduce, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return reduce == Reduce::max ? std::max(a, b) : static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else if constexpr (std::is_same_v<T, bf16>) {
    const float x = static_cast<float>(a), y = static_cast<float>(b);
    return bf16(reduce == Reduce::max ? std::max(x, y) : x + y);
  } else {
    return reduce == Reduce::max ? std::max(a, b) : a + b;
  }
}

/// Returns the reduction of n elements of values() over g ranks. Above kDirectElements, chunk c starts at rank c + 1
/// (for `reduce`, every chunk at root + 1) and follows the ring; else ranks are added in order, in f64 or i64.
template <typename T>
std::vector<T> reduction(Reduce reduce, int g, int64_t n, uint64_t salt, int root = -1) {
  std::vector<std::vector<T>> x;
  for (int rank = 0; rank < g; ++rank) x.push_back(values<T>(rank, n, salt));
  std::vector<T> all(static_cast<size_t>(n));
  for (int place = 0; place < g; ++place) {
    const Chunk chunk = chunk_of(n, g, place);
    const int first = root < 0 ? place + 1 : root + 1;
    for (size_t i = static_cast<size_t>(chunk.begin); i < static_cast<size_t>(chunk.begin + chunk.count); ++i) {
      if (n > kDirectElements) {
        T sum = x[static_cast<size_t>(first % g)][i];
        for (int step = 1; step < g; ++step) sum = combined(reduce, sum, x[static_cast<size_t>((first + step) % g)][i]);
        all[i] = sum;
      } else {
        using Acc = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
        Acc sum = static_cast<Acc>(x[0][i]);
        for (size_t rank = 1; rank < x.size(); ++rank) sum = combined(reduce, sum, static_cast<Acc>(x[rank][i]));
        all[i] = static_cast<T>(sum);
      }
    }
  }
  return all;
}

/// One communicator of `size` ranks. All ranks of the world call; those outside the group only help to count bytes.
class Cases {
 public:
  Cases(World& world, int size) : world_(world), g_(size), inside_(world.rank() < size) {
    if (inside_)
      comm_ = world.communicator(rig_.device, group_of(world, size, static_cast<uint32_t>(size)), Purpose::grads);
  }

  template <typename T>
  void reductions(int64_t n, Reduce reduce) {
    const uint64_t salt = ++salt_;
    const std::vector<T> expected = reduction<T>(reduce, g_, n, salt);
    const auto own_chunk = [&](Communicator& c) {
      const auto begin = expected.begin() + c.chunk(n).begin;
      return std::vector<T>(begin, begin + c.chunk(n).count);
    };
    check("all_reduce", CommOp::all_reduce, n, sizeof(T), [&](Communicator& c) {
      std::vector<T> x = values<T>(c.rank(), n, salt);
      c.all_reduce(rig_.ex, tensor_of(x), reduce).join(rig_.ex);
      return same_bits(x, expected);
    });
    check("reduce_scatter", CommOp::reduce_scatter, n, sizeof(T), [&](Communicator& c) {
      std::vector<T> x = values<T>(c.rank(), n, salt), y(static_cast<size_t>(c.chunk(n).count));
      c.reduce_scatter(rig_.ex, tensor_of(x), tensor_of(y), reduce).join(rig_.ex);
      return same_bits(y, own_chunk(c)) && same_bits(x, values<T>(c.rank(), n, salt));
    });
    check("reduce_scatter in place", CommOp::reduce_scatter, n, sizeof(T), [&](Communicator& c) {
      std::vector<T> x = values<T>(c.rank(), n, salt), right = x;
      c.reduce_scatter(rig_.ex, tensor_of(x), tensor_of(x, c.chunk(n)), reduce).join(rig_.ex);
      std::copy_n(expected.begin() + c.chunk(n).begin, c.chunk(n).count, right.begin() + c.chunk(n).begin);
      return same_bits(x, right);
    });
    const int root = static_cast<int>(n % g_);
    check("reduce", CommOp::reduce, n, sizeof(T), [&](Communicator& c) {
      std::vector<T> x = values<T>(c.rank(), n, salt);
      c.reduce(rig_.ex, tensor_of(x), root, reduce).join(rig_.ex);
      return same_bits(x, c.rank() == root ? reduction<T>(reduce, g_, n, salt, root) : values<T>(c.rank(), n, salt));
    });
  }

  template <typename T>
  void movements(int64_t n) {
    const uint64_t salt = ++salt_;
    std::vector<T> joined;
    for (int place = 0; place < g_; ++place) {
      const std::vector<T> part = values<T>(place, chunk_of(n, g_, place).count, salt);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    check("all_gather", CommOp::all_gather, n, sizeof(T), [&](Communicator& c) {
      std::vector<T> x = values<T>(c.rank(), c.chunk(n).count, salt), y(static_cast<size_t>(n));
      c.all_gather(rig_.ex, tensor_of(x), tensor_of(y)).join(rig_.ex);
      return same_bits(y, joined);
    });
    check("all_gather in place", CommOp::all_gather, n, sizeof(T), [&](Communicator& c) {
      std::vector<T> x = values<T>(c.rank(), c.chunk(n).count, salt), y(static_cast<size_t>(n));
      std::copy(x.begin(), x.end(), y.begin() + c.chunk(n).begin);
      c.all_gather(rig_.ex, tensor_of(y, c.chunk(n)), tensor_of(y)).join(rig_.ex);
      return same_bits(y, joined);
    });
    const int root = static_cast<int>(n % g_);
    check("broadcast", CommOp::broadcast, n, sizeof(T), [&](Communicator& c) {
      std::vector<T> x = values<T>(c.rank(), n, salt);
      c.broadcast(rig_.ex, tensor_of(x), root).join(rig_.ex);
      return same_bits(x, values<T>(root, n, salt));
    });
    const int64_t k = n / g_ + 1;  // per piece
    check("all_to_all", CommOp::all_to_all, g_ * k, sizeof(T), [&](Communicator& c) {
      std::vector<T> x = values<T>(c.rank(), g_ * k, salt), y(x.size()), expected;
      c.all_to_all(rig_.ex, tensor_of(x), tensor_of(y)).join(rig_.ex);
      for (int place = 0; place < g_; ++place)
        for (int64_t i = 0; i < k; ++i) expected.push_back(value<T>(place, c.rank() * k + i, salt));
      return same_bits(y, expected);
    });
    check("shift", CommOp::shift, n, sizeof(T), [&](Communicator& c) {
      std::vector<T> x = values<T>(c.rank(), n, salt), y(x.size());
      c.shift(rig_.ex, tensor_of(x), tensor_of(y)).join(rig_.ex);
      return same_bits(y, values<T>((c.rank() + g_ - 1) % g_, n, salt)) && same_bits(x, values<T>(c.rank(), n, salt));
    });
    const UnevenPieces pieces(g_, k);
    check(
        "uneven all_to_all", CommOp::all_to_all, pieces.payload(), sizeof(T),
        [&](Communicator& c) {
          const std::vector<int64_t> sent = pieces.sent_by(c.rank()), received = pieces.received_by(c.rank());
          std::vector<T> x = values<T>(c.rank(), UnevenPieces::sum(sent), salt);
          std::vector<T> y(static_cast<size_t>(UnevenPieces::sum(received)));
          c.all_to_all(rig_.ex, tensor_of(x), tensor_of(y), {sent, received, pieces.wire(), pieces.longest()})
              .join(rig_.ex);
          return same_bits(y,
                           pieces.expected<T>(c.rank(), [&](int rank, int64_t i) { return value<T>(rank, i, salt); }));
        },
        pieces.wire());
  }

  /// Operations on a window of each chunk of k elements change only the window's elements, to the values that the
  /// operation without a window gives.
  template <typename T>
  void windows(int64_t k) {
    const uint64_t salt = ++salt_;
    const int64_t n = g_ * k;
    const std::vector<T> sums = reduction<T>(Reduce::sum, g_, n, salt);
    std::vector<T> joined;
    for (int place = 0; place < g_; ++place) {
      const std::vector<T> part = values<T>(place, k, salt);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    const auto with_window = [&](std::vector<T> all, const std::vector<T>& from, Chunk window) {
      for (int64_t at = window.begin; at < n; at += k) std::copy_n(from.begin() + at, window.count, all.begin() + at);
      return all;
    };
    const int64_t first = k / 3 + 1;
    for (const Chunk window : {Chunk{0, first}, Chunk{first, k - first}}) {
      const auto own = [&](std::vector<T>& all, int rank) {
        return tensor_of(all, {rank * k + window.begin, window.count});
      };
      check("all_reduce of a window", CommOp::all_reduce, g_ * window.count, sizeof(T), [&](Communicator& c) {
        std::vector<T> x = values<T>(c.rank(), n, salt);
        c.all_reduce(rig_.ex, tensor_of(x), Reduce::sum, window).join(rig_.ex);
        return same_bits(x, with_window(values<T>(c.rank(), n, salt), sums, window));
      });
      check("reduce_scatter of a window", CommOp::reduce_scatter, g_ * window.count, sizeof(T), [&](Communicator& c) {
        std::vector<T> x = values<T>(c.rank(), n, salt), y(static_cast<size_t>(window.count));
        c.reduce_scatter(rig_.ex, tensor_of(x), tensor_of(y), Reduce::sum, window).join(rig_.ex);
        const auto begin = sums.begin() + c.rank() * k + window.begin;
        return same_bits(y, std::vector<T>(begin, begin + window.count)) && same_bits(x, values<T>(c.rank(), n, salt));
      });
      check("all_gather of a window", CommOp::all_gather, g_ * window.count, sizeof(T), [&](Communicator& c) {
        std::vector<T> x = joined, y(static_cast<size_t>(n));
        c.all_gather(rig_.ex, own(x, c.rank()), tensor_of(y), window).join(rig_.ex);
        return same_bits(y, with_window(std::vector<T>(static_cast<size_t>(n)), joined, window));
      });
    }
  }

 private:
  /// `run` returns true if its result is right. Counted, predicted and actually sent bytes must be equal. `wire`:
  /// elements on the wire; negative: as predicted from the payload.
  void check(const char* what, CommOp op, int64_t payload, int64_t unit, const std::function<bool(Communicator&)>& run,
             int64_t wire = -1) {
    rig_.meter = {};
    const int64_t before = world_.bytes_sent();
    const bool right = !inside_ || run(*comm_);
    const int64_t sent = world_.bytes_sent() - before,
                  predicted = (wire < 0 ? wire_elements(op, g_, payload) : wire) * unit;
    EXPECT_TRUE(right) << what << " of " << payload << " elements of " << unit << " bytes among " << g_ << ", rank "
                       << world_.rank();
    if (inside_ && predicted > 0) {
      ASSERT_EQ(rig_.meter.comm().size(), 1u);
      const auto& [key, count] = *rig_.meter.comm().begin();
      EXPECT_EQ(key.op, op);
      EXPECT_EQ(count.calls, 1);
      EXPECT_EQ(count.elements, payload);
      EXPECT_EQ(count.wire_bytes, predicted) << what;
    } else {
      EXPECT_TRUE(rig_.meter.comm().empty());
    }
    int64_t total = 0;
    for (const std::string& text : world_.control().gather(std::to_string(sent))) total += std::stoll(text);
    EXPECT_EQ(total, predicted) << what << " of " << payload << " among " << g_;
  }

  World& world_;
  int g_;
  bool inside_;
  uint64_t salt_ = 0;
  Rig rig_;
  std::unique_ptr<Communicator> comm_;
};

/// One element, odd counts, one element per rank, counts around kDirectElements, and one that g does not divide.
inline std::vector<int64_t> small_sizes(int g) { return {1, 3, g, 1001, kDirectElements, kDirectElements + 1, 15011}; }
/// Three small segments in each chunk and one that only some chunks have; for up to three ranks also large segments,
/// full and partial.
inline std::vector<int64_t> large_sizes(int g, int64_t unit) {
  std::vector<int64_t> sizes = {g * 3 * kSmallestSegment / unit + 1};
  if (g <= 3) sizes.push_back((g * 4 + 1) * kLargestSegment / unit + 3);
  return sizes;
}

template <typename T>
void check_reductions(World& world, int g) {
  Cases cases(world, g);
  for (const int64_t n : small_sizes(g))
    for (const Reduce reduce : {Reduce::sum, Reduce::max}) cases.reductions<T>(n, reduce);
}
template <typename T>
void check_movements(World& world, int g) {
  Cases cases(world, g);
  for (const int64_t n : small_sizes(g)) cases.movements<T>(n);
}
/// Checks payloads that have several segments in flight.
template <typename T>
void check_large(World& world, int g) {
  Cases cases(world, g);
  for (const int64_t n : large_sizes(g, sizeof(T))) {
    cases.reductions<T>(n, Reduce::sum);
    cases.movements<T>(n);
    if (g > 1) cases.windows<T>(n / g);
  }
}

}  // namespace trainer::comm
