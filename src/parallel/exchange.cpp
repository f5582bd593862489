#include "parallel/exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/shape.h"

namespace trainer::parallel {

int64_t exchange_capacity(int64_t ranks, int64_t experts, int64_t rows, int64_t chosen, double buffer) {
  const int64_t own = experts / ranks, pairs = rows * chosen;
  // Balanced routing gives an expert at most one more of a rank's pairs than it gives to other experts.
  const int64_t balanced = ranks * (pairs / experts * own + std::min(pairs % experts, own));
  const auto buffered = static_cast<int64_t>(std::ceil(buffer * static_cast<double>(pairs)));
  return std::min(round_up(std::max(buffered, balanced), int64_t{32}), ranks * rows * std::min(chosen, own));
}

ExchangePlan::ExchangePlan(int ranks, int64_t experts, int64_t capacity, int rank)
    : ranks_(ranks), rank_(rank), experts_(experts), capacity_(capacity) {
  TRAINER_CHECK(ranks > 0 && experts % ranks == 0 && capacity > 0, "{} experts on {} ranks, {} rows per round", experts,
                ranks, capacity);
  const auto of_group = static_cast<size_t>(ranks);
  counts_.resize(of_group * static_cast<size_t>(experts));
  first_.resize(counts_.size());
  expert_rows_.resize(static_cast<size_t>(experts_per_rank()));
  sent_rows_.resize(of_group);
  received_rows_.resize(of_group);
  for (auto* const arrays : {&sent_, &received_})
    for (std::vector<int64_t>& array : *arrays) array.resize(of_group);
}

void ExchangePlan::set(std::span<const int32_t> counts) {
  TRAINER_CHECK(counts.size() == counts_.size(), "{} counts, expected {}", counts.size(), counts_.size());
  std::ranges::copy(counts, counts_.begin());
  counted_ = -1;
  rounds_ = 1;
  int64_t place = 0;
  for (int64_t expert = 0; expert < experts_; ++expert) {
    if (expert % experts_per_rank() == 0) place = 0;
    for (int source = 0; source < ranks_; ++source) {
      first_[static_cast<size_t>(source * experts_ + expert)] = place;
      place += count(source, expert);
    }
    rounds_ = std::max(rounds_, divide_up(place, capacity_));
  }
}

int64_t ExchangePlan::away(int64_t from_round) const {
  int64_t rows = 0;
  for (int source = 0; source < ranks_; ++source)
    for (int64_t expert = 0; expert < experts_; ++expert) {
      if (expert / experts_per_rank() == source) continue;
      const int64_t before = from_round * capacity_ - first(source, expert);
      rows += count(source, expert) - std::clamp<int64_t>(before, 0, count(source, expert));
    }
  return rows;
}

comm::Chunk ExchangePlan::places(int64_t round, int source, int64_t expert) const {
  const int64_t first = this->first(source, expert), last = first + count(source, expert),
                begin = std::clamp(round * capacity_, first, last),
                end = std::clamp((round + 1) * capacity_, first, last);
  return {begin, end - begin};
}

comm::Chunk ExchangePlan::sent_rows(int64_t round, int destination) const {
  comm::Chunk rows;
  const int64_t own = destination * experts_per_rank();
  for (int64_t expert = 0; expert < own; ++expert) rows.begin += count(rank_, expert);
  for (int64_t expert = own; expert < own + experts_per_rank(); ++expert) {
    const comm::Chunk here = places(round, rank_, expert);
    rows.begin += here.begin - first(rank_, expert);  // those of earlier rounds
    rows.count += here.count;
  }
  return rows;
}

void ExchangePlan::count_messages(int64_t round) {
  if (round == counted_) return;
  counted_ = round;
  wire_rows_ = most_rows_ = 0;
  for (int source = 0; source < ranks_; ++source)
    for (int destination = 0; destination < ranks_; ++destination) {
      int64_t rows = 0;
      for (int64_t i = 0; i < experts_per_rank(); ++i)
        rows += places(round, source, destination * experts_per_rank() + i).count;
      if (source == rank_) sent_rows_[static_cast<size_t>(destination)] = rows;
      if (destination == rank_) received_rows_[static_cast<size_t>(source)] = rows;
      if (source != destination) wire_rows_ += rows;
      most_rows_ = std::max(most_rows_, rows);
    }
}

int64_t ExchangePlan::arriving(int64_t round) {
  count_messages(round);
  return std::reduce(received_rows_.begin(), received_rows_.end());
}

std::span<const int64_t> ExchangePlan::expert_rows(int64_t round) {
  std::ranges::fill(expert_rows_, 0);
  for (size_t i = 0; i < expert_rows_.size(); ++i)
    for (int source = 0; source < ranks_; ++source)
      expert_rows_[i] += places(round, source, rank_ * experts_per_rank() + static_cast<int64_t>(i)).count;
  return expert_rows_;
}

comm::PeerCounts ExchangePlan::counts(int64_t round, int64_t width, bool back) {
  count_messages(round);
  const size_t array = 2 * static_cast<size_t>(back) + static_cast<size_t>(width != 1);
  std::vector<int64_t>&to = sent_[array], &from = received_[array];
  const auto elements = [width](int64_t rows) { return rows * width; };
  std::ranges::transform(back ? received_rows_ : sent_rows_, to.begin(), elements);
  std::ranges::transform(back ? sent_rows_ : received_rows_, from.begin(), elements);
  comm::PeerCounts all;
  all.send = to;
  all.receive = from;
  all.wire = elements(wire_rows_);
  all.longest = elements(most_rows_);
  all.varies = true;
  return all;
}

void ExchangePlan::index(int64_t round, std::span<int32_t> to_expert_order, std::span<int32_t> to_source_order) const {
  std::ranges::fill(to_expert_order, -1);
  std::ranges::fill(to_source_order, -1);
  int32_t arrived = 0;
  for (int source = 0; source < ranks_; ++source)
    for (int64_t expert = rank_ * experts_per_rank(); expert < (rank_ + 1) * experts_per_rank(); ++expert) {
      const comm::Chunk here = places(round, source, expert);
      for (int64_t place = here.begin; place < here.begin + here.count; ++place, ++arrived) {
        const int64_t computed = place - round * capacity_;
        to_expert_order[static_cast<size_t>(computed)] = arrived;
        to_source_order[static_cast<size_t>(arrived)] = static_cast<int32_t>(computed);
      }
    }
}

}  // namespace trainer::parallel
