// The search, on chains and rings of linears with random sizes, links and peaks, compared with exhaustive enumeration.
#include "plan/search.h"

#include <gtest/gtest.h>

#include "base/philox.h"
#include "comm/bytes.h"
#include "plan/layer_costs.h"

namespace trainer::plan {
namespace {

/// Draws random cases from a seed.
class Draws {
 public:
  explicit Draws(uint64_t seed) : key_(philox_key(seed, "search")) {}
  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(philox_at(key_, next_++) % 1'000'003) / 1'000'003;
  }
  int64_t power_of_two(int low, int high) {
    return int64_t{1} << (low + static_cast<int>(uniform(0, high - low + 0.999)));
  }

 private:
  PhiloxKey key_;
  uint64_t next_ = 0;
};

constexpr const char* kLetters[] = {"r", "c", "k"};

std::vector<std::string> tuples(size_t axes) {
  std::vector<std::string> all = {""};
  for (size_t i = 0; i < axes; ++i) {
    std::vector<std::string> longer;
    for (const std::string& word : all)
      for (const char* letter : kLetters) longer.push_back(word + letter);
    all = longer;
  }
  return all;
}

/// Returns a chain of linears over `axes` axes of two ranks; `ring`: the last connects to the first. Memory is of
/// weights.
SearchProblem problem(uint64_t seed, size_t axes, int variables, bool ring) {
  Draws draw(seed);
  const double link = draw.uniform(1e9, 5e10), peak = draw.uniform(1e12, 1e14), start = draw.uniform(1e-6, 1e-4);
  const double rows = static_cast<double>(draw.power_of_two(10, 15));
  std::vector<double> widths;
  for (int i = 0; i <= variables; ++i) widths.push_back(static_cast<double>(draw.power_of_two(9, 14)));
  if (ring) widths.back() = widths.front();
  sharding::ModelSharding mesh;
  mesh.axes.resize(axes + 1, {"a", 2});
  const auto placed = [](const std::string& letters) {  // r rows, c columns, p partial sums, - copies
    MatrixPlacement at;
    for (size_t a = 0; a < letters.size(); ++a)
      if (letters[a] != '-')
        (letters[a] == 'r' ? at.rows : letters[a] == 'c' ? at.cols : at.partial) |= mesh::AxisSet{2} << a;
    return at;
  };
  static RouteShares routes;
  const auto seconds = [&](CommOp op, int ranks, double elements) {
    const double wire = static_cast<double>(comm::wire_elements(op, ranks, static_cast<int64_t>(elements)));
    return start + 2 * wire / ranks / link;
  };
  const auto ranks_of = [](mesh::AxisSet set) { return 1 << std::popcount(set); };
  const auto move = [&](const std::string& from, const std::string& to, double elements) {
    if (from == to) return 0.0;
    double sum = 0;
    for (const RouteShares::Leg& leg : routes.of(mesh, placed(from), placed(to)))
      sum += seconds(leg.op, ranks_of(leg.axes), leg.payload * elements);
    return sum;
  };
  const auto put = [](std::string letters, char k, char c) {
    for (char& letter : letters) letter = letter == 'k' ? k : letter == 'c' ? c : letter;
    return letters;
  };
  const std::vector<std::string> choices = tuples(axes);
  SearchProblem p;
  for (int i = 0; i < variables; ++i) {
    const double weights = widths[static_cast<size_t>(i)] * widths[static_cast<size_t>(i) + 1];
    std::vector<double>&nodes = p.nodes.emplace_back(), &memory = p.memory.emplace_back();
    for (const std::string& letters : choices) {
      const int copies = 1 << std::ranges::count(letters, 'r');
      const double stored = weights / static_cast<double>((1 << axes) / copies);
      nodes.push_back(6 * rows * weights / static_cast<double>(1 << axes) / peak +
                      (copies > 1 ? seconds(CommOp::all_reduce, copies, stored) : 0));
      memory.push_back(16 * stored);
    }
  }
  const auto connect = [&](int a, int b) {
    SearchProblem::Edge edge{a, b, {}};
    const double elements = rows * widths[static_cast<size_t>(a) + 1];
    for (const std::string& first : choices)
      for (const std::string& second : choices)
        // Forward redistributes Y to the layout of X; backward redistributes the gradient of X to that of Y.
        edge.costs.push_back(move(put(first, 'p', 'c'), put(second, 'c', '-'), elements) +
                             move(put(second, 'c', 'p'), put(first, '-', 'c'), elements));
    p.edges.push_back(edge);
  };
  for (int i = 0; i + 1 < variables; ++i) connect(i, i + 1);
  if (ring) connect(variables - 1, 0);
  return p;
}

struct Case {
  uint64_t seed;
  size_t axes;
  bool ring;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (uint64_t seed = 0; seed < 200; ++seed) all.push_back({seed, 1 + seed % 2, seed % 4 >= 2});
  return all;
}

TEST(Search, DynamicProgrammingFindsWhatEnumerationFinds) {
  for (const Case& c : cases()) {
    const SearchProblem p = problem(c.seed, c.axes, 4, c.ring);
    const Assignment all = exhaustive(p), dp = chain_dp_within(p, c.ring ? 0 : -1);
    EXPECT_NEAR(dp.cost, all.cost, 1e-12 * all.cost) << "seed " << c.seed;
    EXPECT_NEAR(evaluate(p, dp.choices).cost, dp.cost, 1e-12 * dp.cost);
  }
}

// The algorithm of search() for problems too large to enumerate.
TEST(Search, RelaxesTheCapOfMemory) {
  int equal = 0, all = 0;
  for (const Case& c : cases()) {
    if (c.axes > 1 && c.seed > 60) continue;
    SearchProblem p = problem(c.seed, c.axes, 4, c.ring);
    std::vector<int> least;
    for (const std::vector<double>& node : p.memory)
      least.push_back(static_cast<int>(std::ranges::min_element(node) - node.begin()));
    const int conditioned = c.ring ? 0 : -1;
    std::vector<Assignment> free;
    const double low = evaluate(p, least).memory, high = chain_dp_within(p, conditioned, &free).memory;
    p.cap = 0.99 * low;
    EXPECT_FALSE(chain_dp_within(p, conditioned).found());
    for (const double share : {0.1, 0.4, 0.8}) {
      p.cap = low + share * (high - low);
      if (high <= low) continue;
      const Assignment best = exhaustive(p), within = chain_dp_within(p, conditioned);
      ASSERT_TRUE(within.found()) << "seed " << c.seed;
      EXPECT_LE(within.memory, p.cap);
      EXPECT_LE(within.cost, 1.02 * best.cost) << "seed " << c.seed << " share " << share;
      SearchProblem twice = p;  // with twice the memory
      twice.cap *= 2;
      for (std::vector<double>& node : twice.memory)
        for (double& bytes : node) bytes *= 2;
      EXPECT_EQ(chain_dp_within(twice, conditioned, &free).choices, within.choices) << "seed " << c.seed;
      equal += within.cost <= best.cost * (1 + 1e-9);
      ++all;
    }
  }
  EXPECT_GE(equal, all * 9 / 10) << all;
}

TEST(Search, BreaksTiesBySmallestChoices) {
  SearchProblem p;
  p.nodes = {{1, 1, 1}, {2, 2, 2}};
  p.edges = {{0, 1, {1, 0, 1, 0, 1, 1, 1, 1, 0}}};
  EXPECT_EQ(exhaustive(p).choices, (std::vector<int>{0, 1}));
  EXPECT_EQ(search(p).choices, (std::vector<int>{0, 1}));
}

TEST(Search, ReportsWhenNothingFits) {
  SearchProblem p;
  p.nodes = {{1, 2}, {1, 2}};
  p.edges = {{0, 1, {0, 0, 0, 0}}};
  p.memory = {{5, 4}, {5, 4}};
  p.cap = 7;
  EXPECT_FALSE(exhaustive(p).found());
  p.cap = 8;
  EXPECT_EQ(search(p).choices, (std::vector<int>{1, 1}));
}

}  // namespace
}  // namespace trainer::plan
