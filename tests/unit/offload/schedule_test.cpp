#include "offload/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "unit/offload/races.h"

namespace trainer::offload {
namespace {

using config::Fraction;
using config::OffloadOrder;

std::string picture(const std::vector<Place>& places) {
  std::string text;
  for (const Place place : places) text += "hsr"[static_cast<size_t>(place)];
  return text;
}

TEST(Plan, AShareOfOneInKTakesEveryKth) {
  EXPECT_EQ(picture(places({.device_share = {0, 1}}, 6)), "hhhhhh");
  EXPECT_EQ(picture(places({.device_share = {1, 1}}, 6)), "ssssss");
  EXPECT_EQ(picture(places({.device_share = {1, 2}}, 6)), "hshshs");
  EXPECT_EQ(picture(places({.device_share = {1, 3}}, 7)), "hhshhsh");
  EXPECT_EQ(picture(places({.device_share = {2, 3}}, 7)), "hsshssh");
  EXPECT_EQ(picture(places({.device_share = {7, 8}}, 9)), "hsssssssh");
  EXPECT_EQ(picture(places({.device_share = {1, 2}, .resident = 2}, 7)), "rrhshsh");
  EXPECT_EQ(picture(places({.device_share = {1, 2}, .resident = 9}, 3)), "rrr");
}

TEST(Plan, SubgroupsCoverWhatIsHeldInNearEqualPieces) {
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
  for (const Operation& op : schedule.operations)
    text += format("{}{}{} ", std::string_view("FLGDCR")[static_cast<size_t>(op.kind)], op.subgroup,
                   op.slot < 0 ? "" : format("@{}", op.slot));
  return text;
}

TEST(Schedule, FillsAsManySlotsAsThereAreAndGoesOnAfterDrains) {
  const std::vector<Place> where = places({.device_share = {1, 2}}, 6);
  const Schedule list = schedule({.places = where, .slots = 2});
  // Flushes in the order of arrival; loads of 1 and 3 at once, that of 5 after the drain of 1.
  EXPECT_EQ(text_of_list(list), "F4 F2 F0 L1@0 L3@1 C0 R0 G1@0 D1@0 L5@0 C2 R2 G3@1 D3@1 C4 R4 G5@0 D5@0 ");
  EXPECT_EQ(list.held, (Held{-1, -1}));
}

TEST(Schedule, TheLastSubgroupOnTheDeviceIsDrainedToo) {
  for (const int n : {1, 4, 8}) {
    const std::vector<Place> where = places({.device_share = {1, n == 1 ? 1 : 4}}, n);
    const Schedule list = schedule({.places = where, .slots = 3});
    const auto drains =
        std::ranges::count_if(list.operations, [](const Operation& op) { return op.kind == Kind::drain; });
    EXPECT_EQ(drains, std::ranges::count(where, Place::streamed));
    EXPECT_EQ(list.operations.back().kind, Kind::drain);
  }
}

TEST(Schedule, ZigzagLeavesTheLastOnesForTheNextStep) {
  const std::vector<Place> where(5, Place::streamed);
  Situation now{.places = where, .slots = 2, .order = OffloadOrder::zigzag};
  const Schedule first = schedule(now);
  EXPECT_EQ(text_of_list(first), "L0@0 L1@1 G0@0 D0@0 L2@0 G1@1 D1@1 L3@1 G2@0 D2@0 L4@0 G3@1 G4@0 ");
  EXPECT_EQ(first.held, (Held{4, 3}));
  now.held = first.held;
  now.backwards = true;
  const Schedule second = schedule(now);
  EXPECT_EQ(text_of_list(second), "G4@0 D4@0 L2@0 G3@1 D3@1 L1@1 G2@0 D2@0 L0@0 G1@1 G0@0 ");
  now.held = second.held;
  EXPECT_EQ(text_of_list(homecoming(now)), "D0@0 D1@1 ");
}

TEST(Schedule, ResidentsAreLoadedOnce) {
  const std::vector<Place> where = places({.device_share = {0, 1}, .resident = 2}, 3);
  Situation now{.places = where};
  const Schedule first = schedule(now);
  EXPECT_EQ(text_of_list(first), "F2 L0@0 G0@0 L1@1 G1@1 C2 R2 ");
  now.held = first.held;
  EXPECT_EQ(text_of_list(schedule(now)), "F2 G0@0 G1@1 C2 R2 ");
}

/// Every situation of a step that follows others, with plans that change in between.
template <typename F>
void each_situation(F&& check, const std::vector<int>& sizes = {1, 2, 7, 12}) {
  for (const Fraction share : {Fraction{0, 1}, {1, 10}, {1, 3}, {1, 2}, {2, 3}, {7, 8}, {1, 1}})
    for (const int n : sizes)
      for (const int slots : {1, 2, 3})
        for (const int resident : {0, 1, n})
          for (const OffloadOrder order : {OffloadOrder::forward, OffloadOrder::arrival, OffloadOrder::zigzag})
            for (const int form : {0, 1, 2, 3}) {  // two of the three at a time
              const std::vector<Place> where = places({.device_share = share, .resident = resident}, n);
              Situation now{.places = where,
                            .slots = slots,
                            .order = order,
                            .early = (form & 2) != 0,
                            .share = form == 1 || form == 2,
                            .bounce = (form & 1) != 0};
              for (int step = 0; step < 3; ++step) {
                now.backwards = order == OffloadOrder::zigzag && step % 2 == 1;
                const Schedule list = schedule(now);
                check(now, list);
                now.held = list.held;
              }
              now.backwards = !now.backwards;  // as after a plan that was put off
              check(now, schedule(now));
            }
}

TEST(Schedule, NoTwoOperationsRace) {
  int64_t lists = 0;
  each_situation([&](const Situation& now, const Schedule& list) {
    const std::vector<std::string> races = races_of(list, now.early);
    ASSERT_TRUE(races.empty()) << races.front() << " in " << text_of_list(list);
    ++lists;
  });
  EXPECT_EQ(lists, 7 * 4 * 3 * 3 * 3 * 4 * 4);
}

TEST(Schedule, EveryWaitIsNeeded) {
  each_situation(
      [&](const Situation& now, const Schedule& list) {
        for (size_t i = 0; i < list.operations.size(); ++i)
          for (size_t k = 0; k < list.operations[i].after.size(); ++k) {
            Schedule without = list;
            auto& after = without.operations[i].after;
            const int left_out = after[k];
            after.erase(after.begin() + static_cast<ptrdiff_t>(k));
            ASSERT_FALSE(races_of(without, now.early).empty())
                << text_of(list.operations[i]) << " waits in vain for "
                << text_of(list.operations[static_cast<size_t>(left_out)]) << " in " << text_of_list(list);
          }
      },
      {1, 7});
}

TEST(Schedule, EverySubgroupIsUpdatedOnceAndItsWeightsGoToTheDevice) {
  each_situation([&](const Situation& now, const Schedule& list) {
    std::map<int, std::string> done;
    for (const Operation& op : list.operations) done[op.subgroup] += "FLGDCR"[static_cast<size_t>(op.kind)];
    for (int i = 0; i < static_cast<int>(now.places.size()); ++i) {
      std::string expected = "FCR";
      const bool held = !now.held.empty() && std::ranges::count(now.held, i) > 0;
      const bool stays = std::ranges::count(list.held, i) > 0;
      if (now.places[static_cast<size_t>(i)] != Place::host)
        expected = std::string(held ? "" : "L") + "G" + (stays ? "" : "D");
      ASSERT_EQ(done[i], expected) << "subgroup " << i << " in " << text_of_list(list);
    }
  });
}

TEST(Schedule, LoadsWaitForTheMemoryOfActivationsAndNothingStaysInIt) {
  each_situation([&](const Situation& now, const Schedule& list) {
    for (const Operation& op : list.operations)
      ASSERT_EQ(op.room, now.share && op.kind == Kind::load && op.slot < now.slots) << text_of(op);
    if (!now.share || now.order == OffloadOrder::zigzag) return;
    for (int slot = 0; slot < now.slots; ++slot) ASSERT_EQ(list.held[static_cast<size_t>(slot)], -1);
  });
}

TEST(Schedule, WhatIsDoneAlreadyIsNotDoneAgain) {
  std::mt19937 draw(1);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<Place> where = places({.device_share = {1, 2}, .resident = 1}, 8);
    Situation now{.places = where, .slots = 2, .bounce = true};
    now.held = {3, -1, 0};
    for (int i = 0; i < 8; ++i) now.done.push_back(draw() % 2 == 0);
    const Schedule list = schedule(now);
    EXPECT_TRUE(races_of(list).empty());
    std::vector<int> updates(8), drains(8);
    for (const Operation& op : list.operations) {
      updates[static_cast<size_t>(op.subgroup)] += op.kind == Kind::update_host || op.kind == Kind::update_device;
      drains[static_cast<size_t>(op.subgroup)] += op.kind == Kind::drain;
    }
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(updates[i], now.done[i] ? 0 : 1);
    EXPECT_EQ(drains[3], 1) << "what a slot holds comes home, updated here or before";
  }
}

TEST(Schedule, BlockingLetsNothingOverlap) {
  const std::vector<Place> where = places({.device_share = {1, 2}}, 5);
  const Schedule list = schedule({.places = where, .slots = 2, .blocking = true, .bounce = true});
  const auto before = order_of(list);
  for (size_t i = 1; i < list.operations.size(); ++i) EXPECT_TRUE(before[i][i - 1]) << i;
}

TEST(Schedule, BytesAreThoseOfTheFormulas) {
  std::vector<Subgroup> subgroups;
  for (int i = 0; i < 10; ++i) subgroups.push_back({i, {0, 1000 + 64 * i}});
  each_situation([&](const Situation& now, const Schedule& list) {
    if (now.places.size() > subgroups.size()) return;
    const Share share = share_of(now.places, std::span(subgroups).first(now.places.size()));
    int64_t held_before = 0, held_after = 0;  // elements
    for (const int i : now.held) held_before += i < 0 ? 0 : subgroups[static_cast<size_t>(i)].part.count;
    for (const int i : list.held) held_after += i < 0 ? 0 : subgroups[static_cast<size_t>(i)].part.count;
    const Bytes bytes = bytes_of(list, subgroups, {.state = 4, .compute = 2, .gradient = 4});
    EXPECT_EQ(bytes[static_cast<size_t>(Kind::flush)], 4 * share.host);
    EXPECT_EQ(bytes[static_cast<size_t>(Kind::refresh)], 2 * share.host);
    const int64_t on_device = share.streamed + share.resident;
    EXPECT_EQ(bytes[static_cast<size_t>(Kind::load)], 12 * (on_device - held_before));
    EXPECT_EQ(bytes[static_cast<size_t>(Kind::drain)], 12 * (on_device - held_after));
  });
}

}  // namespace
}  // namespace trainer::offload
