#pragma once
// Occupancy: which addresses are in use at which moments. Arena packs its intervals by it, in a time that grows little
// faster than their number.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace trainer {

/// A segment tree over `moments`. Each node has two sets of addresses: those in use at any time below it, and those in
/// use at all times below it. The latter are of intervals that do not fill its parent. Both are ranges, joined where
/// they touch, so that they stay few.
class Occupancy {
 public:
  explicit Occupancy(int64_t moments);

  /// The lowest address from which on `bytes` are free at all moments [first, last).
  int64_t lowest_gap(int64_t first, int64_t last, int64_t bytes);
  /// Takes [address, address + bytes) at the moments [first, last).
  void occupy(int64_t first, int64_t last, int64_t address, int64_t bytes);

 private:
  /// Disjoint, ascending, none touches the next.
  class Ranges {
   public:
    void add(int64_t begin, int64_t end);
    /// Returns the end of the first range that overlaps [begin, end), or `begin` when none does.
    int64_t pass(int64_t begin, int64_t end) const;

   private:
    std::vector<std::pair<int64_t, int64_t>> all_;
  };
  struct Node {
    Ranges any, whole;
  };

  /// Calls act(node, whether [first, last) holds all its moments) on the way down to those nodes.
  template <typename F>
  void visit(size_t node, int64_t begin, int64_t end, int64_t first, int64_t last, const F& act);

  int64_t leaves_ = 1;
  std::vector<Node> nodes_;
  std::vector<const Ranges*> met_;  // of a look-up
};

}  // namespace trainer
