#include <algorithm>

#include "config/context.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "parallel/shared_attention.h"

namespace trainer::parallel {
namespace {

Tensor flat(const Tensor& x) { return x.reshape({x.count()}); }

}  // namespace

GatheredAttention::GatheredAttention(const Ranks& ranks, const sharding::Layer& layer, const LayerSpec& spec)
    : SharedAttention(ranks, layer, spec),
      window_(window_of(spec.model, spec.layer)),
      heads_(key_width() / head_dim()),
      step_heads_(config::gathered_heads(heads_)),
      steps_(heads_ / step_heads_) {}

bool GatheredAttention::sees(int64_t rank, int64_t other) const {
  if (window_ == 0) return true;  // all ranks receive everything, although their queries do not see the latest segments
  for (const int64_t half : {0, 1})
    if (const int64_t own = segment(rank, half); other <= own && other >= own - reach_) return true;
  return false;
}

void GatheredAttention::plan(int64_t sequences, int64_t length) {
  if (sequences == sequences_ && length == length_) return;
  sequences_ = sequences;
  length_ = length;
  reach_ = window_ == 0 ? 2 * ranks_ : (window_ - 1 + length - 1) / length;
  for (std::vector<int64_t>* list : {&held_, &arriving_, &sent_}) list->clear();
  const int64_t piece = sequences * length * 2 * step_heads_ * head_dim();
  send_counts_.assign(static_cast<size_t>(ranks_), 0);
  receive_counts_ = send_counts_;
  wire_ = longest_ = 0;
  for (int64_t rank = 0; rank < ranks_; ++rank)
    for (int64_t to = 0; to < ranks_; ++to) {
      int64_t pieces = 0;
      for (const int64_t half : {0, 1}) {
        if (!sees(to, segment(rank, half))) continue;
        ++pieces;
        if (to == rank_) arriving_.push_back(segment(rank, half));
        if (rank == rank_) sent_.push_back(half);
      }
      if (to == rank_) receive_counts_[static_cast<size_t>(rank)] = pieces * piece;
      if (rank == rank_) send_counts_[static_cast<size_t>(to)] = pieces * piece;
      if (to != rank) wire_ += pieces * piece;
      longest_ = std::max(longest_, pieces * piece);
    }
  held_ = arriving_;
  std::ranges::sort(held_);
}

comm::PeerCounts GatheredAttention::counts(bool back) const {
  return {.send = back ? receive_counts_ : send_counts_,
          .receive = back ? send_counts_ : receive_counts_,
          .wire = wire_,
          .longest = longest_};
}

Tensor GatheredAttention::segment_of(const Tensor& natural, int64_t number) const {
  const int64_t size = length_ * natural.cols(), at = std::ranges::lower_bound(held_, number) - held_.begin();
  return natural.reshape({sequences_, std::ssize(held_) * size}).col_range(at * size, size);
}

GatheredAttention::InFlight GatheredAttention::send(Exec& ex, const Heads& x, int64_t step) {
  const int64_t width = step_heads_ * head_dim(), rows = sequences_ * length_;
  InFlight sent{ex.take("context.received", {std::ssize(arriving_) * rows, 2 * width}, x.k.dtype), {}};
  if (window_ == 0) {
    Scratch own = ex.take("context.sent", {2 * rows, 2 * width}, x.k.dtype);
    pack(ex, x, step * width, width, own);
    sent.ticket = group().all_gather(ex, flat(own), flat(sent.received));
    sent.ticket.keep(std::move(own));
  } else {
    Scratch own = ex.take("context.sent", {std::ssize(sent_) * rows, 2 * width}, x.k.dtype);
    for (int64_t i = 0; i < std::ssize(sent_); ++i) {
      const int64_t half = sent_[static_cast<size_t>(i)];
      pack(ex, {{}, half_of(x.k, half), half_of(x.v, half)}, step * width, width,
           own.tensor().row_range(i * rows, rows));
    }
    sent.ticket = group().all_to_all(ex, flat(own), flat(sent.received), counts(/*back=*/false));
    sent.ticket.keep(std::move(own));
  }
  sent.ticket = started(ex, std::move(sent.ticket));
  return sent;
}

Scratch GatheredAttention::receive(Exec& ex, InFlight sent) {
  finish(ex, sent.ticket);
  const Tensor received = sent.received;
  const int64_t rows = sequences_ * length_;
  Scratch natural = ex.take("context.keys", received.shape, received.dtype);
  for (int64_t i = 0; i < std::ssize(arriving_); ++i)
    ops::run(ex, ops::Copy{received.row_range(i * rows, rows).reshape({sequences_, length_ * received.cols()}),
                           segment_of(natural, arriving_[static_cast<size_t>(i)])});
  return natural;
}

GatheredAttention::InFlight GatheredAttention::start_sums(Exec& ex, Scratch sums) {
  const Tensor natural = sums;
  const int64_t rows = sequences_ * length_, cols = natural.cols();
  Scratch message = ex.take("context.sums.sent", natural.shape, natural.dtype);
  for (int64_t i = 0; i < std::ssize(arriving_); ++i)
    ops::run(ex, ops::Copy{segment_of(natural, arriving_[static_cast<size_t>(i)]),
                           message.tensor().row_range(i * rows, rows).reshape({sequences_, length_ * cols})});
  sums.reset();
  const int64_t pieces = window_ == 0 ? 2 : std::ssize(sent_);
  InFlight sent{ex.take("context.sums.received", {pieces * rows, cols}, natural.dtype), {}};
  sent.ticket = window_ == 0 ? group().reduce_scatter(ex, flat(message), flat(sent.received))
                             : group().all_to_all(ex, flat(message), flat(sent.received), counts(/*back=*/true));
  sent.ticket.keep(std::move(message));
  sent.ticket = started(ex, std::move(sent.ticket));
  return sent;
}

void GatheredAttention::finish_sums(Exec& ex, InFlight sent, int64_t step, const Tensor& dqkv) {
  finish(ex, sent.ticket);
  if (window_ > 0) {
    const Tensor received = sent.received;
    const int64_t rows = sequences_ * length_;
    Scratch own = ex.take("context.sums", {2 * rows, received.cols()}, received.dtype);
    ex.device.clear(own.tensor().data, own.tensor().bytes());
    for (int64_t i = 0; i < std::ssize(sent_); ++i) {
      const Tensor half = half_of(own, sent_[static_cast<size_t>(i)]);
      ops::run(ex, ops::Add{.x = received.row_range(i * rows, rows), .other = half, .y = half});
    }
    sent.received = std::move(own);
  }
  store(ex, sent.received, step * step_heads_ * head_dim(), dqkv);
}

GatheredAttention::Call GatheredAttention::call(const ops::AttentionForward& all, const Tensor& keys, int64_t step,
                                                int64_t half) const {
  const int64_t own = segment(rank_, half), first = std::max<int64_t>(0, own - reach_);
  const int64_t group = all.shape.heads / all.shape.kv_heads, width = step_heads_ * head_dim();
  Call call{.op = queries_of(all, half),
            .first_row = (std::ranges::lower_bound(held_, first) - held_.begin()) * length_,
            .query_col = step * group * width,
            .query_cols = group * width};
  const Tensor run = keys.row_range(call.first_row, keys.rows() - call.first_row);
  ops::AttentionForward& op = call.op;
  op.q = op.q.col_range(call.query_col, call.query_cols);
  op.k = run.col_range(0, width);
  op.v = run.col_range(width, width);
  op.shape.heads = group * step_heads_;
  op.shape.kv_heads = step_heads_;
  op.shape.first_key = first * length_;
  op.shape.k_len = (own - first + 1) * length_;
  op.shape.k_capacity = std::ssize(held_) * length_;
  op.dropout.first_head += step * op.shape.heads;
  return call;
}

Tensor GatheredAttention::lse_of(const Saved& saved, int64_t step, int64_t half) const {
  const Tensor lse = saved.lse;
  const int64_t rows = lse.rows() / (2 * steps_);
  return lse.row_range((2 * step + half) * rows, rows);
}

void GatheredAttention::forward(Exec& ex, const Batch& batch, const Heads& x, Saved& saved) {
  if (!batch.cut) return AttentionCore::forward(ex, batch, x, saved);
  const ops::AttentionForward all = op(batch, x);
  plan(all.shape.batch, all.shape.q_len / 2);
  saved.context = ex.take("attention.context", {x.q.rows(), query_width()}, x.q.dtype);
  saved.lse = ex.take("attention.lse", {2 * all.shape.batch * all.shape.heads, length_}, accumulator_of(x.q.dtype));
  InFlight coming = send(ex, x, 0);
  for (int64_t step = 0; step < steps_; ++step) {
    const Scratch keys = receive(ex, std::move(coming));
    if (step + 1 < steps_) coming = send(ex, x, step + 1);
    for (const int64_t half : {0, 1}) {
      Call call = this->call(all, keys, step, half);
      call.op.out = half_of(saved.context, half).col_range(call.query_col, call.query_cols);
      call.op.lse = lse_of(saved, step, half);
      ops::run(ex, call.op);
    }
  }
}

Scratch GatheredAttention::backward(Exec& ex, const Batch& batch, const Tensor& dcontext, const Heads& x,
                                    const Saved& saved) {
  const ops::AttentionForward all = op(batch, x);
  plan(all.shape.batch, all.shape.q_len / 2);
  Scratch d = ex.take("attention.dqkv", {x.q.rows(), query_width() + 2 * key_width()}, x.q.dtype);
  InFlight coming = send(ex, x, 0), leaving;
  for (int64_t step = 0; step < steps_; ++step) {
    Scratch keys = receive(ex, std::move(coming));
    if (step + 1 < steps_) coming = send(ex, x, step + 1);
    Scratch sums = ex.take("context.sums", keys.tensor().shape, accumulator_of(x.q.dtype));
    ex.device.clear(sums.tensor().data, sums.tensor().bytes());
    for (const int64_t half : {0, 1}) {
      Call call = this->call(all, keys, step, half);
      const auto own = [&](const Tensor& rows) {
        return half_of(rows, half).col_range(call.query_col, call.query_cols);
      };
      call.op.out = own(saved.context);
      call.op.lse = lse_of(saved, step, half);
      const Tensor run = sums.tensor().row_range(call.first_row, call.op.k.rows());
      const int64_t width = run.cols() / 2;
      ops::AttentionBackward back{call.op, own(dcontext), own(d), run.col_range(0, width), run.col_range(width, width)};
      back.add_dkv = true;
      ops::run(ex, back);
    }
    keys.reset();
    if (step > 0) finish_sums(ex, std::move(leaving), step - 1, d);
    leaving = start_sums(ex, std::move(sums));
  }
  finish_sums(ex, std::move(leaving), steps_ - 1, d);
  return d;
}

}  // namespace trainer::parallel
