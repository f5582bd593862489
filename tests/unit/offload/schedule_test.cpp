#include "offload/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "unit/offload/races.h"

namespace trainer::offload {
namespace {

using config::Fraction;

std::string picture(const std::vector<Residency>& residencies) {
  std::string text;
  for (const Residency place : residencies) text += "hsr"[static_cast<size_t>(place)];
  return text;
}

TEST(Placement, AShareOfOneInKTakesEveryKth) {
  EXPECT_EQ(picture(residencies({.device_share = {0, 1}}, 6)), "hhhhhh");
  EXPECT_EQ(picture(residencies({.device_share = {1, 1}}, 6)), "ssssss");
  EXPECT_EQ(picture(residencies({.device_share = {1, 2}}, 6)), "hshshs");
  EXPECT_EQ(picture(residencies({.device_share = {1, 3}}, 7)), "hhshhsh");
  EXPECT_EQ(picture(residencies({.device_share = {2, 3}}, 7)), "hsshssh");
  EXPECT_EQ(picture(residencies({.device_share = {7, 8}}, 9)), "hsssssssh");
  EXPECT_EQ(picture(residencies({.device_share = {1, 2}, .resident = 2}, 7)), "rrhshsh");
  EXPECT_EQ(picture(residencies({.device_share = {1, 2}, .resident = 9}, 3)), "rrr");
}

TEST(Placement, SubgroupsCoverWhatIsHeldInNearEqualPieces) {
  std::vector<params::Group> groups(3);
  groups[0].held = {0, 1000};
  groups[1].held = {0, 0};
  groups[2].held = {96, 129};
  const std::vector<Subgroup> all = cut(groups, 400);
  ASSERT_EQ(all.size(), 4u);  // 1000 = 384 + 384 + 232, as 400 rounds down to 384; 129 fits
  const comm::Chunk expected[] = {{0, 384}, {384, 384}, {768, 232}, {96, 129}};
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].group, i < 3 ? 0 : 2);
    EXPECT_EQ(all[i].part.begin, expected[i].begin);
    EXPECT_EQ(all[i].part.count, expected[i].count);
  }
}

std::string text_of_list(const Schedule& schedule) {
  std::string text;
  for (const Operation& op : schedule)
    text += format("{}{}{} ", std::string_view("FLGDCR")[static_cast<size_t>(op.kind)], op.subgroup,
                   op.slot < 0 ? "" : format("@{}", op.slot));
  return text;
}

TEST(Schedule, FillsAsManySlotsAsThereAreAndGoesOnAfterDrains) {
  const std::vector<Residency> where = residencies({.device_share = {1, 2}}, 6);
  const Schedule list = schedule({.residencies = where, .slots = 2});
  // Flushes in the order of arrival; 1 and 3 are loaded immediately, 5 after the drain of 1.
  EXPECT_EQ(text_of_list(list), "F4 F2 F0 L1@0 L3@1 C0 R0 G1@0 D1@0 L5@0 C2 R2 G3@1 D3@1 C4 R4 G5@0 D5@0 ");
}

TEST(Schedule, TheLastSubgroupOnTheDeviceIsDrainedToo) {
  for (const int n : {1, 4, 8}) {
    const std::vector<Residency> where = residencies({.device_share = {1, n == 1 ? 1 : 4}}, n);
    const Schedule list = schedule({.residencies = where, .slots = 3});
    const auto drains =
        std::ranges::count_if(list, [](const Operation& op) { return op.kind == OperationKind::drain; });
    EXPECT_EQ(drains, std::ranges::count(where, Residency::streamed));
    EXPECT_EQ(list.back().kind, OperationKind::drain);
  }
}

TEST(Schedule, ResidentsAreLoadedOnceAndCopiedBackOnRequest) {
  const std::vector<Residency> where = residencies({.device_share = {1, 1}, .resident = 2}, 3);
  EXPECT_EQ(text_of_list(schedule({.residencies = where, .slots = 1})), "L2@0 L0@1 G0@1 L1@2 G1@2 G2@0 D2@0 ");
  EXPECT_EQ(text_of_list(schedule({.residencies = where, .slots = 1, .loaded = true})), "L2@0 G0@1 G1@2 G2@0 D2@0 ");
  EXPECT_EQ(text_of_list(write_back(where, 1)), "D0@1 D1@2 ");
}

/// Calls `check` for every situation in which a step can begin, with its schedule.
template <typename F>
void each_situation(F&& check, const std::vector<int>& sizes = {1, 2, 7, 12}) {
  for (const Fraction share : {Fraction{0, 1}, {1, 10}, {1, 3}, {1, 2}, {2, 3}, {7, 8}, {1, 1}})
    for (const int n : sizes)
      for (const int slots : {1, 2, 3})
        for (const int resident : {0, 1, n})
          for (const bool bounce : {false, true})
            for (const bool loaded : {false, true}) {
              const std::vector<Residency> where = residencies({.device_share = share, .resident = resident}, n);
              const Situation now{.residencies = where, .slots = slots, .bounce = bounce, .loaded = loaded};
              check(now, schedule(now));
            }
}

TEST(Schedule, NoTwoOperationsRace) {
  int64_t lists = 0;
  each_situation([&](const Situation&, const Schedule& list) {
    const std::vector<std::string> races = races_of(list);
    ASSERT_TRUE(races.empty()) << races.front() << " in " << text_of_list(list);
    ++lists;
  });
  EXPECT_EQ(lists, 7 * 4 * 3 * 3 * 2 * 2);
}

TEST(Schedule, EveryWaitIsNeeded) {
  each_situation(
      [&](const Situation&, const Schedule& list) {
        for (size_t i = 0; i < list.size(); ++i)
          for (size_t k = 0; k < list[i].after.size(); ++k) {
            Schedule without = list;
            auto& after = without[i].after;
            const int left_out = after[k];
            after.erase(after.begin() + static_cast<ptrdiff_t>(k));
            ASSERT_FALSE(races_of(without).empty())
                << text_of(list[i]) << " waits in vain for " << text_of(list[static_cast<size_t>(left_out)]) << " in "
                << text_of_list(list);
          }
      },
      {1, 7});
}

TEST(Schedule, EverySubgroupIsUpdatedOnceAndItsWeightsGoToTheDevice) {
  each_situation([&](const Situation& now, const Schedule& list) {
    std::map<int, std::string> done;
    for (const Operation& op : list) done[op.subgroup] += "FLGDCR"[static_cast<size_t>(op.kind)];
    for (int i = 0; i < static_cast<int>(now.residencies.size()); ++i) {
      std::string expected = "FCR";
      if (now.residencies[static_cast<size_t>(i)] == Residency::streamed) expected = "LGD";
      if (now.residencies[static_cast<size_t>(i)] == Residency::resident) expected = now.loaded ? "G" : "LG";
      ASSERT_EQ(done[i], expected) << "subgroup " << i << " in " << text_of_list(list);
    }
  });
}

TEST(Schedule, BlockingLetsNothingOverlap) {
  const std::vector<Residency> where = residencies({.device_share = {1, 2}}, 5);
  const Schedule list = schedule({.residencies = where, .slots = 2, .blocking = true, .bounce = true});
  const auto before = order_of(list);
  for (size_t i = 1; i < list.size(); ++i) EXPECT_TRUE(before[i][i - 1]) << i;
}

TEST(Schedule, BytesAreThoseOfTheFormulas) {
  std::vector<Subgroup> subgroups;
  for (int i = 0; i < 10; ++i) subgroups.push_back({i, {0, 1000 + 64 * i}});
  each_situation([&](const Situation& now, const Schedule& list) {
    if (now.residencies.size() > subgroups.size()) return;
    const Share share = share_of(now.residencies, std::span(subgroups).first(now.residencies.size()));
    const Bytes bytes = bytes_of(list, subgroups, {.master = 4, .states = 8, .compute = 2, .gradient = 4});
    EXPECT_EQ(bytes[static_cast<size_t>(OperationKind::flush)], 4 * share.host);
    EXPECT_EQ(bytes[static_cast<size_t>(OperationKind::refresh)], 2 * share.host);
    EXPECT_EQ(bytes[static_cast<size_t>(OperationKind::load)],
              12 * (share.streamed + (now.loaded ? 0 : share.resident)));
    EXPECT_EQ(bytes[static_cast<size_t>(OperationKind::drain)], 12 * share.streamed);
  });
}

}  // namespace
}  // namespace trainer::offload
