#pragma once
// Search assigns one choice to each variable of a graph so that the total cost of nodes and edges is minimal. Choosing
// the layouts of a model's layers is such a problem (plan/layer_costs.h): a node is the cost of an operator, an edge
// the cost of redistributing activations between two neighbours, forward and backward.
//
//   method         work                                    finds
//   exhaustive     all assignments                         the optimum
//   chain DP       edges x choices²                        the optimum of chains without a memory cap, or of a
//                  x choices of one variable               graph that consists of chains without this variable
//   capped DP      256 times chain DP                      the optimum within the cap, with memory in parts of 1/256
#include <cstddef>
#include <limits>
#include <vector>

namespace trainer::plan {

struct SearchProblem {
  struct Edge {
    int a = 0, b = 0;
    std::vector<double> costs;  // [choice of a · choices of b + choice of b]
  };
  std::vector<std::vector<double>> nodes;  // costs, indexed by variable and choice; infinity: not allowed
  std::vector<Edge> edges;
  std::vector<std::vector<double>> memory;  // indexed by variable and choice; empty: no cap
  double cap = std::numeric_limits<double>::infinity();

  int variables() const { return static_cast<int>(nodes.size()); }
  int choices(int variable) const { return static_cast<int>(nodes[static_cast<size_t>(variable)].size()); }
};

struct Assignment {
  std::vector<int> choices;
  double cost = std::numeric_limits<double>::infinity();
  double memory = 0;
  bool found() const { return cost < std::numeric_limits<double>::infinity(); }
};

/// Returns the assignment of these choices with its cost and memory.
Assignment evaluate(const SearchProblem& problem, std::vector<int> choices);
/// Returns the cheapest assignment within the cap, and the lexicographically smallest in case of a tie.
Assignment exhaustive(const SearchProblem& problem);
/// Returns the cheapest assignment within the cap, up to rounding of memory to 1/256 of the limit. All edges except
/// those of `conditioned` (−1: none) must connect consecutive variables; anything else is an internal error.
/// `free`: if not null, receives the cheapest assignment for each choice of the conditioned variable without a cap, so
/// that a later search with the same costs, but different memory or cap, need not find them again.
Assignment chain_dp_within(const SearchProblem& problem, int conditioned = -1, std::vector<Assignment>* free = nullptr);

/// Searches exhaustively if there are at most 10⁶ assignments, else by chain DP within the cap.
Assignment search(const SearchProblem& problem, int conditioned = -1, std::vector<Assignment>* free = nullptr);

}  // namespace trainer::plan
