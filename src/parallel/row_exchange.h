#pragma once
// RowExchange moves rows from the ranks that have the tokens to the ranks that have their experts, and back, in the
// rounds of an ExchangePlan. All of its functions are collective over the ranks along its axes, and take memory that
// does not depend on the counts.
#include <optional>
#include <utility>

#include "parallel/exchange.h"
#include "parallel/ranks.h"

namespace trainer::parallel {

class RowExchange {
 public:
  /// `rows`: the axes that split token rows, of which `axes` divide the experts. `buffer`: parallel.expert_buffer.
  RowExchange(const Ranks& ranks, AxisSet axes, AxisSet rows, int64_t experts, int64_t chosen, double buffer)
      : ranks_(ranks), axes_(axes), split_(rows), experts_(experts), chosen_(chosen), buffer_(buffer) {}

  /// Starts to gather the counts of all ranks, `all` [ranks · lines, E], given this rank's [lines, E].
  comm::Ticket gather(Exec& ex, const Tensor& counts, const Tensor& all) const;
  /// Plans the exchange of the choices of `rows` rows per rank. `counts`: on the host, those that gather() gathered;
  /// empty, as on a dry device: those of balanced routing.
  void plan(int64_t rows, const Tensor& counts);
  int64_t rounds() const { return plan_->rounds(); }
  /// Returns the number of rows that a rank receives in a round, and the most.
  int64_t arriving(int64_t round) { return plan_->arriving(round); }
  int64_t capacity() const { return capacity_; }
  /// Returns the rows of each of this rank's experts in a round; valid until the next call.
  std::span<const int64_t> rows_of_experts(int64_t round) { return plan_->expert_rows(round); }

  /// Rows in flight to their experts.
  struct Sent {
    int64_t round = 0;
    Scratch received;
    comm::Ticket ticket;  // closed if they have arrived
  };
  /// Starts to send rows to their experts: row i of the sorted ones is x[order[i] / per_row]. Rows of two widths may be
  /// in flight at the same time, 1 and a larger one.
  Sent start(Exec& ex, int64_t round, const Tensor& x, const Tensor& order, int64_t per_row);
  /// Waits for the rows. Returns those of this rank's experts [capacity(), W], sorted by expert.
  Scratch finish(Exec& ex, Sent sent);
  Scratch send(Exec& ex, int64_t round, const Tensor& x, const Tensor& order, int64_t per_row) {
    return finish(ex, start(ex, round, x, order, per_row));
  }
  /// Starts to send the rows of this rank's experts [capacity(), W] back, to the sorted rows [rows · chosen, W] of the
  /// ranks that sent them. Returns an open ticket only with overlap and if this round returns all of this rank's rows;
  /// otherwise they have arrived. May overwrite `rows`.
  comm::Ticket start_return(Exec& ex, int64_t round, const Tensor& rows, const Tensor& sorted);
  void give_back(Exec& ex, int64_t round, const Tensor& rows, const Tensor& sorted) {
    if (comm::Ticket ticket = start_return(ex, round, rows, sorted); ticket.is_open()) ticket.join(ex);
  }

  /// Returns the bytes on the wire since the last call beyond those of balanced routing, which dry passes count.
  int64_t take_unplanned_bytes() { return std::exchange(unplanned_, 0); }

 private:
  comm::Communicator& group() const { return ranks_.along(axes_); }
  /// Copies an index of rows to the device.
  Scratch index(Exec& ex, int64_t round, bool to_experts);
  /// Starts to exchange the first rows of a message for `out`.
  comm::Ticket exchange(Exec& ex, int64_t round, bool back, Scratch&& message, int64_t rows, const Tensor& out);
  /// Sets counts_ to those of balanced routing.
  void balance(int64_t rows);
  /// Calls f for the rows that this rank sends in a round, as ranges of its sorted rows by destination. Adjacent ranges
  /// are one: all rows, if there is one round.
  template <typename F>
  void for_each_sent(int64_t round, F&& f) const;

  const Ranks ranks_;
  const AxisSet axes_, split_;
  const int64_t experts_, chosen_;
  const double buffer_;
  int64_t rows_ = 0, capacity_ = 0;  // rows that plan_ is for, and its capacity
  std::optional<ExchangePlan> plan_;
  bool balanced_ = false;     // plan_ is for balanced routing
  int64_t planned_rows_ = 0;  // rows on the wire with balanced routing
  int64_t unplanned_ = 0;
  std::vector<int32_t> counts_, to_experts_, to_sources_;
  int64_t indexed_ = -1;  // the round of to_experts_ and to_sources_; -1: of another plan
};

}  // namespace trainer::parallel
