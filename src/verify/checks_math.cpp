// Checks that compare the numbers of the layout with those of one rank.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "base/philox.h"
#include "checkpoint/param_slices.h"
#include "optim/make.h"
#include "verify/context.h"

namespace trainer::verify {
namespace {

Finding finding_of(const Context& c, const Comparison& found, std::string checked) {
  Finding finding{.checked = std::move(checked), .worst = found.worst, .bound = found.bound, .where = found.where};
  if (found.passed()) return finding;
  finding.result = Result::failure;
  finding.ranks = found.ranks;
  if (!found.missing.empty()) {
    finding.where = found.missing;
    finding.text = format(
        "{}: the ranks do not hold each element once; suspect the layout: please report this with "
        "--json",
        found.missing);
    return finding;
  }
  const std::string at = found.ranks.empty() ? "over all ranks" : "on " + c.name(found.ranks);
  finding.text = format("{} {}: relative error {:.0e}, bound {:.0e}; {}", found.where, at, found.worst, found.bound,
                        found.on_all_ranks || found.ranks.empty()
                            ? "suspect the layout: please report this with --json"
                            : "the error is smaller on the other ranks: suspect " + c.name(found.ranks));
  return finding;
}

/// A number of a run of the layout, and of one rank in f64 and f32.
struct Number {
  std::string name;
  double own, f64, f32;
};

/// Compares all ranks' numbers with those of one rank, which each rank has computed; the smallest bound applies.
Finding compare_numbers(Context& c, const std::vector<Number>& numbers, std::string checked) {
  Finding finding{.checked = std::move(checked), .worst = 0};
  std::vector<double> values;
  for (const Number& each : numbers)
    values.insert(values.end(), {std::abs(each.own - each.f64), exact_bound(each.f64, each.f32)});
  const std::vector<std::vector<double>> all = gather_values(c.world, values);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double ratio = -1;
  for (size_t i = 0; i < numbers.size(); ++i) {
    double bound = kInfinity;
    for (const std::vector<double>& rank : all)
      if (rank[2 * i + 1] < bound) bound = rank[2 * i + 1];
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const double error = all[rank][2 * i];
      const bool finite = std::isfinite(error) && std::isfinite(all[rank][2 * i + 1]);
      const double found = !finite ? kInfinity : error == 0 ? 0 : error / bound;
      if (found > 1 && std::ranges::count(finding.ranks, static_cast<int>(rank)) == 0)
        finding.ranks.push_back(static_cast<int>(rank));
      if (found <= ratio) continue;
      ratio = found;
      const double size = std::max(std::abs(numbers[i].f64), std::numeric_limits<double>::min());
      finding.worst = error / size;
      finding.bound = bound / size;
      finding.where = numbers[i].name;
    }
  }
  if (finding.ranks.empty()) return finding;
  std::ranges::sort(finding.ranks);
  finding.result = Result::failure;
  finding.text = format("{} on {}: relative error {:.0e}, bound {:.0e}", finding.where, c.name(finding.ranks),
                        finding.worst, finding.bound);
  return finding;
}

std::string count_by_norm(Context& c) {
  Small model = c.model(DType::f64, Clip::never);
  if (model.config.train.global_batch == model.config.train.micro_batch * model.config.parallel.data)
    model.config.train.global_batch *= 2;
  return wrong_norm_of_ones(SmallRun(c.world, c.make_cpu(), {}, model, DType::f64).trainer());
}

/// Returns what is wrong with how often the layout chose each expert; empty if nothing is.
std::string wrong_choices(const std::vector<double>& layout, const std::vector<double>& one, int64_t experts) {
  for (size_t i = 0; i < one.size(); ++i)
    if (layout[i] != one[i])
      return format("{} rows chose expert {} of layer {} among those with experts, on one rank {}", layout[i],
                    static_cast<int64_t>(i) % experts, static_cast<int64_t>(i) / experts, one[i]);
  return {};
}

}  // namespace

std::vector<Finding> check_gradients(Context& c) {
  const Exact& layout = c.exact(Clip::never);
  const Comparison& found = layout.gradients;
  std::vector<Finding> findings = {
      finding_of(c, found, format("{} tensors, layout against one rank, fp64", found.tensors))};
  if (const int64_t experts = c.small.config.model.n_expert; experts > 0)
    findings.push_back(
        verify::finding_of(c, format("rows of each of {} experts, fp64", experts),
                           wrong_choices(layout.chosen, c.one_rank(DType::f64, Clip::never).chosen, experts)));
  const DType type = c.machine.compute;
  if (type == DType::f64) return findings;
  // The run's type and device on one rank: within the rounding that the CPU's fp32 measures. In bf16, which all
  // implementations round at the same places, within a quarter of that bound.
  const OneRank &whole = c.one_rank(DType::f64, Clip::never, true), &rough = c.one_rank(DType::f32, Clip::never, true);
  Small small = c.small;
  small.given_choices = true;
  const double u = type == DType::bf16 ? 0x1p-8 : 0x1p-24, share = type == DType::bf16 ? 0x1p-2 : 1;
  const std::string kind = format("the run's type ({}, {})", name_of(type), setup::device_text(c.machine));
  Tensors own;
  c.world.control().run_on_all_ranks([&] {
    Small one = small;
    one.config = on_one_rank(one.config);
    const std::unique_ptr<comm::World> solo = comm::solo_world();
    SmallRun run(*solo, c.make_device(), {}, one, type);
    run.step(1, [&] {
      run.plant(c.faults, config::Fault::Kind::gradient, c.world.rank());
      own = gather(gradients_of(run.trainer()).owned);
    });
  });
  Parts parts = parts_of(own);
  if (!c.world.first()) parts.owned.clear();  // each rank holds all, and the first one owns it
  findings.push_back(finding_of(
      c, compare(c.world, parts, whole.gradients, rounding_bounds(whole.gradients, rough.gradients, share * u)),
      kind + ", one rank against fp64"));
  // The run's transport, too: at most twice the error of one rank.
  SmallRun run(c.world, c.make_device(), c.between_gpus, small, type);
  run.step(1, [&] {
    const Bounds bounds = typed_bounds(whole.gradients, own, u);
    findings.push_back(finding_of(c, compare(c.world, gradients_of(run.trainer()), whole.gradients, bounds),
                                  kind + ", layout against fp64"));
  });
  return findings;
}

std::vector<Finding> check_norm(Context& c) {
  std::vector<Number> losses, norms;
  for (const Clip clip : {Clip::never, Clip::always}) {
    const Exact& layout = c.exact(clip);
    const OneRank &whole = c.one_rank(DType::f64, clip), &rough = c.one_rank(DType::f32, clip);
    const char* how = clip == Clip::never ? "not clipped" : "clipped";
    constexpr size_t kCount = std::size(kLosses);
    for (size_t i = 0; i < layout.losses.size(); ++i)
      losses.push_back({format("{} of step {}, {}", kLosses[i % kCount], i / kCount + 1, how), layout.losses[i],
                        whole.losses[i], rough.losses[i]});
    for (size_t i = 0; i < layout.norms.size(); ++i)
      norms.push_back({format("step {}, {}", i + 1, how), layout.norms[i], whole.norms[i], rough.norms[i]});
  }
  return {compare_numbers(c, losses, "losses, fp64"),
          compare_numbers(c, norms, "gradient norm, clipped and unclipped, fp64"),
          verify::finding_of(c, "gradient norm of ones: each parameter counted once", count_by_norm(c))};
}

namespace {

/// Moves the tensors that `chosen` names.
Tensors take(Tensors& from, const std::set<std::string>& chosen) {
  Tensors taken;
  for (const std::string& name : chosen) taken.insert(from.extract(name));
  return taken;
}

Parts parts_in(const Tensors& whole, Parts parts) {
  for (std::vector<checkpoint::TensorSlice>* list : {&parts.owned, &parts.held})
    std::erase_if(*list, [&](const checkpoint::TensorSlice& slice) { return !whole.contains(slice.name); });
  return parts;
}

/// Compares updates in the run's type, on its device, with those of one rank on a CPU. Both are given the same
/// gradients, so only orthogonalized matrices, which GEMMs compute, may differ, within rounding.
std::vector<Finding> typed_updates(Context& c) {
  const DType type = c.machine.compute;
  const std::string kind = format("the run's type ({}, {})", name_of(type), setup::device_text(c.machine));
  if (c.config.offload.optimizer != config::OffloadOptimizer::none) {  // it sends gradients while they are computed
    Finding offloaded = skipped("the optimizer's states are offloaded").front();
    offloaded.checked = kind + ", states from equal gradients";
    return {offloaded};
  }
  Small small = c.small;
  small.config.optim.grad_clip = 0;                             // norms are rounded differently
  small.config.optim.lr = small.config.optim.min_lr = 1.0 / 8;  // updates of about the weights' size
  const auto steps = [&](SmallRun& run, bool faulty) {
    for (int64_t n = 1; n <= kSteps; ++n) {
      if (n == 2 && faulty) run.plant(c.faults, config::Fault::Kind::weight);
      run.step(n, [&] {
        set_gradients(run.trainer(), [](const std::string& name, int64_t at) {  // exact in bf16
          return (static_cast<int>(philox_at(philox_key(1, name), static_cast<uint64_t>(at)) % 255) - 127) / 1024.0;
        });
      });
    }
  };
  SmallRun run(c.world, c.make_device(), c.between_gpus, small, type);
  const std::unique_ptr<optim::Rule> rule = optim::named_rule(small.config, type);
  std::set<std::string> rounded;  // weights that GEMMs update
  const auto on_one_cpu = [&](DType compute) {
    Tensors state;
    c.world.control().run_on_all_ranks([&] {
      Small one = compute == type ? small : in_type(small, compute);
      one.config = on_one_rank(one.config);
      const std::unique_ptr<comm::World> solo = comm::solo_world();
      SmallRun alone(*solo, c.make_cpu(), {}, one, compute);
      for (const params::Param& param : alone.trainer().store().params())
        if (rule->elementwise() == nullptr && rule->takes(param)) rounded.insert(param.name);
      steps(alone, false);
      state = gather(state_of(alone.trainer()).owned);
    });
    return state;
  };
  Tensors equal = on_one_cpu(type);
  const Tensors near = take(equal, rounded);
  steps(run, true);
  const Parts parts = state_of(run.trainer());
  // Scalars in f64 depend on the C library, in their last bit; rounded to f32 they do not.
  Bounds bounds = rounding_bounds(equal, equal);
  for (auto& [name, bound] : bounds)
    if (type != DType::f64) bound = {};
  Finding same =
      finding_of(c, compare(c.world, parts_in(equal, parts), equal, bounds),
                 format("{}, {} weights and states from equal gradients, as on one CPU", kind, equal.size()));
  if (same.result == Result::pass) same.worst = same.bound = kUnknown;  // bits
  if (rounded.empty()) return {same};
  Tensors f64 = on_one_cpu(DType::f64);
  const Tensors whole = take(f64, rounded);
  const double u = type == DType::f64 ? kRoundoffOfF64 : type == DType::bf16 ? 0x1p-8 : 0x1p-24;
  return {same, finding_of(c, compare(c.world, parts_in(whole, parts), whole, typed_bounds(whole, near, u)),
                           format("{}, {} orthogonalized matrices, against fp64", kind, whole.size()))};
}

}  // namespace

std::vector<Finding> check_update(Context& c) {
  const Exact &clipped = c.exact(Clip::always), &unclipped = c.exact(Clip::never);
  constexpr const char* kType = "fp64, fp32 states, on CPUs";
  std::vector<Finding> findings = {
      finding_of(c, clipped.state,
                 format("{} weights and states after {} clipped steps, {}", clipped.state.tensors, kSteps, kType)),
      finding_of(c, unclipped.state, format("{} after one step without clipping, {}", unclipped.state.tensors, kType)),
      verify::finding_of(c, "padding of gradients and weights stays 0",
                         clipped.padding.empty() ? "" : "the step has written to the padding of " + clipped.padding)};
  std::ranges::move(typed_updates(c), std::back_inserter(findings));
  return findings;
}

std::vector<Finding> check_derivative(Context& c) {
  Small model = c.model(DType::f64, Clip::never);
  model.given_choices = true;  // the loss of other experts is another function
  config::Config& one = model.config = on_one_rank(model.config);
  one.optim.lr = one.optim.min_lr = one.optim.weight_decay = 0;  // keeps the weights
  double measured = 0, expected = 0;                             // along the sign of the gradient g; g · sign(g)
  c.world.control().run_on_all_ranks([&] {
    const std::unique_ptr<comm::World> solo = comm::solo_world();
    SmallRun run(*solo, c.make_cpu(), {}, model, DType::f64);
    params::ParamStore& store = run.trainer().store();
    Tensors gradients;
    run.step(1, [&] { gradients = gather(gradients_of(run.trainer()).owned); });
    for (const auto& [name, g] : gradients)
      for (const double each : g) expected += std::abs(each);
    run.plant(c.faults, config::Fault::Kind::weight, c.world.rank());
    const Tensors start = gather(checkpoint::slices_to_save(store, false));
    const auto loss_at = [&](double h) {
      store.settle();
      store.forget();
      for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_fill(store, false))
        for (const mesh::Run& r : slice.runs)
          for (int64_t i = 0; i < r.length; ++i) {
            const auto at = static_cast<size_t>(r.global + i);
            const double g = gradients.at(slice.name)[at], sign = g > 0 ? 1 : g < 0 ? -1 : 0;
            slice.local.as<double>()[r.local + i * r.stride] = start.at(slice.name)[at] + h * sign;
          }
      store.refresh_compute();
      const train::Trainer::Outcome outcome = run.step(1);  // with the same masks of dropout
      return outcome.loss + outcome.z_loss + one.train.balance_loss * outcome.balance_loss +
             one.train.router_z_loss * outcome.router_z_loss;
    };
    // Four points: the third derivative along all weights together is large.
    constexpr double kStep = 0x1p-20;
    const double near = loss_at(kStep) - loss_at(-kStep), far = loss_at(2 * kStep) - loss_at(-2 * kStep);
    measured = (8 * near - far) / (12 * kStep);
  });
  double error = std::abs(measured - expected) / expected;
  constexpr double kBound = 1e-7;
  std::string problem;
  if (!(error <= kBound))
    problem = format("the loss changes by {:.9g} along the sign of its gradient, not by {:.9g}", measured, expected);
  Finding finding = verify::finding_of(c, "derivative of the loss along the gradient's sign, one rank, fp64", problem);
  for (const std::vector<double>& rank : gather_values(c.world, {&error, 1}))
    if (!(rank.front() <= error)) error = rank.front();
  finding.worst = error;
  finding.bound = kBound;
  return {finding};
}

}  // namespace trainer::verify
