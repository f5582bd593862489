#include "optim/rule.h"

#include <gtest/gtest.h>

#include "config/keys.h"
#include "optim/elementwise.h"
#include "optim/make.h"

namespace trainer::optim {
namespace {

TEST(Rule, EveryNameOfTheKeySelectsTheRuleOfThatName) {
  const config::Key& key = *config::find_key("optim", "name");
  for (const std::string& name : key.names) {
    config::Config config = config::defaults();
    key.set(config, name);
    for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
      const Rules rules = make_rules(config, compute);
      EXPECT_EQ(rules.front()->name(), name);
      EXPECT_NE(rules.back()->elementwise(), nullptr) << "the last rule takes every parameter";
      EXPECT_EQ(rules.size(), rules.front()->elementwise() != nullptr ? 1u : 2u) << name;
      for (const std::unique_ptr<Rule>& rule : rules) {
        EXPECT_LE(rule->states().size(), kMostStates);
        EXPECT_EQ(rule->agreed(1).has_value(), rule->agreed(1000).has_value());
      }
    }
  }
}

TEST(Rule, AgreedValuesAreThoseOfAdamsCorrections) {
  for (const config::OptimizerName name : {config::OptimizerName::adamw, config::OptimizerName::muon}) {
    config::Config config = config::defaults();
    config.optim.name = name;
    config.optim.beta1 = 0.5, config.optim.beta2 = 0.75;
    const Update update = make_update(make_rules(config, DType::f32), 0.125, 2, 0.5);
    EXPECT_EQ(update.agreed, (Agreed{1 - 0.25, 1 - 0.5625}));
    EXPECT_EQ(update.lr, 0.125);
    EXPECT_EQ(update.t, 2);
    EXPECT_EQ(update.gradient_scale, 0.5);
  }
}

TEST(Rule, AtMostOneHasAgreedValues) {
  Rules rules;
  for (int i = 0; i < 2; ++i) rules.push_back(elementwise_rule({}, DType::f32));
  EXPECT_THROW(agreed(rules, 1), Error);
}

}  // namespace
}  // namespace trainer::optim
