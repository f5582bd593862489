#include "cli/arguments.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trainer::cli {
namespace {

using Words = std::vector<std::string>;

Words parsed(const Words& words) {
  std::vector<const char*> argv = {"trainer"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return arguments(static_cast<int>(argv.size()), argv.data(), {"train", "eval"}, {"--config", "--set", "-s"});
}

std::string refusal(const Words& words) {
  try {
    parsed(words);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::usage);
    return error.what();
  }
  ADD_FAILURE() << "taken";
  return {};
}

TEST(Arguments, GivesEachSettingASetOfItsOwn) {
  EXPECT_EQ(parsed({"--set", "a.b=1", "c.d=2", "--config", "x"}),
            (Words{"--set", "a.b=1", "--set", "c.d=2", "--config", "x"}));
  EXPECT_EQ(parsed({"eval", "-s", "a.b=1", "c.d=2"}), (Words{"eval", "-s", "a.b=1", "--set", "c.d=2"}));
  EXPECT_EQ(parsed({"train", "--set=a.b=1", "c.d=2", "-s", "e.f=3"}),
            (Words{"train", "--set=a.b=1", "--set", "c.d=2", "-s", "e.f=3"}));
}

TEST(Arguments, LeavesOtherWordsAlone) {
  EXPECT_EQ(parsed({"train", "--set", "a.b=1", "word", "x=y"}), (Words{"train", "--set", "a.b=1", "word", "x=y"}));
  EXPECT_EQ(parsed({"eval", "--data", "a=b.txt", "c.txt"}), (Words{"eval", "--data", "a=b.txt", "c.txt"}));
  EXPECT_EQ(parsed({"--set"}), (Words{"--set"}));
  EXPECT_EQ(parsed({}), Words{});
}

TEST(Arguments, RefusesOptionsBeforeAVerb) {
  EXPECT_EQ(refusal({"--dry-run", "train", "--config", "x"}),
            "--dry-run before the verb `train`: options follow the verb, as in `trainer train --dry-run …`");
  EXPECT_EQ(refusal({"--set", "a.b=1", "c.d=2", "eval"}),
            "--set before the verb `eval`: options follow the verb, as in `trainer eval --set a.b=1 c.d=2`");
}

TEST(Arguments, TakesTheValueOfAnOptionForNoVerb) {
  EXPECT_EQ(parsed({"--config", "train"}), (Words{"--config", "train"}));
  EXPECT_EQ(parsed({"--help", "train"}), (Words{"--help", "train"}));
}

TEST(Arguments, OffersTheNearestVerb) {
  EXPECT_EQ(refusal({"trian"}), "unknown verb \"trian\"; did you mean \"train\"?; there are train, eval");
  EXPECT_EQ(refusal({"a/x.toml"}),
            "unknown verb \"a/x.toml\"; a configuration is given as --config FILE; there are train, eval");
}

}  // namespace
}  // namespace trainer::cli
