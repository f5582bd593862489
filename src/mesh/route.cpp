#include "mesh/route.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>

#include "base/error.h"

namespace trainer::mesh {
namespace {

using Kind = Placement::Kind;

constexpr int kMaxActive = 7;

/// A step from one placement to another. `possible` is false if that takes more than one step; `op` is empty if it
/// takes no communication.
struct Transition {
  bool possible = false;
  std::optional<CommOp> op;
};
Transition transition(Placement from, Placement to) {
  constexpr Transition kLocal{true, std::nullopt}, kNone{};
  if (to.kind == Kind::partial) return kLocal;
  switch (from.kind) {
    case Kind::replicate:
      return kLocal;
    case Kind::split:
      if (to == kReplicate) return {true, CommOp::all_gather};
      return to.kind == Kind::split ? Transition{true, CommOp::all_to_all} : kNone;
    case Kind::partial:
      if (to == kReplicate) return {true, CommOp::all_reduce};
      return {true, CommOp::reduce_scatter};
    case Kind::flat:
      return to == kReplicate ? Transition{true, CommOp::all_gather} : kNone;
  }
  return kNone;
}

int64_t ring_volume(CommOp op, int group, int64_t payload) {
  if (op != CommOp::all_reduce) return comm::wire_elements(op, group, payload);
  return comm::wire_elements(CommOp::reduce_scatter, group, payload) +
         comm::wire_elements(CommOp::all_gather, group, payload);
}

/// Dijkstra's algorithm over the axes' placements. A state is a number with one digit per axis larger than 1; the digit
/// is the index of the axis's placement in `symbols_`.
class Search {
 public:
  Search(const Layout& from, const Layout& to) : from_(from), to_(to) {
    const MeshShape& mesh = from.mesh();
    for (int a = 0; a < mesh.axes(); ++a)
      if (mesh.size(a) > 1) axes_.push_back(a);
    TRAINER_CHECK(axes_.size() <= kMaxActive, "a route over {} axes, but at most {} are supported", axes_.size(),
                  kMaxActive);
    symbols_ = {kReplicate, kPartial};
    for (int dim = 0; dim < from.shape().dims(); ++dim) symbols_.push_back(split(dim));
    if ((from.axes(kFlat) | to.axes(kFlat)) != 0) symbols_.push_back(kFlat);
  }

  Route run() {
    size_t states = 1;
    for (size_t i = 0; i < axes_.size(); ++i) states *= symbols_.size();
    best_.assign(states, {});
    const size_t source = encode(from_), target = encode(to_);
    best_[source].cost = {};
    queue_.emplace(Cost{}, source);
    while (!queue_.empty()) {
      const auto [cost, state] = queue_.top();
      queue_.pop();
      if (state == target) break;
      if (cost == best_[state].cost) expand(state);
    }
    return trace(source, target);
  }

 private:
  struct Cost {
    int64_t elements = 0;
    int collectives = 0, steps = 0;
    auto operator<=>(const Cost&) const = default;
  };
  struct Best {
    Cost cost{std::numeric_limits<int64_t>::max()};
    size_t before = 0;
    Step step;
  };
  using State = std::array<Placement, kMaxActive>;

  size_t encode(const Layout& layout) const {
    size_t code = 0;
    for (size_t i = axes_.size(); i-- > 0;) {
      const auto found = std::find(symbols_.begin(), symbols_.end(), layout.on(axes_[i]));
      code = code * symbols_.size() + static_cast<size_t>(found - symbols_.begin());
    }
    return code;
  }
  State decode(size_t code) const {
    State state;
    for (size_t i = 0; i < axes_.size(); ++i, code /= symbols_.size()) state[i] = symbols_[code % symbols_.size()];
    return state;
  }

  void expand(size_t code) {
    const State state = decode(code);
    for (size_t s = 0; s < symbols_.size(); ++s) {
      unsigned same = 0;  // the axes with placement s; every subset of them may change together
      for (size_t i = 0; i < axes_.size(); ++i)
        if (state[i] == symbols_[s]) same |= 1u << i;
      for (unsigned subset = same; subset != 0; subset = (subset - 1) & same)
        for (size_t t = 0; t < symbols_.size(); ++t)
          if (t != s && transition(symbols_[s], symbols_[t]).possible) relax(code, state, subset, s, t);
    }
  }

  void relax(size_t code, const State& state, unsigned subset, size_t s, size_t t) {
    const std::optional<Step> step = make_step(state, subset, symbols_[s], symbols_[t]);
    if (!step) return;
    size_t next = code, weight = 1;
    for (size_t i = 0; i < axes_.size(); ++i, weight *= symbols_.size())
      if ((subset >> i & 1) != 0) next += (t - s) * weight;  // unsigned: a negative difference wraps around correctly
    Cost cost = best_[code].cost;
    if (step->op) {
      cost.elements += ring_volume(*step->op, step->group, step->payload) * (from_.mesh().world_size() / step->group);
      ++cost.collectives;
    }
    ++cost.steps;
    if (cost < best_[next].cost) {
      best_[next] = {cost, code, *step};
      queue_.emplace(cost, next);
    }
  }

  /// Returns nothing if the step violates the order in which axes split a tensor, or if a dim cannot be split evenly.
  std::optional<Step> make_step(const State& state, unsigned subset, Placement from, Placement to) const {
    Step step;
    step.from = from;
    step.to = to;
    std::array<int64_t, Shape::kMaxDims> blocks{1, 1, 1, 1};  // blocks per dim, split along the other axes
    int64_t pieces = 1;                                       // flat shards along the other axes
    const bool sums_only =
        from.kind != Kind::flat && to.kind != Kind::flat && from.kind != Kind::split && to.kind != Kind::split;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const int size = from_.mesh().size(axes_[i]);
      if ((subset >> i & 1) != 0) {
        step.axes |= AxisSet{1} << axes_[i];
        step.group *= size;
        continue;
      }
      switch (state[i].kind) {
        case Kind::split:
          // Outer axes split a dim first, so an axis that keeps its split must be outside all axes that change.
          if ((state[i] == from || state[i] == to) && (subset & ((1u << i) - 1)) != 0) return std::nullopt;
          blocks[static_cast<size_t>(state[i].dim)] *= size;
          break;
        case Kind::flat:
          // Flat sharding is applied after all splits, so while it is in place only reductions are possible.
          if (!sums_only) return std::nullopt;
          pieces *= size;
          break;
        default:
          break;
      }
    }
    int64_t elements = 1;
    for (int dim = 0; dim < from_.shape().dims(); ++dim) {
      const int64_t group = to == split(dim) ? step.group : 1, extent = from_.extents()[dim];
      if (extent % (blocks[static_cast<size_t>(dim)] * group) != 0) return std::nullopt;
      elements *= extent / blocks[static_cast<size_t>(dim)];
    }
    if (elements % pieces != 0) return std::nullopt;
    elements /= pieces;
    step.op = transition(from, to).op;
    step.payload = step.op == CommOp::all_to_all ? elements / step.group : elements;
    return step;
  }

  Route trace(size_t source, size_t target) const {
    Route route{from_, {}, best_[target].cost.elements};
    TRAINER_CHECK(target == source || best_[target].cost.steps > 0, "no route from {} to {}", to_string(from_),
                  to_string(to_));
    for (size_t state = target; state != source; state = best_[state].before) route.steps.push_back(best_[state].step);
    std::reverse(route.steps.begin(), route.steps.end());
    return route;
  }

  const Layout& from_;
  const Layout& to_;
  std::vector<int> axes_;
  std::vector<Placement> symbols_;
  std::vector<Best> best_;
  std::priority_queue<std::pair<Cost, size_t>, std::vector<std::pair<Cost, size_t>>, std::greater<>> queue_;
};

void check_same_tensor(const Layout& from, const Layout& to) {
  TRAINER_CHECK(from.mesh() == to.mesh() && from.shape() == to.shape() && from.extents() == to.extents() &&
                    from.is_transposed() == to.is_transposed(),
                "a route requires two layouts of the same tensor on the same mesh, not {} and {}", to_string(from),
                to_string(to));
}

}  // namespace

Route find_route(const Layout& from, const Layout& to) {
  check_same_tensor(from, to);
  return Search(from, to).run();
}

std::string to_string(const Route& route) {
  std::string text;
  for (const Step& step : route.steps) {
    const std::string action = step.op               ? std::string(name_of(*step.op))
                               : step.to == kPartial ? std::string("zero fill")
                                                     : std::string("slice");
    text += format("{}{} over {}", text.empty() ? "" : ", ", action, route.from.mesh().name_of(step.axes));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace trainer::mesh
