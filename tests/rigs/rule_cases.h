#pragma once
// Configurations that together use every row of the table of elementwise rules. A row whose value of optim.name is new
// is among them by itself.
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "config/keys.h"
#include "optim/elementwise.h"

namespace trainer::tests {

struct RuleCase {
  std::string name;
  std::function<void(config::Config&)> set;
};

inline std::vector<RuleCase> rule_cases() {
  struct Variant {
    std::string name;
    double momentum = 0;
    bool nesterov = false;
  };
  std::vector<RuleCase> all;
  const config::Key& key = *config::find_key("optim", "name");
  for (const std::string& name : key.names) {
    if (name == "muon") continue;
    const std::vector<Variant> variants =
        name == "sgd" ? std::vector<Variant>{{"sgd"}, {"sgd with momentum", 0.9}, {"sgd with Nesterov's", 0.9, true}}
                      : std::vector<Variant>{{name}};
    for (const Variant& variant : variants)
      for (const config::Decay decay : {config::Decay::plain, config::Decay::cautious})
        all.push_back({variant.name + (decay == config::Decay::plain ? "" : ", cautious decay"),
                       [&key, name, variant, decay](config::Config& c) {
                         key.set(c, name);
                         c.sgd = {variant.momentum, variant.nesterov};
                         c.optim.decay = decay;
                       }});
  }
  return all;
}

inline void expect_every_row_in(const std::vector<RuleCase>& cases) {
  std::set<ops::RuleId> used;
  for (const RuleCase& each : cases) {
    config::Config c = config::defaults();
    each.set(c);
    used.insert(optim::elementwise_rule({.optim = c.optim, .sgd = c.sgd}, DType::f32)->row().id);
  }
  EXPECT_EQ(used.size(), ops::kRules) << "a rule without a row, or a row that no configuration selects";
  EXPECT_EQ(optim::rows().size(), ops::kRules);
}

}  // namespace trainer::tests
