#include "sharding/pipeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace trainer::sharding {
namespace {

using List = std::vector<Action>;
constexpr Pass kPasses[] = {kForward, kBackward, kWeights};

/// Returns a stage's forward passes, or its backward passes. With several chunks, `count` micro-batches at a time go
/// through all chunks.
List passes_of(Pass pass, const Stages& p, int64_t micro_batches, int64_t stage) {
  List list;
  for (int64_t group = 0; group < micro_batches; group += p.count)
    for (int64_t turn = 0; turn < p.chunks; ++turn)
      for (int64_t micro = group; micro < std::min(group + p.count, micro_batches); ++micro) {
        const int64_t own = pass == kForward ? turn : p.chunks - 1 - turn;
        list.push_back({pass, static_cast<int32_t>(micro), static_cast<int32_t>(own * p.count + stage)});
      }
  return list;
}

/// Forward passes to fill the pipeline, then a forward and a backward pass each, then the remaining backward passes
/// (Narayanan et al., 2021).
List one_forward_one_backward(const Stages& p, int64_t micro_batches, int64_t stage) {
  const List forward = passes_of(kForward, p, micro_batches, stage),
             backward = passes_of(kBackward, p, micro_batches, stage);
  const int64_t after = p.count - 1 - stage, filling = p.chunks == 1 ? after : 2 * after + (p.chunks - 1) * p.count;
  const size_t ahead = std::min(static_cast<size_t>(filling), forward.size());
  List list;
  for (size_t i = 0; i < forward.size() + ahead; ++i) {
    if (i < forward.size()) list.push_back(forward[i]);
    if (i >= ahead) list.push_back(backward[i - ahead]);
  }
  return list;
}

/// The same with weight gradients `stage` micro-batches later, where the stage would wait (Qi et al., 2023).
List zb_h1(const Stages& p, int64_t micro_batches, int64_t stage) {
  List list;
  int32_t done = 0;
  const auto weights = [&] { list.push_back({kWeights, done++, static_cast<int32_t>(stage)}); };
  for (const Action& action : one_forward_one_backward(p, micro_batches, stage)) {
    list.push_back(action);
    if (action.has(kBackward) && action.micro >= stage) weights();
  }
  while (done < micro_batches) weights();
  return list;
}

/// Joins adjacent passes of a micro-batch in one action where no message is due in between: forward and backward pass
/// in the last chunk, backward pass and weight gradients in the first one.
List merged(const List& passes, const Stages& p) {
  List list;
  for (const Action& action : passes) {
    Action* const before = list.empty() ? nullptr : &list.back();
    if (before != nullptr && before->micro == action.micro && before->chunk == action.chunk &&
        ((before->has(kForward) && action.has(kBackward) && action.chunk == p.last_chunk()) ||
         (before->has(kBackward) && action.has(kWeights) && action.chunk == 0)))
      before->passes |= action.passes;
    else
      list.push_back(action);
  }
  return list;
}

std::string passes_of(const Action& action) {
  std::string text;
  if (action.has(kForward)) text += 'F';
  if (action.has(kBackward)) text += 'B';
  if (action.has(kWeights)) text += 'W';
  return text;
}

/// Returns the index of the link on which a message travels: those of x and of dx of each stage.
size_t link_of(const Message& message, const Stages& p) {
  return static_cast<size_t>(message.from % p.count * 2 + (message.to < message.from));
}

/// Returns the most micro-batches, of all chunks, from the start of one pass to the end of another.
int64_t most_in_flight(const List& list, Pass from, Pass to) {
  int64_t now = 0, most = 0;
  for (const Action& action : list) {
    now += action.has(from);
    most = std::max(most, now);
    now -= action.has(to);
  }
  return most;
}

/// Checks 1, 2 and 5 for one stage. `passes`: 3 if backward passes leave weight gradients to passes of their own.
void check_stage(const List& list, const Stages& p, int64_t micro_batches, int64_t stage, size_t passes) {
  std::vector<std::array<int32_t, 3>> done(static_cast<size_t>(p.chunks));  // by chunk of the stage, by pass
  for (const Action& action : list) {
    TRAINER_CHECK(action.chunk <= p.last_chunk() && action.chunk % p.count == stage, "chunk {} on stage {}",
                  action.chunk, stage);
    auto& counts = done[static_cast<size_t>(action.chunk / p.count)];
    for (size_t pass = 0; pass < counts.size(); ++pass) {
      if (!action.has(kPasses[pass])) continue;
      TRAINER_CHECK(action.micro == counts[pass], "chunk {}: pass {} of micro-batch {} instead of {}", action.chunk,
                    pass, action.micro, counts[pass]);
      TRAINER_CHECK(pass == 0 || action.micro < counts[pass - 1], "chunk {}: pass {} of micro-batch {} before pass {}",
                    action.chunk, pass, action.micro, pass - 1);
      ++counts[pass];
    }
  }
  for (const auto& counts : done)
    for (size_t pass = 0; pass < passes; ++pass)
      TRAINER_CHECK(counts[pass] == micro_batches, "stage {}: pass {} of {} micro-batches is missing", stage, pass,
                    micro_batches - counts[pass]);
  const int64_t after = p.count - 1 - stage, chunks = p.chunks;
  const auto bound = [&](Pass from, Pass to, int64_t most) {
    const int64_t found = most_in_flight(list, from, to);
    TRAINER_CHECK(found <= most, "stage {}: {} micro-batches in flight, at most {}", stage, found, most);
  };
  bound(kForward, kBackward, chunks == 1 ? after + 1 : 2 * after + (chunks - 1) * p.count + 1);
  if (passes < 3) return;
  bound(kForward, kWeights, p.count);
  bound(kBackward, kWeights, stage + 1);
}

}  // namespace

std::string text_of(const Action& action) { return format("{} {}", passes_of(action), action.chunk); }

std::string title_of(const Action& action, const Stages& p) {
  return format("{} {}{}", passes_of(action), action.micro, p.chunks == 1 ? "" : format(".{}", action.chunk));
}

std::vector<Action> list_of(const Stages& p, int64_t micro_batches, int64_t stage) {
  TRAINER_CHECK(p.chunks == 1 || (p.count > 1 && micro_batches % p.count == 0 &&
                                  p.schedule == PipelineSchedule::one_forward_one_backward),
                "{} with {} micro-batches", text_of(p), micro_batches);
  const auto generate = p.schedule == PipelineSchedule::zb_h1 ? zb_h1 : one_forward_one_backward;
  return merged(generate(p, micro_batches, stage), p);
}

ActionLists lists_of(const Stages& p, int64_t micro_batches) {
  ActionLists lists;
  for (int64_t stage = 0; stage < p.count; ++stage) lists.push_back(list_of(p, micro_batches, stage));
  return lists;
}

ActionLists forward_lists(const Stages& p, int64_t micro_batches) {
  ActionLists lists;
  for (int64_t stage = 0; stage < p.count; ++stage) lists.push_back(passes_of(kForward, p, micro_batches, stage));
  return lists;
}

std::optional<Message> received_by(const Action& a, const Stages& p) {
  const int32_t from = a.has(kForward) ? a.chunk - 1 : a.has(kBackward) ? a.chunk + 1 : -1;
  if (from < 0 || from > p.last_chunk()) return std::nullopt;
  return Message{a.micro, from, a.chunk};
}

std::optional<Message> sent_by(const Action& a, const Stages& p) {
  const int32_t to = a.has(kBackward) ? a.chunk - 1 : a.has(kForward) ? a.chunk + 1 : -1;
  if (to < 0 || to > p.last_chunk()) return std::nullopt;
  return Message{a.micro, a.chunk, to};
}

void check(const ActionLists& lists, const Stages& p, int64_t micro_batches) {
  TRAINER_CHECK(std::ssize(lists) == p.count, "{} lists of {} stages", lists.size(), p.count);
  const bool split = std::ranges::any_of(lists[0], [](const Action& action) { return action.has(kWeights); });
  std::vector<std::vector<Message>> sent(2 * lists.size()), received(sent.size());  // by link
  for (size_t s = 0; s < lists.size(); ++s) {
    check_stage(lists[s], p, micro_batches, static_cast<int64_t>(s), split ? 3 : 2);
    for (const Action& action : lists[s]) {
      if (const auto message = sent_by(action, p)) sent[link_of(*message, p)].push_back(*message);
      if (const auto message = received_by(action, p)) received[link_of(*message, p)].push_back(*message);
    }
  }
  for (size_t link = 0; link < sent.size(); ++link)
    TRAINER_CHECK(sent[link] == received[link], "the ends of link {} disagree", link);
  simulate(lists, p, [](const Action&) { return 1.0; });
}

std::vector<double> simulate(const ActionLists& lists, const Stages& p,
                             const std::function<double(const Action&)>& seconds, double hop) {
  constexpr double kNone = -1;
  struct Link {  // times: when its send buffer was filled, its receive posted, its message had arrived
    double filled = kNone, posted = kNone, arrived = kNone, free = 0;
    void advance(double hop) {
      if (filled == kNone || posted == kNone) return;
      free = arrived = std::max(filled, posted) + hop;
      filled = posted = kNone;
    }
  };
  std::vector<Link> links(2 * lists.size());
  struct Stage {
    size_t next = 0, posted = 0;  // actions before these have ended; have their receives posted
    bool ran = false;             // the next action has only its message left to send
    double time = 0;
  };
  std::vector<Stage> stages(lists.size());
  bool moved = true;
  const auto link = [&](const std::optional<Message>& of) { return of ? &links[link_of(*of, p)] : nullptr; };
  const auto post = [&](Stage& stage, const List& list) {
    for (; stage.posted < std::min(stage.next + 2, list.size()); ++stage.posted, moved = true) {
      Link* const from = link(received_by(list[stage.posted], p));
      if (from == nullptr) continue;
      if (from->posted != kNone || from->arrived != kNone) return;
      from->posted = stage.time;
      from->advance(hop);
    }
  };
  const auto run = [&](Stage& stage, const List& list) {  // as far as messages of other stages allow
    for (; stage.next < list.size(); ++stage.next, stage.ran = false, moved = true) {
      const Action& action = list[stage.next];
      if (!stage.ran) {
        post(stage, list);
        if (Link* const from = link(received_by(action, p))) {
          if (from->arrived == kNone) return;
          stage.time = std::max(stage.time, std::exchange(from->arrived, kNone));
          post(stage, list);
        }
        stage.time += seconds(action);
        stage.ran = moved = true;
      }
      if (Link* const to = link(sent_by(action, p))) {
        if (to->filled != kNone) return;
        stage.time = to->filled = std::max(stage.time, to->free);
        to->advance(hop);
      }
    }
  };
  while (std::exchange(moved, false))
    for (size_t s = 0; s < stages.size(); ++s) run(stages[s], lists[s]);
  std::vector<double> ends;
  for (size_t s = 0; s < stages.size(); ++s) {
    TRAINER_CHECK(stages[s].next == lists[s].size(), "deadlock: stage {} ends before action {} of {}", s,
                  stages[s].next, lists[s].size());
    ends.push_back(stages[s].time);
  }
  return ends;
}

Frames frames_of(const List& list) {
  struct Sequence {
    size_t begun = 0, programs = 0;
    Frames::PerPool slots = {};
  };
  std::map<std::pair<int32_t, int32_t>, Sequence> sequences;
  for (const Action& action : list) ++sequences[{action.chunk, action.micro}].programs;
  constexpr std::pair<size_t, size_t> kPools[] = {{0, 1}, {0, 2}, {1, 2}};  // the programs of each
  std::array<std::vector<bool>, 3> used;                                    // frames
  Frames frames;
  for (const Action& action : list) {
    Sequence& own = sequences[{action.chunk, action.micro}];
    const size_t program = own.begun++;
    for (size_t pool = 0; pool < used.size(); ++pool) {
      const auto [first, last] = kPools[pool];
      if (program != first || last >= own.programs) continue;
      auto free = std::ranges::find(used[pool], false);
      if (free == used[pool].end()) free = used[pool].insert(free, false);
      *free = true;
      own.slots[pool] = free - used[pool].begin();
    }
    frames.slots.push_back(own.slots);
    for (size_t pool = 0; pool < used.size(); ++pool)
      if (program == kPools[pool].second) used[pool][static_cast<size_t>(own.slots[pool])] = false;
  }
  for (size_t pool = 0; pool < used.size(); ++pool) frames.counts[pool] = std::ssize(used[pool]);
  return frames;
}

std::vector<int64_t> split_layers(std::span<const double> costs, double head, int64_t chunks) {
  constexpr double kNever = std::numeric_limits<double>::infinity(), kEqual = 1 + 1e-9;  // rounding of sums
  const size_t layers = costs.size(), last = static_cast<size_t>(chunks) - 1;
  std::vector<double> before(layers + 1);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  struct Best {
    double value = kNever;
    size_t end = 0;  // the first chunk ends before this layer
  };
  std::vector<std::vector<Best>> best;  // by first chunk and first layer: the best split of the rest
  const auto solve = [&](const auto& join) {
    best.assign(last + 2, std::vector<Best>(layers + 1));
    best[last + 1][layers].value = 0;
    for (size_t chunk = last + 1; chunk-- > 0;)
      for (size_t first = 0; first <= layers; ++first)
        for (size_t end = first + (chunk > 0 && chunk < last); end <= layers; ++end) {
          const double own = before[end] - before[first] + (chunk == last ? head : 0);
          const double value = join(own, best[chunk + 1][end].value);
          if (value * kEqual < best[chunk][first].value) best[chunk][first] = {value, end};
        }
  };
  solve([](double own, double rest) { return std::max(own, rest); });
  const double most = best[0][0].value * kEqual;
  TRAINER_CHECK(most < kNever, "{} layers in {} chunks", layers, chunks);
  solve([&](double own, double rest) { return own <= most ? own * own + rest : kNever; });
  std::vector<int64_t> split;
  for (size_t chunk = 0, first = 0; chunk <= last; ++chunk) {
    const size_t end = best[chunk][first].end;
    split.push_back(static_cast<int64_t>(end - std::exchange(first, end)));
  }
  return split;
}

ActionKind kind_of(const Action& action, int64_t micro_batches) {
  return {action.passes, action.chunk, action.micro == 0, action.micro + 1 == micro_batches};
}

}  // namespace trainer::sharding
