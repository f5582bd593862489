#pragma once
// Rows of operands and of sums of attention, for kernel files (*.isa.cpp).
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

template <typename T>
[[gnu::always_inline]] inline T* as(std::byte* data) {
  return reinterpret_cast<T*>(data);
}
/// Returns row `row`, head `head` of an operand.
template <typename Storage>
[[gnu::always_inline]] inline Storage* at(const AttentionRows& x, int64_t row, int64_t head) {
  return as<Storage>(x.data) + row * x.ld + head * x.head;
}

/// out[columns] <- factor·row, rounded to the storage type. Reads whole vectors of `row`.
template <typename T, typename Storage>
[[gnu::always_inline]] inline void store_row(const T* row, int64_t columns, T factor, Storage* out) {
  each_vector<T>(columns, [&](int64_t c, auto tag) { put(out + c, load(row + c) * factor, tag); });
}
/// The same for row `row`, head `head` of a gradient; or adds to it, if it has the type of the sums.
template <typename Storage, typename T>
[[gnu::always_inline]] inline void store_gradient(const T* sum, int64_t columns, T factor, const AttentionRows& x,
                                                  int64_t row, int64_t head, bool add) {
  if (!add) return store_row(sum, columns, factor, at<Storage>(x, row, head));
  T* out = at<T>(x, row, head);
  each_vector<T>(columns, [&](int64_t c, auto tag) { put(out + c, load(sum + c) * factor + get(out + c, tag), tag); });
}

/// The sums dk and dv of the keys from `begin` on; those of keys from `fresh` on are not yet written. From one block of
/// queries to the next, neither the first nor the last keys that it sees decrease.
template <typename T>
struct KeySums {
  T *dk, *dv;
  int64_t ld, begin, fresh;
  /// Returns true if a block of queries is the first that sees keys key … end − 1, so that it writes their sums. Clears
  /// the sums of the keys before them that no query has seen: none will.
  bool begins(int64_t key, int64_t end) {
    if (key < fresh) return false;
    for (T* sums : {dk, dv})
      for (int64_t i = (fresh - begin) * ld; i < (key - begin) * ld; i += kLanes<T>) store(sums + i, Vec<T>{});
    fresh = end;
    return true;
  }
};

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
