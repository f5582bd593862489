// Lists of actions: their order, their invariants, and the frames of memory that they need.
#include "sharding/pipeline.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/format.h"
#include "rigs/messages.h"

namespace trainer::sharding {
namespace {

constexpr Pass kPasses[] = {kForward, kBackward, kWeights};

Stages stages_of(int64_t count, int64_t chunks = 1, bool zb = false) {
  return {count, chunks, zb ? PipelineSchedule::zb_h1 : PipelineSchedule::one_forward_one_backward, {}};
}

/// "F0 F1a B0b+W0b": passes of one action are joined by "+", and the chunks of a stage are letters.
std::string text(const std::vector<Action>& list, const Stages& p) {
  std::string all;
  for (const Action& action : list) {
    std::string separator = all.empty() ? "" : " ";
    for (size_t pass = 0; pass < 3; ++pass)
      if (action.has(kPasses[pass])) {
        all += format("{}{}{}", separator, "FBW"[pass], action.micro);
        if (p.chunks > 1) all += static_cast<char>('a' + action.chunk / p.count);
        separator = "+";
      }
  }
  return all;
}

void expect_lists(const Stages& p, int64_t micro_batches, const std::vector<const char*>& expected) {
  const ActionLists lists = lists_of(p, micro_batches);
  ASSERT_EQ(lists.size(), expected.size());
  for (size_t s = 0; s < lists.size(); ++s) EXPECT_EQ(text(lists[s], p), expected[s]) << "stage " << s;
}

TEST(Lists, OfOneStageRunBothPassesOfEachMicroBatchTogether) {
  for (const int64_t micro_batches : {0, 1, 2, 5}) {
    const ActionLists lists = lists_of({}, micro_batches);
    ASSERT_EQ(lists.size(), 1u);
    ASSERT_EQ(lists[0].size(), static_cast<size_t>(micro_batches));
    for (int32_t micro = 0; micro < micro_batches; ++micro)
      EXPECT_EQ(lists[0][static_cast<size_t>(micro)], (Action{kForward | kBackward, micro, 0}));
  }
}

TEST(Lists, AlternateForwardAndBackwardPasses) {
  expect_lists(stages_of(4), 6,
               {"F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5", "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
                "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5", "F0+B0 F1+B1 F2+B2 F3+B3 F4+B4 F5+B5"});
  // Adjacent passes of a middle stage stay two actions: its message is due in between.
  expect_lists(stages_of(3), 1, {"F0 B0", "F0 B0", "F0+B0"});
}

TEST(Lists, OfSeveralChunksInterleaveThem) {
  expect_lists(stages_of(2, 2), 4,
               {"F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a",
                "F0a F1a F0b+B0b F1b+B1b F2a B0a F3a B1a F2b+B2b F3b+B3b B2a B3a"});
}

TEST(Lists, OfZbH1ComputeWeightGradientsWhereStagesWouldWait) {
  expect_lists(
      stages_of(4, 1, true), 6,
      {"F0 F1 F2 F3 B0+W0 F4 B1+W1 F5 B2+W2 B3+W3 B4+W4 B5+W5", "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 B4 W3 B5 W4 W5",
       "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 B5 W3 W4 W5",
       "F0+B0 F1+B1 F2+B2 F3+B3 W0 F4+B4 W1 F5+B5 W2 W3 W4 W5"});
}

/// Calls use(stages, micro_batches) for all combinations that lists_of() accepts.
template <typename Use>
void for_each_pipeline(const Use& use) {
  for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8})
    for (const int64_t chunks : {1, 2, 3, 4})
      for (int64_t micro_batches = 1; micro_batches <= 3 * count; ++micro_batches) {
        if (chunks > 1 && (count == 1 || micro_batches % count != 0)) continue;
        use(stages_of(count, chunks), micro_batches);
        if (chunks == 1) use(stages_of(count, 1, true), micro_batches);
      }
}

TEST(Lists, AreValid) {
  for_each_pipeline(
      [](const Stages& p, int64_t micro_batches) { check(lists_of(p, micro_batches), p, micro_batches); });
}

TEST(Check, RejectsAListThatBreaksAnInvariant) {
  // Lets `mutate` change the lists, which must then fail with a message that has this part.
  const auto broken = [](const Stages& p, int64_t micro_batches, const char* part, const auto& mutate) {
    ActionLists lists = lists_of(p, micro_batches);
    mutate(lists);
    tests::expect_error(Code::internal, {part}, [&] { check(lists, p, micro_batches); });
  };
  const auto swap = [](size_t stage, size_t one, size_t two) {
    return [=](ActionLists& lists) { std::swap(lists[stage][one], lists[stage][two]); };
  };
  const Stages zb = stages_of(4, 1, true);
  // 1. Each pass once, in order, on its stage.
  broken(zb, 6, "chunk 1 on stage 0", [](ActionLists& lists) { std::swap(lists[0], lists[1]); });
  broken(zb, 6, "pass 2 of 1 micro-batches is missing", [](ActionLists& lists) { lists[1].pop_back(); });
  broken(zb, 6, "micro-batch 0 instead of 1", [](ActionLists& lists) { lists[1][1] = lists[1][0]; });
  broken(stages_of(2), 1, "pass 1 of micro-batch 0 before pass 0", swap(0, 0, 1));
  broken(zb, 1, "pass 2 of micro-batch 0 before pass 1", swap(1, 1, 2));
  // 2. Micro-batches in ascending order.
  broken(stages_of(4), 6, "micro-batch 1 instead of 0", swap(0, 0, 1));
  // 3. The same order of messages at both ends of a link: chunks 2 and 0 of stage 0 send to chunks 3 and 1.
  broken(stages_of(2, 2), 4, "the ends of link 0 disagree", swap(0, 3, 4));
  // 4. No deadlock: stage 0 waits for its first gradient, and stage 1 first for the second micro-batch.
  broken(stages_of(3), 2, "deadlock", swap(0, 1, 2));
  // 5. All forward passes first: too many micro-batches in flight.
  broken(stages_of(1), 2, "2 micro-batches in flight, at most 1", [](ActionLists& lists) {
    lists[0] = {{kForward, 0, 0}, {kForward, 1, 0}, {kBackward, 0, 0}, {kBackward, 1, 0}};
  });
}

/// Returns the most micro-batches, of all chunks, between two passes: "FB 3 FW 4 BW 2".
std::string in_flight(const std::vector<Action>& list) {
  std::string all;
  for (const auto& [from, to] : {std::pair<size_t, size_t>{0, 1}, {0, 2}, {1, 2}}) {
    int64_t now = 0, most = 0, ended = 0;
    for (const Action& action : list) {
      now += action.has(kPasses[from]);
      most = std::max(most, now);
      now -= action.has(kPasses[to]);
      ended += action.has(kPasses[to]);
    }
    if (ended > 0) all += format("{}{}{} {}", all.empty() ? "" : " ", "FBW"[from], "FBW"[to], most);
  }
  return all;
}

using PerPool = Frames::PerPool;

TEST(Frames, AreAsManyAsMicroBatchesInFlight) {
  struct Row {
    Stages stages;
    int64_t micro_batches;
    std::vector<const char*> in_flight;  // by passes
    std::vector<PerPool> frames;         // by programs: none between passes of the same action
  };
  for (const Row& row : {
           Row{stages_of(4), 8, {"FB 4", "FB 3", "FB 2", "FB 1"}, {{4}, {3}, {2}, {}}},
           Row{stages_of(4), 2, {"FB 2", "FB 2", "FB 2", "FB 1"}, {{2}, {2}, {2}, {}}},
           Row{stages_of(4, 2), 8, {"FB 11", "FB 9", "FB 7", "FB 5"}, {{11}, {9}, {7}, {5}}},
           Row{stages_of(2, 3), 4, {"FB 7", "FB 5"}, {{7}, {5}}},
           Row{stages_of(4, 1, true),
               8,
               {"FB 4 FW 4 BW 1", "FB 3 FW 4 BW 2", "FB 2 FW 4 BW 3", "FB 1 FW 4 BW 4"},
               {{4}, {3, 4, 2}, {2, 4, 3}, {4}}},
           Row{stages_of(4, 1, true),
               2,
               {"FB 2 FW 2 BW 1", "FB 2 FW 2 BW 2", "FB 2 FW 2 BW 2", "FB 1 FW 2 BW 2"},
               {{2}, {2, 2, 2}, {2, 2, 2}, {2}}},
       }) {
    const ActionLists lists = lists_of(row.stages, row.micro_batches);
    for (size_t s = 0; s < lists.size(); ++s) {
      EXPECT_EQ(in_flight(lists[s]), row.in_flight[s]) << text_of(row.stages) << " stage " << s;
      EXPECT_EQ(frames_of(lists[s]).counts, row.frames[s]) << text_of(row.stages) << " stage " << s;
    }
  }
  for (const int64_t count : {2, 4, 8})
    for (const int64_t chunks : {1, 2, 4})
      for (const int64_t micro_batches : {2 * count, 4 * count})
        for (int64_t s = 0; s < count; ++s) {
          const int64_t after = count - s - 1, most = chunks == 1 ? after + 1 : 2 * after + (chunks - 1) * count + 1;
          const auto frames = [&](bool zb) {
            return frames_of(lists_of(stages_of(count, chunks, zb), micro_batches)[static_cast<size_t>(s)]).counts;
          };
          EXPECT_EQ(frames(false), PerPool{std::min(most, micro_batches * chunks) - (after == 0 && chunks == 1)});
          if (chunks > 1) continue;
          EXPECT_EQ(frames(true), s == 0 || after == 0 ? PerPool{count} : (PerPool{count - s, count, s + 1}));
        }
}

TEST(Frames, HaveTheLowestFreeSlotFromTheirFirstProgramToTheirLast) {
  for_each_pipeline([](const Stages& p, int64_t micro_batches) {
    for (const std::vector<Action>& list : lists_of(p, micro_batches)) {
      const Frames frames = frames_of(list);
      ASSERT_EQ(frames.slots.size(), list.size());
      std::map<std::pair<int32_t, int32_t>, std::vector<size_t>> programs;  // positions in the list, by sequence
      for (size_t a = 0; a < list.size(); ++a) programs[{list[a].chunk, list[a].micro}].push_back(a);
      const std::pair<size_t, size_t> pools[] = {{0, 1}, {0, 2}, {1, 2}};
      for (size_t pool = 0; pool < 3; ++pool) {
        const auto [first, last] = pools[pool];
        std::map<size_t, size_t> spans;  // first to last action
        for (const auto& [of, at] : programs)
          if (last < at.size()) spans[at[first]] = at[last];
        int64_t most = 0;
        for (const auto& [begin, end] : spans) {
          std::set<int64_t> taken;
          for (const auto& [other, until] : spans)
            if (other < begin && begin <= until) taken.insert(frames.slots[other][pool]);
          int64_t lowest = 0;
          while (taken.contains(lowest)) ++lowest;
          ASSERT_EQ(frames.slots[begin][pool], lowest);
          ASSERT_EQ(frames.slots[end][pool], lowest);
          most = std::max(most, lowest + 1);
        }
        ASSERT_EQ(frames.counts[pool], most);
      }
    }
  });
}

TEST(Frames, AddUpToThePublishedMemoryOfTheFirstStage) {
  // Korthikanti et al. (2022), figure 1: activations in GiB on 8 tensor ranks, without recomputation and with sequence
  // parallelism and selective recomputation.
  struct Row {
    double d_model, heads, layers;
    int64_t stages, chunks;
    double none, selective;
  };
  for (const Row& row :
       {Row{12288, 96, 96, 8, 3, 66.84375, 12.3515625}, Row{20480, 128, 105, 35, 3, 114.0234375, 23.076171875},
        Row{25600, 160, 128, 64, 1, 131.25, 26.5625}}) {
    const PerPool frames = frames_of(lists_of(stages_of(row.stages, row.chunks), 4 * row.stages)[0]).counts;
    const double layers = static_cast<double>(frames[0]) * row.layers / static_cast<double>(row.stages * row.chunks);
    const double tensor = 8, seq_len = 2048, values = seq_len * row.d_model * layers / 0x1p30;
    EXPECT_NEAR(values * (10 + 24 / tensor + 5 * row.heads * seq_len / (row.d_model * tensor)), row.none, 1e-6);
    EXPECT_NEAR(values * 34 / tensor, row.selective, 1e-6);
  }
  // A GPT-2 block holds 9 values for its backward pass, 7 until the weight gradients, and 9 in between; a program that
  // runs two of the passes holds their sum in one pool, and a last stage holds the values of its backward pass.
  const auto units = [](int64_t count, bool zb) {
    std::vector<int64_t> all;
    const ActionLists lists = lists_of(stages_of(count, 1, zb), 4 * count);
    for (const std::vector<Action>& list : lists) {
      const PerPool frames = frames_of(list).counts;
      const bool last = all.size() + 1 == lists.size();
      const int64_t first = zb && !all.empty() && !last ? 9 : 16, work = !last ? 0 : zb ? 9 : 16;
      all.push_back(first * frames[0] + 7 * frames[1] + 9 * frames[2] + work);
    }
    return all;
  };
  using All = std::vector<int64_t>;
  EXPECT_EQ(units(2, false), (All{32, 16}));
  EXPECT_EQ(units(4, false), (All{64, 48, 32, 16}));
  EXPECT_EQ(units(2, true), (All{32, 41}));
  EXPECT_EQ(units(4, true), (All{64, 73, 73, 73}));
  EXPECT_EQ(units(8, true), (All{128, 137, 137, 137, 137, 137, 137, 137}));
}

TEST(Kinds, DistinguishTheFirstAndTheLastMicroBatch) {
  EXPECT_EQ(kind_of({kForward | kBackward, 0, 1}, 1), (ActionKind{kForward | kBackward, 1, true, true}));
  EXPECT_EQ(kind_of({kForward, 1, 2}, 3), (ActionKind{kForward, 2, false, false}));
  EXPECT_EQ(kind_of({kBackward, 2, 0}, 3), (ActionKind{kBackward, 0, false, true}));
  EXPECT_EQ(text_of(Action{kForward | kBackward, 3, 1}), "FB 1");
  EXPECT_EQ(text_of(Action{kWeights, 0, 12}), "W 12");
}

}  // namespace
}  // namespace trainer::sharding
