#pragma once
// Search: each variable of a graph takes one of its choices, at the least total cost of nodes and edges. The layouts of
// a model's layers are such a problem (plan/layer_costs.h): a node is what an operator costs by itself, an edge what it
// costs to move activations between two neighbours, forward and backward.
//
//   method         work                                    finds
//   exhaustive     all assignments                         the optimum
//   forest DP      edges x choices²                        the optimum of a forest (a chain) without a cap of memory;
//                  x choices of one variable               and of a graph that is a forest without this variable
//   relaxed DP     as forest DP, some 30 times              the optimum of a Lagrangian relaxation of the cap of memory
//   descent        starts x sweeps x edges x choices²      a local optimum (AutoDDL, arXiv 2301.06813: coordinate
//                                                          descent; here from many starts, with moves of pairs)
// One start without pairs is not enough: it misses the optimum of short chains already
// (tests/unit/plan/search_test.cpp).
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace trainer::plan {

struct SearchProblem {
  struct Edge {
    int a = 0, b = 0;
    std::vector<double> costs;  // [choice of a · choices of b + choice of b]
  };
  std::vector<std::vector<double>> nodes;  // costs by variable and choice; infinity: not allowed
  std::vector<Edge> edges;
  std::vector<std::vector<double>> memory;  // by variable and choice; empty: nothing is capped
  double cap = std::numeric_limits<double>::infinity();

  int variables() const { return static_cast<int>(nodes.size()); }
  int choices(int variable) const { return static_cast<int>(nodes[static_cast<size_t>(variable)].size()); }
};

struct Assignment {
  std::vector<int> choices;
  double cost = std::numeric_limits<double>::infinity();
  double memory = 0;
  int sweeps = 0;  // of the longest descent
  bool found() const { return cost < std::numeric_limits<double>::infinity(); }
};

/// Returns cost and memory of an assignment.
Assignment evaluate(const SearchProblem& problem, std::vector<int> choices);
/// Returns the cheapest assignment within the cap; of equal ones the lexicographically smallest.
Assignment exhaustive(const SearchProblem& problem);
/// Returns the cheapest assignment whatever its memory. Without `conditioned` (−1: none) the graph has no cycle
/// (internal error).
Assignment forest_dp(const SearchProblem& problem, int conditioned = -1);

/// Returns an assignment within the cap: the cheapest one of cost plus a Lagrange multiplier times memory. Assignments
/// that no multiplier makes the cheapest are missed, so descent goes on from it.
Assignment forest_dp_within(const SearchProblem& problem, int conditioned = -1);

struct DescentOptions {
  bool pairs = true;                     // moves of two neighbours at once
  std::vector<std::vector<int>> starts;  // empty: those of default_starts()
  int threads = 1;
};
/// Every uniform assignment; and, with at most 81 choices, every alternating one.
std::vector<std::vector<int>> default_starts(const SearchProblem& problem);
/// Moves single variables, then pairs along edges, as long as the cost falls; a penalty on memory above the cap is
/// raised until something fits. The result depends on neither threads nor the order of starts.
Assignment descend(const SearchProblem& problem, const DescentOptions& options = {});

/// Exhaustive where there are at most 10⁶ assignments, else forest DP when what it finds fits, else descent from what
/// it finds with and without the cap, and from the least memory.
Assignment search(const SearchProblem& problem, int conditioned = -1, int threads = 1);

}  // namespace trainer::plan
