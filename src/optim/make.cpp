#include "optim/make.h"

#include <algorithm>
#include <optional>

#include "config/config.h"
#include "ops/operands.h"
#include "optim/elementwise.h"
#include "optim/muon.h"

namespace trainer::optim {
namespace {

/// Those of Muon's matrices are its own.
std::array<double, kClasses> lr_ratios(const config::Config& config) {
  const config::Optim& optim = config.optim;
  const double width = config::width_ratio(config);
  return {width, optim.embedding_lr, width * optim.head_lr, optim.vector_lr};
}

std::unique_ptr<Rule> elementwise(const config::Config& config, DType compute) {
  return elementwise_rule({.optim = config.optim,
                           .sgd = config.sgd,
                           .round_gradients = config.offload.grad_transport == config::GradTransport::bf16,
                           .lr_ratios = lr_ratios(config)},
                          accumulator_of(compute));
}

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
        if (i == 0 && store_.replicas().split_state && store_.has(static_cast<int>(g)))
          gathers_[g] = store_.gather_weights(ex, static_cast<int>(g));
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

/// Updates weights during the next forward pass. It begins when the pass first reads a weight, so that it disturbs
/// nothing between two steps.
class OverlappedOptimizer final : public Optimizer, public params::StateOwner {
 public:
  OverlappedOptimizer(params::ParamStore& store, const ElementwiseRule& rule)
      : store_(store),
        updater_(rule, store, Selection(store)),
        dry_(device::make_dry(store.device())),
        unused_(*dry_, Arena::Mode::heap) {
    int64_t tasks = 0;
    for (const params::Group& group : store.groups())
      ends_.push_back(tasks += divide_up(group.held.count, ops::kTaskElements));
    store_.set_state_owner(this);
  }
  ~OverlappedOptimizer() override {
    forget();
    store_.set_state_owner(nullptr);
  }

  void step(Exec& ex, const Update& update) override {
    const bool now = ex.device.dry() || ex.meter.timed != nullptr || ex.meter.trace != nullptr;
    Exec counting{*dry_, unused_, ex.meter};  // executes nothing
    for (size_t g = 0; g < ends_.size(); ++g) updater_.finish(now ? ex : counting, update, static_cast<int>(g));
    if (!now) next_ = update;
    store_.weights_changed();
  }

  void await(int group) override {
    if (store_.device().dry()) return;
    if (next_) {
      update_ = *std::exchange(next_, std::nullopt);
      pool().start_background(ends_.back(), [this](int64_t task) { perform(task); });
    }
    pool().finish_background(ends_[static_cast<size_t>(group)]);
  }
  void settle() override { await(static_cast<int>(ends_.size()) - 1); }
  void forget() override {
    next_.reset();
    if (!store_.device().dry()) pool().start_background(0, {});
  }

 private:
  device::ThreadPool& pool() const { return device::pool_of(store_.device()); }

  void perform(int64_t task) {
    const auto group = static_cast<size_t>(std::ranges::upper_bound(ends_, task) - ends_.begin());
    const comm::Chunk held = store_.groups()[group].held;
    const int64_t at = ops::kTaskElements * (task - (group == 0 ? 0 : ends_[group - 1]));
    Meter uncounted;
    Exec ex{store_.device(), unused_, uncounted};
    updater_.update(ex, update_, static_cast<int>(group),
                    {held.begin + at, std::min(ops::kTaskElements, held.count - at)});
  }

  params::ParamStore& store_;
  ElementwiseUpdater updater_;
  std::unique_ptr<device::Device> dry_;
  Arena unused_;
  std::vector<int64_t> ends_;   // by group: the number of tasks that update it and the groups before it
  std::optional<Update> next_;  // an update that has not begun
  Update update_;               // the one that has
};

}  // namespace

std::unique_ptr<Rule> named_rule(const config::Config& config, DType compute) {
  if (config.optim.name == config::OptimizerName::muon) return std::make_unique<Muon>(config, compute);
  return elementwise(config, compute);
}

Rules make_rules(const config::Config& config, DType compute) {
  Rules rules;
  rules.push_back(named_rule(config, compute));
  if (rules.front()->elementwise() == nullptr) rules.push_back(elementwise(config, compute));
  return rules;
}

std::string rates_text(const config::Config& config) {
  const auto [hidden, embedding, head, vector] = lr_ratios(config);
  if (hidden == 1 && embedding == 1 && head == 1 && vector == 1) return {};
  return format(
      "learning rates relative to the schedule's: {:g} in the blocks' matrices, {:g} in embeddings, {:g} in the head, "
      "{:g} in gains and biases",
      config.optim.name == config::OptimizerName::muon ? config.muon.lr_ratio : hidden, embedding, head, vector);
}

Agreed agreed(const Rules& rules, int64_t t) {
  std::optional<Agreed> values;
  for (const std::unique_ptr<Rule>& rule : rules)
    if (const std::optional<Agreed> own = rule->agreed(t)) {
      TRAINER_CHECK(!values, "at most one rule has agreed values");
      values = own;
    }
  return values.value_or(Agreed());
}

Update make_update(const Rules& rules, double lr, int64_t t, double gradient_scale) {
  return {.lr = lr, .t = t, .gradient_scale = gradient_scale, .agreed = agreed(rules, t)};
}

void keep_states(params::ParamStore& store, const Rules& rules) {
  const std::vector<Selection> selections = select(store, rules);
  for (size_t i = 0; i < rules.size(); ++i)
    for (const params::StateSpec& state : rules[i]->states()) store.keep_state(state, selections[i].chunks());
}

bool overlaps_forward(const config::Config& config, int threads) {
  constexpr int64_t kFewRows = 512;  // 1024 rows gain 1 to 3 %, less than the memory of gradients is worth
  return config.optim.overlap && config.debug.overlap && threads > 1 &&
         config.train.micro_batch * config.model.seq_len <= kFewRows && config.parallel.zero_stage == 0 &&
         config.parallel.stages == 1 && config.offload.optimizer == config::OffloadOptimizer::none &&
         named_rule(config)->elementwise() != nullptr;
}

std::unique_ptr<Optimizer> make_optimizer(params::ParamStore& store, const Rules& rules, bool overlaps) {
  if (overlaps) return std::make_unique<OverlappedOptimizer>(store, *rules.front()->elementwise());
  return std::make_unique<DeviceOptimizer>(store, rules);
}

}  // namespace trainer::optim
