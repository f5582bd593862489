#include "parallel/row_exchange.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/routing.h"

namespace trainer::parallel {
namespace {

Tensor flat(const Tensor& x) { return x.reshape({x.count()}); }

}  // namespace

comm::Ticket RowExchange::gather(Exec& ex, const Tensor& counts, const Tensor& all) const {
  comm::Ticket ticket = group().all_gather(ex, flat(counts), flat(all));
  if (!ranks_.overlap()) ticket.join(ex);
  return ticket;
}

void RowExchange::balance(int64_t rows) {
  const int64_t pairs = rows * chosen_;
  const std::vector<int>& members = group().group().members;
  const mesh::MeshShape mesh = ranks_.layout({}, {.count = 1}, 1).mesh();
  for (int64_t source = 0; source < std::ssize(members); ++source) {
    const int64_t first = mesh.index(members[static_cast<size_t>(source)], split_) * pairs;
    for (int64_t i = 0; i < experts_; ++i)
      counts_[static_cast<size_t>(source * experts_ + (first + i) % experts_)] =
          static_cast<int32_t>(pairs / experts_ + (i < pairs % experts_));
  }
}

void RowExchange::plan(int64_t rows, const Tensor& counts) {
  const int64_t ranks = ranks_.size(axes_);
  const auto set_balanced = [&] {
    balance(rows);
    plan_->set(counts_);
    balanced_ = true;
  };
  if (!plan_ || rows != rows_) {
    rows_ = rows;
    capacity_ = exchange_capacity(ranks, experts_, rows, chosen_, buffer_);
    plan_.emplace(static_cast<int>(ranks), experts_, capacity_, static_cast<int>(ranks_.index(axes_)));
    to_experts_.resize(static_cast<size_t>(capacity_));
    to_sources_.resize(to_experts_.size());
    counts_.resize(static_cast<size_t>(ranks * experts_));
    set_balanced();
    planned_rows_ = plan_->away(0);
  }
  if (!counts) {
    if (!balanced_) set_balanced();
    return;
  }
  balanced_ = false;
  const int64_t lines = counts.rows() / ranks;
  std::ranges::fill(counts_, 0);
  for (int64_t line = 0; line < counts.rows(); ++line)
    for (int64_t e = 0; e < experts_; ++e)
      counts_[static_cast<size_t>(line / lines * experts_ + e)] += counts.as<int32_t>()[line * experts_ + e];
  plan_->set(counts_);
  indexed_ = -1;
}

template <typename F>
void RowExchange::for_each_sent(int64_t round, F&& f) const {
  const int ranks = static_cast<int>(ranks_.size(axes_));
  comm::Chunk range;
  for (int rank = 0; rank <= ranks; ++rank) {
    const comm::Chunk next = rank < ranks ? plan_->sent_rows(round, rank) : comm::Chunk();
    if (range.count > 0 && next.begin == range.begin + range.count) {
      range.count += next.count;
      continue;
    }
    if (range.count > 0) f(range);
    range = next;
  }
}

Scratch RowExchange::index(Exec& ex, int64_t round, bool to_experts) {
  Scratch index = ex.take("experts.index", {capacity_}, DType::i32);
  if (ex.device.dry()) return index;
  if (indexed_ != round) plan_->index(round, to_experts_, to_sources_);
  indexed_ = round;
  const Tensor to = index;
  ex.device.copy_to_device(to.data, (to_experts ? to_experts_ : to_sources_).data(), to.bytes());
  return index;
}

comm::Ticket RowExchange::exchange(Exec& ex, int64_t round, bool back, Scratch&& message, int64_t rows,
                                   const Tensor& out) {
  const Tensor in = message.tensor().row_range(0, rows);
  const comm::PeerCounts counts = plan_->counts(round, in.cols(), back);
  comm::Ticket ticket = group().all_to_all(ex, flat(in), flat(out), counts);
  ticket.keep(std::move(message));
  if (!ex.device.dry()) unplanned_ += (counts.wire - (round == 0 ? planned_rows_ * in.cols() : 0)) * size_of(in.dtype);
  if (!ranks_.overlap()) ticket.join(ex);
  return ticket;
}

RowExchange::Sent RowExchange::start(Exec& ex, int64_t round, const Tensor& x, const Tensor& order, int64_t per_row) {
  Sent sent{round, ex.take("experts.received", {capacity_, x.cols()}, x.dtype), {}};
  Scratch message = ex.take("experts.sent", {rows_ * chosen_, x.cols()}, x.dtype);
  int64_t packed = 0;
  for_each_sent(round, [&](comm::Chunk rows) {
    ops::run(ex, ops::GatherRows{.x = x,
                                 .index = order.range(rows.begin, rows.count),
                                 .y = message.tensor().row_range(packed, rows.count),
                                 .per_row = per_row});
    packed += rows.count;
  });
  sent.ticket = exchange(ex, round, false, std::move(message), packed,
                         sent.received.tensor().row_range(0, plan_->arriving(round)));
  return sent;
}

Scratch RowExchange::finish(Exec& ex, Sent sent) {
  if (sent.ticket.is_open()) sent.ticket.join(ex);
  const Tensor received = sent.received;
  const int64_t arriving = plan_->arriving(sent.round);
  Scratch rows = ex.take("experts.rows", received.shape, received.dtype);
  const Scratch order_of_experts = index(ex, sent.round, true);
  ops::run(ex, ops::GatherRows{.x = received.row_range(0, arriving),
                               .index = order_of_experts.tensor().range(0, arriving),
                               .y = rows.tensor().row_range(0, arriving)});
  return rows;
}

// The capacity is at least the number of sorted rows, so `rows` can receive what other ranks return.
comm::Ticket RowExchange::start_return(Exec& ex, int64_t round, const Tensor& rows, const Tensor& sorted) {
  const int64_t arriving = plan_->arriving(round);
  Scratch message = ex.take("experts.sent", rows.shape, rows.dtype);
  {
    const Scratch order_of_sources = index(ex, round, false);
    ops::run(ex, ops::GatherRows{.x = rows.row_range(0, arriving),
                                 .index = order_of_sources.tensor().range(0, arriving),
                                 .y = message.tensor().row_range(0, arriving)});
  }
  int64_t all = 0;
  for_each_sent(round, [&](comm::Chunk to) { all += to.count; });
  if (all == sorted.rows()) return exchange(ex, round, true, std::move(message), arriving, sorted);
  comm::Ticket ticket = exchange(ex, round, true, std::move(message), arriving, rows.row_range(0, all));
  if (ticket.is_open()) ticket.join(ex);
  int64_t from = 0;
  for_each_sent(round, [&](comm::Chunk to) {
    ops::run(ex, ops::Copy{rows.row_range(from, to.count), sorted.row_range(to.begin, to.count)});
    from += to.count;
  });
  return ticket;
}

}  // namespace trainer::parallel
