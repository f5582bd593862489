// The plan of the exchange of token rows between the ranks of experts, against a list of all rows.
#include "parallel/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "rigs/draws.h"

namespace trainer::parallel {
namespace {

using Matrix = std::vector<std::vector<int32_t>>;
using Row = std::tuple<int64_t, int, int64_t>;  // expert, source, number among these

std::vector<int32_t> flat(const Matrix& counts) {
  std::vector<int32_t> all;
  for (const auto& row : counts) all.insert(all.end(), row.begin(), row.end());
  return all;
}

struct Group {
  std::vector<ExchangePlan> plans;  // by rank

  Group(const Matrix& counts, int64_t capacity) {
    const int ranks = static_cast<int>(counts.size());
    for (int rank = 0; rank < ranks; ++rank) {
      plans.emplace_back(ranks, std::ssize(counts.front()), capacity, rank);
      plans.back().set(flat(counts));
    }
  }
  /// The rows from each source to each destination.
  std::vector<std::vector<int64_t>> sent(int64_t round) {
    std::vector<std::vector<int64_t>> all;
    for (ExchangePlan& plan : plans) {
      const std::span<const int64_t> send = plan.counts(round, 1, false).send;
      all.emplace_back(send.begin(), send.end());
    }
    return all;
  }
};

using Table = std::vector<std::vector<int64_t>>;

// The table of moe.md, "Exchange".
TEST(Exchange, DividesRowsIntoRounds) {
  const Matrix counts = {
      {3, 1, 0, 2, 5, 0, 1, 0}, {0, 2, 1, 1, 6, 1, 0, 1}, {2, 0, 0, 0, 8, 2, 0, 0}, {1, 1, 1, 1, 3, 3, 1, 1}};
  Group narrow(counts, 12);
  EXPECT_EQ(narrow.plans[0].rounds(), 3);
  EXPECT_EQ(narrow.plans[0].away(0), 30);
  EXPECT_EQ(narrow.sent(0), (Table{{4, 2, 5, 1}, {2, 2, 6, 1}, {2, 0, 1, 0}, {2, 2, 0, 2}}));
  EXPECT_EQ(narrow.sent(1), (Table{{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 8, 0}, {0, 0, 3, 0}}));
  EXPECT_EQ(narrow.sent(2), (Table{{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 3, 0}}));
  Group wide(counts, 18);
  EXPECT_EQ(wide.plans[0].rounds(), 2);
  EXPECT_EQ(wide.sent(1), (Table{{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 3, 0}, {0, 0, 6, 0}}));
  EXPECT_EQ(Group(counts, 48).plans[0].rounds(), 1);
}

TEST(Exchange, NoRowsTakeOneRound) {
  Group none({{0, 0}, {0, 0}}, 8);
  EXPECT_EQ(none.plans[1].rounds(), 1);
  EXPECT_EQ(none.sent(0), (Table{{0, 0}, {0, 0}}));
}

/// Runs the exchange of lists of rows, and checks that the experts get every row once and in order.
void expect_all_rows(const Matrix& counts, int64_t capacity) {
  Group group(counts, capacity);
  const int ranks = static_cast<int>(counts.size());
  const int64_t experts = std::ssize(counts.front()), own = experts / ranks;
  std::vector<std::vector<Row>> sorted(counts.size()), expected(counts.size()), arrived(counts.size()),
      back(counts.size());
  for (int64_t expert = 0; expert < experts; ++expert)
    for (int source = 0; source < ranks; ++source)
      for (int64_t i = 0; i < counts[static_cast<size_t>(source)][static_cast<size_t>(expert)]; ++i) {
        sorted[static_cast<size_t>(source)].emplace_back(expert, source, i);
        expected[static_cast<size_t>(expert / own)].emplace_back(expert, source, i);
      }
  const auto of = [](auto&& values, int rank) -> auto& { return values[static_cast<size_t>(rank)]; };
  for (int rank = 0; rank < ranks; ++rank) of(back, rank).resize(of(sorted, rank).size());
  int64_t away = 0, later = 0;
  const int64_t rounds = group.plans[0].rounds();
  for (int64_t round = 0; round < rounds; ++round)
    for (int rank = 0; rank < ranks; ++rank) {
      ExchangePlan& plan = of(group.plans, rank);
      ASSERT_EQ(plan.rounds(), rounds);
      std::vector<Row> received;
      const comm::PeerCounts here = plan.counts(round, 3, false);
      int64_t wire = 0, longest = 0;
      for (int source = 0; source < ranks; ++source) {
        const comm::Chunk chunk = of(group.plans, source).sent_rows(round, rank);
        ASSERT_EQ(3 * chunk.count, of(here.receive, source));
        ASSERT_EQ(3 * chunk.count, of(of(group.plans, source).counts(round, 3, false).send, rank));
        ASSERT_EQ(3 * chunk.count, of(of(group.plans, source).counts(round, 3, true).receive, rank));
        const auto first = of(sorted, source).begin() + chunk.begin;
        received.insert(received.end(), first, first + chunk.count);
        if (source == rank) continue;
        away += chunk.count;
        later += round > 0 ? chunk.count : 0;
      }
      for (const Row& row : received) {
        const auto& rows = of(sorted, std::get<1>(row));
        of(back, std::get<1>(row))[static_cast<size_t>(std::ranges::find(rows, row) - rows.begin())] = row;
      }
      for (int s = 0; s < ranks; ++s)
        for (int d = 0; d < ranks; ++d) {
          const int64_t elements = 3 * of(group.plans, s).sent_rows(round, d).count;
          wire += s == d ? 0 : elements;
          longest = std::max(longest, elements);
        }
      EXPECT_EQ(plan.counts(round, 3, true).wire, wire);
      EXPECT_EQ(plan.counts(round, 3, false).longest, longest);
      ASSERT_LE(std::ssize(received), capacity);
      std::vector<int32_t> to_experts(static_cast<size_t>(capacity)), to_sources(to_experts.size());
      plan.index(round, to_experts, to_sources);
      std::vector<int64_t> rows_of_experts(static_cast<size_t>(own));
      for (size_t i = 0; i < received.size(); ++i) {
        const auto from = static_cast<size_t>(to_experts[i]);
        ASSERT_EQ(to_sources[from], static_cast<int32_t>(i));
        of(arrived, rank).push_back(received[from]);
        ++rows_of_experts[static_cast<size_t>(std::get<0>(received[from]) % own)];
      }
      EXPECT_TRUE(std::ranges::equal(plan.expert_rows(round), rows_of_experts));
      for (size_t i = received.size(); i < to_experts.size(); ++i)
        EXPECT_TRUE(to_experts[i] == -1 && to_sources[i] == -1);
    }
  EXPECT_EQ(arrived, expected);
  EXPECT_EQ(back, sorted);
  EXPECT_EQ(group.plans[0].away(0), away);
  EXPECT_EQ(group.plans[0].away(1), later);
}

TEST(Exchange, MovesEveryRowOnceAndInOrder) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    tests::Draws draw(seed, "exchange");
    const int ranks = draw.one_of<int>({1, 2, 3, 4});
    const int64_t own = draw.one_of<int64_t>({1, 2, 3});
    Matrix counts(static_cast<size_t>(ranks), std::vector<int32_t>(static_cast<size_t>(ranks * own)));
    int64_t all = 0;
    for (auto& row : counts)
      for (int32_t& count : row) {
        count = draw.below(3) == 0 ? 0 : static_cast<int32_t>(draw.below(draw.below(4) == 0 ? 30 : 5));
        all += count;
      }
    expect_all_rows(counts, 1 + draw.below(all + 1));
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Exchange, BalancedRoutingTakesOneRound) {
  for (const int ranks : {1, 2, 4, 8})
    for (const int64_t experts : {8, 24, 64})
      for (const int64_t chosen : {1, 2, 6, 8})
        for (const int64_t rows : {1, 5, 12, 64}) {
          Matrix counts(static_cast<size_t>(ranks), std::vector<int32_t>(static_cast<size_t>(experts)));
          for (size_t source = 0; source < counts.size(); ++source)
            for (int64_t i = 0; i < rows * chosen; ++i)  // rows need not be adjacent, as with context
              ++counts[source][static_cast<size_t>((2 * static_cast<int64_t>(source) * rows * chosen + i) % experts)];
          ExchangePlan plan(ranks, experts, exchange_capacity(ranks, experts, rows, chosen, 1), 0);
          plan.set(flat(counts));
          EXPECT_EQ(plan.rounds(), 1) << ranks << " ranks, " << experts << " experts, " << rows << " x " << chosen;
        }
}

TEST(Exchange, HoldsAtMostAllRowsThatCanArrive) {
  EXPECT_EQ(exchange_capacity(4, 8, 16, 4, 4), 128);     // 2 of each row's choices
  EXPECT_EQ(exchange_capacity(4, 8, 100, 2, 1.5), 320);  // 300 in blocks of 32
}

}  // namespace
}  // namespace trainer::parallel
