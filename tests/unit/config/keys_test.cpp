#include "config/keys.h"

#include <gtest/gtest.h>

#include <set>

namespace trainer::config {
namespace {

TEST(Keys, AreDeclaredOnceInAKnownSectionAndExplained) {
  std::set<std::string> names, paths;
  for (const Section& section : sections()) EXPECT_TRUE(names.insert(section.name).second) << section.name;
  for (const Key& key : keys()) {
    EXPECT_TRUE(paths.insert(key.path()).second) << key.path() << " is declared twice";
    EXPECT_TRUE(names.contains(key.section)) << key.path();
    EXPECT_FALSE(key.help.empty()) << key.path();
    EXPECT_EQ(find_key(key.section, key.name), &key);
  }
  EXPECT_EQ(find_key("model", "heads"), nullptr);
}

TEST(Keys, StoreEachValueInAMemberOfItsOwn) {
  // Setting one key must change the value of that key only.
  const std::map<Type, Value> others = {{Type::integer, int64_t{77}},
                                        {Type::number, 0.375},
                                        {Type::string, std::string("elsewhere")},
                                        {Type::list, StringList{"a", "b"}},
                                        {Type::integers, IntegerList{2, 3, 4}},
                                        {Type::any, std::string("3/8")}};
  for (const Key& key : keys()) {
    Config config = defaults();
    const Value other = key.type == Type::boolean  ? Value(key.initial != Value(true))
                        : key.type == Type::choice ? Value(key.names.back())
                        : key.type == Type::tables
                            ? Value(TableList{{{{key.members[0].name, others.at(key.members[0].type)}}}})
                            : others.at(key.type);
    key.set(config, other);
    EXPECT_EQ(key.get(config), other) << key.path();
    const Config untouched = defaults();
    for (const Key& rest : keys()) {
      if (&rest != &key) {
        EXPECT_EQ(rest.get(config), rest.get(untouched)) << key.path() << " also sets " << rest.path();
      }
    }
  }
}

TEST(Keys, HaveDefaultsInTheirOwnRange) {
  for (const Key& key : keys()) {
    if (!key.derived.empty()) continue;
    if (const auto* integer = std::get_if<int64_t>(&key.initial)) {
      EXPECT_TRUE(key.range.contains(static_cast<double>(*integer))) << key.path();
    }
    if (const auto* number = std::get_if<double>(&key.initial)) {
      EXPECT_TRUE(key.range.contains(*number)) << key.path();
    }
  }
}

TEST(Range, KnowsOpenAndClosedBoundsAndNamesThem) {
  const Range open{.min = 0, .max = 1, .open_min = true, .open_max = true};
  EXPECT_FALSE(open.contains(0));
  EXPECT_FALSE(open.contains(1));
  EXPECT_TRUE(open.contains(0.5));
  EXPECT_EQ(open.text(), "> 0 and < 1");
  const Range closed{.min = 0, .max = 1};
  EXPECT_TRUE(closed.contains(0));
  EXPECT_TRUE(closed.contains(1));
  EXPECT_EQ(closed.text(), ">= 0 and <= 1");
  EXPECT_EQ(Range{}.text(), "");
  EXPECT_EQ((Range{.max = 3}.text()), "<= 3");
}

}  // namespace
}  // namespace trainer::config
