#include "optim/make.h"

#include "optim/adamw.h"
#include "optim/muon.h"

namespace trainer::optim {
namespace {

/// Returns the selection of each rule.
std::vector<Selection> select(const params::ParamTable& table, const Rules& rules) {
  const auto rule_of = [&](params::SlotId slot) {
    const auto takes_all = [&](const std::unique_ptr<Rule>& rule) {
      return std::ranges::all_of(table.params_of(slot),
                                 [&](int param) { return rule->takes(table.params()[static_cast<size_t>(param)]); });
    };
    return std::ranges::find_if(rules, takes_all) - rules.begin();
  };
  std::vector<Selection> all;
  for (size_t i = 0; i < rules.size(); ++i)
    all.emplace_back(table, [&](params::SlotId slot) { return rule_of(slot) == static_cast<std::ptrdiff_t>(i); });
  return all;
}

class DeviceOptimizer final : public Optimizer {
 public:
  DeviceOptimizer(params::ParamStore& store, const Rules& rules) : store_(store), gathers_(store.groups().size()) {
    std::vector<Selection> selections = select(store, rules);
    for (size_t i = 0; i < rules.size(); ++i) updaters_.push_back(rules[i]->make(store, std::move(selections[i])));
  }

  void step(Exec& ex, const Update& update) override {
    for (const std::unique_ptr<Updater>& updater : updaters_) updater->start(ex, update);
    // The first rule, which may wait for what it has started, is the last to finish.
    for (size_t i = updaters_.size(); i-- > 0;)
      for (size_t g = 0; g < gathers_.size(); ++g) {
        updaters_[i]->finish(ex, update, static_cast<int>(g));
        if (i == 0 && store_.replicas().split_state) gathers_[g] = store_.gather_weights(ex, static_cast<int>(g));
      }
    for (comm::Ticket& gather : gathers_)
      if (gather.is_open()) gather.join(ex);
    store_.weights_changed();
  }

 private:
  params::ParamStore& store_;
  std::vector<std::unique_ptr<Updater>> updaters_;  // by rule
  std::vector<comm::Ticket> gathers_;               // by group
};

}  // namespace

Rules make_rules(const config::Config& config, DType compute) {
  Rules rules;
  if (config.optim.name == config::OptimizerName::muon) rules.push_back(std::make_unique<Muon>(config, compute));
  rules.push_back(std::make_unique<AdamW>(config.optim, accumulator_of(compute),
                                          config.offload.grad_transport == config::GradTransport::bf16));
  return rules;
}

void keep_states(params::ParamStore& store, const Rules& rules) {
  const std::vector<Selection> selections = select(store, rules);
  for (size_t i = 0; i < rules.size(); ++i)
    for (const params::StateSpec& state : rules[i]->states()) store.keep_state(state, selections[i].chunks());
}

std::unique_ptr<Optimizer> make_optimizer(params::ParamStore& store, const Rules& rules) {
  return std::make_unique<DeviceOptimizer>(store, rules);
}

}  // namespace trainer::optim
