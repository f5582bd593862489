#pragma once
// Occupancy tracks which addresses are in use at which times. With it, Arena packs its intervals in little more than
// linear time.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace trainer {

/// A segment tree over `moments` points in time. Each node has two sets of addresses: `any` has those in use at any
/// time in its subtree; `whole` has those of the intervals that cover its whole subtree but not its parent's. Both are
/// sets of ranges; adjacent ranges are merged, so that the sets stay small.
class Occupancy {
 public:
  explicit Occupancy(int64_t moments);

  /// Returns the lowest address at which `bytes` bytes are free throughout [first, last).
  int64_t lowest_gap(int64_t first, int64_t last, int64_t bytes);
  /// Marks [address, address + bytes) as in use throughout [first, last).
  void occupy(int64_t first, int64_t last, int64_t address, int64_t bytes);

 private:
  /// Address ranges: disjoint, ascending, not adjacent.
  class Ranges {
   public:
    void add(int64_t begin, int64_t end);
    /// Returns the end of the first range that overlaps [begin, end), or `begin` if none does.
    int64_t pass(int64_t begin, int64_t end) const;

   private:
    std::vector<std::pair<int64_t, int64_t>> all_;
  };
  struct Node {
    Ranges any, whole;
  };

  /// Descends to the nodes whose times [first, last) covers, and calls act(node, covered) on every node on the way;
  /// `covered` is true for the covered nodes, where the descent ends.
  template <typename F>
  void visit(size_t node, int64_t begin, int64_t end, int64_t first, int64_t last, const F& act);

  int64_t leaves_ = 1;
  std::vector<Node> nodes_;
  std::vector<const Ranges*> met_;  // scratch for lowest_gap(): the sets to check
};

}  // namespace trainer
