#pragma once
// Bytes sent by collectives, as pure functions used by communicators, dry runs and the planner.
#include <cstdint>

#include "tensor/meter.h"

namespace trainer::comm {

/// Reductions of at most this many elements exchange all inputs and add them in rank order, in f64. Larger ones use a
/// ring.
inline constexpr int64_t kDirectElements = 4096;

/// Returns the number of elements that one operation sends, summed over the g ranks of its group. The payload n counts
///   - for all_reduce, broadcast, reduce, send and shift the elements of the tensor;
///   - for all_gather the elements of the gathered tensor;
///   - for reduce_scatter and all_to_all the elements that each rank passes in.
/// all_reduce 2(g−1)·n (n ≤ kDirectElements: g(g−1)·n);  shift g·n (g > 1);  all others (g−1)·n.
constexpr int64_t wire_elements(CommOp op, int g, int64_t n) {
  if (op == CommOp::shift) return g > 1 ? g * n : 0;
  const int64_t sent = (g - 1) * n;
  return op != CommOp::all_reduce ? sent : n <= kDirectElements ? g * sent : 2 * sent;
}

/// The elements [begin, begin + count) of n that belong to member i of g: [⌊n·i/g⌋, ⌊n·(i+1)/g⌋).
struct Chunk {
  int64_t begin = 0, count = 0;
  bool operator==(const Chunk&) const = default;
};
constexpr Chunk chunk_of(int64_t n, int g, int i) {
  const int64_t begin = n * i / g;
  return {begin, n * (i + 1) / g - begin};
}

}  // namespace trainer::comm
