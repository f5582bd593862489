#include "plan/price.h"
#include "plan/offload_time.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "config/layouts.h"

namespace trainer::plan {
namespace {

/// of_a · a + of_b · b, part by part.
StepTime combined(const StepTime& a, double of_a, const StepTime& b, double of_b) {
  StepTime c;
  for (const auto& [name, part] : kStepParts) c.*part = of_a * a.*part + of_b * b.*part;
  c.unmeasured = of_a * a.unmeasured + of_b * b.unmeasured;
  c.bubble = of_a * a.bubble + of_b * b.bubble;
  c.exchange = of_a * a.exchange + of_b * b.exchange;
  for (const auto& [time, share] : {std::pair{&a, of_a}, {&b, of_b}})
    for (const auto& [axis, comm] : time->comm) {
      c.comm[axis].busy += share * comm.busy;
      c.comm[axis].exposed += share * comm.exposed;
    }
  return c;
}

/// Timeline simulates programs with a virtual clock.
class Timeline {
 public:
  Timeline(const StepProgram& step, const Cluster& cluster, DType compute)
      : step_(step),
        cluster_(cluster),
        compute_(compute),
        load_(std::min(cluster.imbalance, static_cast<double>(step.mesh.group_size(step.experts)))) {}

  /// Returns the time of a program. Collectives that it does not wait for stay in flight.
  StepTime play(const Program& program) {
    StepTime once;
    time_ = &once;
    for (const Event& event : program) {
      switch (event.kind) {
        case Event::Kind::compute:
          compute(event);
          break;
        case Event::Kind::start:
          start(event);
          break;
        case Event::Kind::wait:
          wait(event.collective);
          break;
      }
    }
    return once;
  }
  bool is_idle() const { return channels_.empty(); }

 private:
  struct Transfer {
    int64_t number = 0;
    double fixed = 0, busy = 0;
    bool spans_nodes = false;
    std::string axis;
  };

  void compute(const Event& event) {
    // One rank represents all ranks, so the time spent waiting for the slowest rank counts as compute.
    const OpKind kind = event.op.kind;
    const DType type = kind == OpKind::orthogonalize ? step_.orthogonalize : compute_;
    const double seconds = cluster_.skew * seconds_of(type, event.op);
    const bool of_optimizer = kind == OpKind::optimizer || kind == OpKind::orthogonalize || kind == OpKind::grad_norm;
    double StepTime::*part = kind == OpKind::gemm        ? &StepTime::products
                             : kind == OpKind::attention ? &StepTime::attention
                             : of_optimizer              ? &StepTime::optimizer
                                                         : &StepTime::operators;
    if (event.op.recomputed) part = &StepTime::recompute;
    time_->*part += seconds;
    double left = seconds, passed = 0;
    while (left > 0) passed += advance(left);
    time_->slowed += passed - seconds;
  }

  /// Returns the number of rounds in which the rank whose experts have most rows receives them. Left out are
  /// elementwise operators of received rows, and GEMMs that later rounds compute again in the backward pass.
  double rounds() const { return std::ceil(load_ / step_.expert_buffer); }
  /// Returns the seconds of an operator, of experts that ranks divide on the rank whose experts have most rows.
  double seconds_of(DType type, OpCall call) const {
    if (!call.of_experts) return cluster_.seconds_of(type, call);
    // Half of the wait for each of a layer's two forward GEMMs, of which recomputation repeats one.
    const bool forward = !call.product.trans_a && !call.product.trans_b;
    const double wait = forward ? counts_wait(cluster_) / 2 : 0;
    if (step_.experts == 0) return wait + cluster_.seconds_of(type, call);
    const double load = load_ / rounds();  // in each round
    int64_t& rows = call.product.trans_a ? call.product.k : call.product.m;
    rows = std::llround(load * static_cast<double>(rows));
    call.cost = {load * call.cost.flops, load * call.cost.bytes};
    return wait + rounds() * cluster_.seconds_of(type, call);
  }

  void start(const Event& event) {
    const bool control = is_scalar_exchange(event);
    const mesh::AxisSet axes = event.key.axes;
    auto known = groups_.find(axes);
    if (known == groups_.end()) known = groups_.emplace(axes, group_shape(cluster_, step_.mesh, axes)).first;
    CollectiveTime time = collective_time(cluster_, known->second, event.key.op, event.key.dtype, event.elements);
    if (event.varies) {
      time = {.fixed = rounds() * time.fixed, .busy = load_ * time.busy, .measured = time.measured};
      time_->exchange += time.total();
    }
    Transfer transfer{event.collective, time.fixed, time.busy, known->second.spans_nodes(),
                      control ? "control" : step_.mesh.name_of(axes)};
    time_->comm[transfer.axis].busy += time.total();
    if (!time.measured) time_->unmeasured += time.total();
    // Scalars and links have separate channels, even if all other operations share one.
    const bool shared = cluster_.lanes == 1 && !control && event.key.op != CommOp::send;
    const uint64_t channel = shared ? 0 : uint64_t{axes} << 8 | event.queue;
    channels_[channel].push_back(std::move(transfer));
  }

  void wait(int64_t collective) {
    std::string axis;
    for (const auto& [channel, queue] : channels_)
      for (const Transfer& transfer : queue)
        if (transfer.number == collective) axis = transfer.axis;
    if (axis.empty()) return;  // already complete
    double none = 0;
    const auto pending = [&] {
      return std::ranges::any_of(channels_, [&](const auto& channel) {
        return std::ranges::any_of(channel.second, [&](const Transfer& t) { return t.number == collective; });
      });
    };
    while (pending()) time_->comm[axis].exposed += advance(none);
  }

  /// Advances the clock until the next collective completes, or until `left` seconds of compute (0: none) are done.
  /// Returns the seconds passed.
  double advance(double& left) {
    int sharing[2] = {0, 0};
    double slowdown = 0, next = std::numeric_limits<double>::infinity();
    const auto link_of = [&](const Transfer& head) -> const Link& {
      return head.spans_nodes ? cluster_.inter : cluster_.intra;
    };
    for (const auto& [channel, queue] : channels_) {
      const Transfer& head = queue.front();
      if (head.fixed <= 0) ++sharing[head.spans_nodes ? 1 : 0];
      slowdown = std::max(slowdown, link_of(head).slowdown);
    }
    const auto rate_of = [&, computes = left > 0](const Transfer& head) {
      return (computes ? link_of(head).progress : 1.0) / (head.fixed > 0 ? 1 : sharing[head.spans_nodes ? 1 : 0]);
    };
    for (const auto& [channel, queue] : channels_) {
      const Transfer& head = queue.front();
      next = std::min(next, (head.fixed > 0 ? head.fixed : head.busy) / rate_of(head));
    }
    const double speed = 1 - std::min(slowdown, 1.0);
    if (left > 0 && speed > 0) next = std::min(next, left / speed);
    for (auto channel = channels_.begin(); channel != channels_.end();) {
      Transfer& head = channel->second.front();
      double& part = head.fixed > 0 ? head.fixed : head.busy;
      const double rate = rate_of(head);
      part = part - next * rate < 1e-15 ? 0 : part - next * rate;
      if (head.fixed <= 0 && head.busy <= 0) channel->second.pop_front();
      channel = channel->second.empty() ? channels_.erase(channel) : std::next(channel);
    }
    if (left > 0) left = left - next * speed < 1e-15 ? 0 : left - next * speed;
    return next;
  }

  const StepProgram& step_;
  const Cluster& cluster_;
  const DType compute_;
  const double load_;  // rows of the rank whose experts have most, relative to the mean; at most all rows
  std::map<uint64_t, std::deque<Transfer>> channels_;
  std::map<mesh::AxisSet, GroupShape> groups_;
  StepTime* time_ = nullptr;
};

}  // namespace

double StepTime::exposed() const {
  double sum = 0;
  for (const auto& [axis, part] : comm) sum += part.exposed;
  return sum;
}

StepTime extrapolate(const StepTime& a, const StepTime& b, double factor) { return combined(a, 1 - factor, b, factor); }

double added_by_overlap(const Link& link, double communication, double compute) {
  const double overlapped = communication / link.progress, speed = 1 - std::min(link.slowdown, 1.0);
  if (overlapped * speed <= compute) return overlapped - overlapped * speed;
  return compute / speed - compute + communication - link.progress * compute / speed;
}

GroupShape group_shape(const Cluster& cluster, const mesh::MeshShape& mesh, mesh::AxisSet axes) {
  GroupShape shape{.ranks = mesh.group_size(axes), .per_node = 1};
  if (shape.ranks == 1) return shape;
  // All groups are alike: on every node that a group uses, it has as many ranks as the first rank's group has on the
  // first node. Ranks are counted without listing them, since a plan uses thousands of meshes.
  shape.per_node = 0;
  int stride = mesh.world_size(), inner = shape.ranks;
  // The last device of the node, less the coordinates already passed.
  auto last = static_cast<int>(cluster.devices_per_node) - 1;
  for (int a = 0; a < mesh.axes(); ++a) {
    stride /= mesh.size(a);
    if ((axes >> a & 1) == 0) continue;
    inner /= mesh.size(a);
    const int whole = std::min(last / stride, mesh.size(a));
    shape.per_node += whole * inner;
    last -= whole * stride;
    if (whole == mesh.size(a)) return shape;
  }
  ++shape.per_node;
  return shape;
}

StageTime price_parts(const StepProgram& step, const Cluster& cluster, DType compute) {
  Timeline timeline(step, cluster, compute);
  StageTime stage;
  double of_last = 0;  // seconds of compute in the last micro-batch
  for (const StepProgram::Part& part : step.parts) {
    StepTime once = timeline.play(part.program);
    if (&part == &step.parts.back()) {
      stage.rest = std::move(once);
      break;
    }
    TRAINER_CHECK(part.kind.last || timeline.is_idle(), "only the last micro-batch leaves collectives in flight");
    if (part.kind.last) of_last += once.compute();
    stage.parts.push_back({part.kind, part.count, std::move(once)});
  }
  TRAINER_CHECK(timeline.is_idle(), "all collectives of a step have completed when it ends");
  if (step.plan.offload)
    stage.rest.offload =
        offload_seconds(*step.plan.offload, cluster, last_backward_seconds(of_last + stage.rest.compute()));
  return stage;
}

namespace {

/// Returns the time of all programs, one after another.
StepTime sum_of(const StageTime& stage) {
  StepTime sum;
  for (const auto& [kind, count, time] : stage.parts) sum = combined(sum, 1, time, static_cast<double>(count));
  return combined(sum, 1, stage.rest, 1);
}

}  // namespace

StepTime price(const StepProgram& step, const Cluster& cluster, DType compute) {
  return sum_of(price_parts(step, cluster, compute));
}

StepTime time_of_stages(const std::vector<const StageTime*>& times, const sharding::Stages& stages,
                        int64_t micro_batches, const CollectiveTime& message) {
  if (stages.count == 1) return sum_of(*times.front());
  constexpr size_t kKinds = 32;       // passes and place in the step
  std::vector<double> of_kind, rest;  // seconds, by stage
  const auto index = [&](int64_t stage, int64_t chunk, const sharding::ActionKind& kind) {
    const auto program = static_cast<size_t>(stage * stages.chunks + chunk / stages.count);
    return program * kKinds + kind.passes * 4u + kind.first * 2u + kind.last;
  };
  of_kind.resize(static_cast<size_t>(stages.count * stages.chunks) * kKinds);
  for (int64_t s = 0; s < stages.count; ++s) {
    const StageTime& stage = *times[static_cast<size_t>(s)];
    for (const auto& [kind, count, time] : stage.parts) of_kind[index(s, kind.chunk, kind)] = time.total();
    rest.push_back(stage.rest.total());
  }
  const sharding::ActionLists lists = lists_of(stages, micro_batches);
  const auto seconds = [&](const sharding::Action& action) {
    return of_kind[index(action.chunk % stages.count, action.chunk, kind_of(action, micro_batches))];
  };
  const std::vector<double> ends = simulate(lists, stages, seconds, message.total());
  std::vector<double> busy;  // by stage
  for (const std::vector<sharding::Action>& list : lists) {
    busy.push_back(0);
    for (const sharding::Action& action : list) busy.back() += seconds(action);
  }
  size_t last = 0;
  for (size_t s = 1; s < ends.size(); ++s)
    if (ends[s] + rest[s] > ends[last] + rest[last]) last = s;
  StepTime step = sum_of(*times[last]);
  StepTime::Comm& messages = step.comm["stage"];
  for (const sharding::Action& action : lists[last])
    if (sent_by(action, stages)) messages.busy += message.total();
  if (!message.measured) step.unmeasured += messages.busy;
  messages.exposed += ends[last] - busy[last];
  const double idle = std::ranges::max(ends) - std::reduce(busy.begin(), busy.end()) / static_cast<double>(busy.size());
  step.bubble = idle / step.total();
  return step;
}

CollectiveTime message_time(const Cluster& cluster, const config::Config& config, const mesh::MeshShape& mesh,
                            DType compute) {
  const int64_t elements = config.train.micro_batch * config.model.seq_len * config.model.d_model;
  return collective_time(cluster, group_shape(cluster, mesh, mesh.set("stage")), CommOp::send, compute,
                         elements / config::ranks_of_stage(config));
}

}  // namespace trainer::plan
