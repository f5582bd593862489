#include "base/interruptible.h"

#include <gtest/gtest.h>

namespace trainer {
namespace {

TEST(Interruptible, ReturnsTheResultOrTheErrorOfTheWork) {
  const Watch never{[] { return false; }, {}};
  for (const Watch& watch : {Watch{}, never}) {
    const auto caller = std::this_thread::get_id();
    const auto [value, thread] =
        interruptible("adding", watch, [] { return std::pair(std::string("sum"), std::this_thread::get_id()); });
    EXPECT_EQ(value, "sum");
    EXPECT_EQ(thread == caller, !watch.stop) << "without a request to stop there is nothing to wait for";
    EXPECT_THROW(interruptible("adding", watch, []() -> int { throw std::out_of_range("no"); }), std::out_of_range);
  }
  EXPECT_FALSE(has_abandoned_work());
}

TEST(Interruptible, ShortWorkIsDoneEvenIfTheTimeIsOver) {
  EXPECT_EQ(interruptible("adding", {[] { return true; }, {}}, [] { return 7; }), 7);
}

TEST(Interruptible, LeavesWorkThatTakesLongAndShowsProgressUntilThen) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  const auto over = std::make_shared<std::promise<void>>();  // the work owns what it uses
  auto ended = over->get_future();
  std::vector<double> shown;
  const Watch watch{[&] { return shown.size() == 3; },
                    [&](const std::string& doing, double seconds) {
                      EXPECT_EQ(doing, "waiting");
                      shown.push_back(seconds);
                    }};
  try {
    interruptible("waiting", watch, [released, over] {
      released.wait();
      over->set_value_at_thread_exit();
      return 0;
    });
    ADD_FAILURE() << "the work has ended";
  } catch (const Interrupted& interrupted) {
    EXPECT_STREQ(interrupted.what(), "waiting");
  }
  EXPECT_EQ(shown.size(), 3);
  EXPECT_TRUE(std::ranges::is_sorted(shown));
  EXPECT_TRUE(has_abandoned_work());
  release.set_value();
  ended.wait();
}

}  // namespace
}  // namespace trainer
