#pragma once
// Occupancy: which addresses are in use at which times. Arena uses it to pack its intervals in slightly more than
// linear time.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace trainer {

/// A segment tree over `moments` points in time. Each node has two sets of addresses: those in use at any time below
/// it, and those in use at all times below it. The latter belong to intervals that do not cover its parent. Both are
/// sets of ranges, merged where they touch, so that they stay small.
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
    /// Returns the end of the first range that overlaps [begin, end), or `begin` when none does.
    int64_t pass(int64_t begin, int64_t end) const;

   private:
    std::vector<std::pair<int64_t, int64_t>> all_;
  };
  struct Node {
    Ranges any, whole;
  };

  /// Calls act(node, whether [first, last) covers all its times) on the way down to those nodes.
  template <typename F>
  void visit(size_t node, int64_t begin, int64_t end, int64_t first, int64_t last, const F& act);

  int64_t leaves_ = 1;
  std::vector<Node> nodes_;
  std::vector<const Ranges*> met_;  // during a look-up
};

}  // namespace trainer
