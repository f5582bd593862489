#pragma once
// ExchangePlan: which token rows the ranks of a group send to each other's experts, in rounds of bounded size. It is
// pure arithmetic on the counts of all ranks, so that all ranks of the group run the same rounds.
//
// Each rank has the same number of experts, of consecutive indices, and sorts its rows by expert. A destination's rows
// are ordered by (expert, source, place among the source's rows). Round i moves places [i·C, (i + 1)·C) of every
// destination's order, where C is the capacity: a contiguous range of each source's sorted rows. So a rank receives at
// most C rows per round, whatever the counts are, and no row is dropped.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace trainer::parallel {

/// Returns the most rows that a rank receives per round if each rank has `rows` rows: `buffer` times the mean, at most
/// all that can be sent to it, and enough for one round with balanced routing (ops::Route::From::balanced).
int64_t exchange_capacity(int64_t ranks, int64_t experts, int64_t rows, int64_t chosen, double buffer);

class ExchangePlan {
 public:
  /// Creates the plan of `rank` in a group of `ranks`, which divide `experts`. Later calls allocate nothing.
  ExchangePlan(int ranks, int64_t experts, int64_t capacity, int rank);

  /// Plans for counts [ranks, experts]: how many of each rank's rows go to each expert.
  void set(std::span<const int32_t> counts);
  /// Returns the number of rounds, at least one.
  int64_t rounds() const { return rounds_; }
  /// Returns the rows of the whole group, of this round and later ones, whose expert is on a different rank.
  int64_t away(int64_t from_round) const;
  /// Returns the number of rows that this rank receives in a round.
  int64_t arriving(int64_t round);
  /// Returns the rows of each of this rank's experts in a round; valid until the next call.
  std::span<const int64_t> expert_rows(int64_t round);
  /// Returns the elements of the messages of a round, `width` per row; `back`: those that return the rows. Messages of
  /// one round in flight at the same time may have two widths, 1 and a larger one.
  comm::PeerCounts counts(int64_t round, int64_t width, bool back);
  /// Returns the rows that this rank sends to a destination, as a range of its sorted rows.
  comm::Chunk sent_rows(int64_t round, int destination) const;
  /// Fills in permutations of the rows received in a round, [C] each, −1 after the last row. They arrive by (source,
  /// expert), and experts compute them by (expert, source): to_expert_order[i] is where row i of the second order is in
  /// the first, and to_source_order the inverse.
  void index(int64_t round, std::span<int32_t> to_expert_order, std::span<int32_t> to_source_order) const;

 private:
  int64_t experts_per_rank() const { return experts_ / ranks_; }
  int64_t count(int source, int64_t expert) const { return counts_[static_cast<size_t>(source * experts_ + expert)]; }
  int64_t first(int source, int64_t expert) const { return first_[static_cast<size_t>(source * experts_ + expert)]; }
  /// Returns the places of a source's rows for an expert in the destination's order that are in a round.
  comm::Chunk places(int64_t round, int source, int64_t expert) const;
  /// Counts the rows of the messages of a round, unless they are counted.
  void count_messages(int64_t round);

  const int ranks_, rank_;
  const int64_t experts_, capacity_;
  int64_t rounds_ = 1;
  std::vector<int64_t> counts_, first_;  // [source, expert]; the place of the first of these rows in their order
  std::vector<int64_t> expert_rows_;
  int64_t counted_ = -1;  // the round of count_messages(), with the rows of its messages
  std::vector<int64_t> sent_rows_, received_rows_;
  int64_t wire_rows_ = 0, most_rows_ = 0;
  std::array<std::vector<int64_t>, 4> sent_, received_;  // results of counts(), by direction and by width, 1 or larger
};

}  // namespace trainer::parallel
