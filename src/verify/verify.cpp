#include "verify/verify.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/join.h"
#include "base/log.h"
#include "config/layouts.h"
#include "verify/context.h"

namespace trainer::verify {
namespace {

constexpr Check kChecks[] = {
    {"environment", "hosts have equal devices, kernels and libraries, and their clocks agree", check_environment,
     false},
    {"links", "collectives along every group of ranks deliver the bits that were sent", check_links, true},
    {"device", "each rank computes the same bits again and again, and those of equal devices", check_device, true},
    {"gradients", "the layout computes the gradients of one rank, within rounding", check_gradients, false},
    {"norm", "the gradient norm counts each parameter once, clipped or not", check_norm, false},
    {"update", "weights and optimizer states after updates are those of one rank", check_update, false},
    {"bytes", "a step sends the bytes that were predicted", check_bytes, false},
    {"repeat", "results do not depend on timing, threads or overlap", check_repeat, true},
    {"transport", "other transports compute the same bits", check_transport, false},
    {"resume", "checkpoints return what was saved, to every rank and to other layouts", check_resume, false},
    {"data", "each sample is trained on by one replica, and all ranks read the same data", check_data, false},
    {"derivative", "gradients are the derivative of the loss", check_derivative, false},
};

void require_known(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::ranges::any_of(kChecks, [&](const Check& check) { return name == check.name; })) continue;
    std::vector<std::string> known;
    for (const Check& check : kChecks) known.emplace_back(check.name);
    throw Error(Code::usage, format("--only {}: unknown check; expected some of {}", name, fmt::join(known, ", ")))
        .on(Scope::all_ranks);
  }
}

/// Returns rank 0's seconds since `began`, on all ranks.
double elapsed(comm::World& world, double began) {
  double seconds = world.first() ? now_seconds() - began : 0;
  world.control().sum({&seconds, 1});
  return seconds;
}

/// Returns a failure if other ranks have one among their findings and this rank has none: all must agree on the result.
Finding failure_elsewhere(Context& c, const std::vector<Finding>& found) {
  const bool own = std::ranges::count(found, Result::failure, &Finding::result) > 0;
  std::vector<int> with, without;
  for (const std::string& each : c.world.control().gather(own ? "failure" : ""))
    (each.empty() ? without : with).push_back(static_cast<int>(with.size() + without.size()));
  if (own || with.empty()) return {};
  return {.checked = "the same result on all ranks",
          .result = Result::failure,
          .ranks = with,
          .text = format("{} found a difference that the other ranks do not", c.name(with))};
}

}  // namespace

std::span<const Check> checks() { return kChecks; }

bool Report::passed(std::string_view check) const {
  bool any = false, all = true;
  for (const Finding& finding : findings)
    if (finding.check == check) {
      any = true;
      all &= finding.result == Result::pass;
    }
  return any && all;
}

int exit_status_of(const Report& report) {
  if (report.has(Result::failure)) return exit_status(Code::difference);
  return report.error != 0 || report.has(Result::pass) ? report.error : kNothingChecked;
}

bool Report::has(Result result) const {
  return std::ranges::any_of(findings, [&](const Finding& finding) { return finding.result == result; });
}

Report verify(comm::World& world, const config::Config& config, const Options& options) {
  require_known(options.only);
  const double began = now_seconds();
  Context context(world, config, options);
  const config::Model& small = context.small.config.model;
  Report report{.layout = config::layout_text(context.small.config),
                .model = format("{} layers x {}", small.n_layer, small.d_model),
                .compute = std::string(name_of(context.machine.compute)),
                .transport = std::string(context.between_gpus.nccl ? "nccl" : world.transport()),
                .full = options.full,
                .hosts = context.hosts};
  bool checked = true;
  const auto run = [&](const Check& check) {
    if (!options.only.empty() && std::ranges::count(options.only, check.name) == 0) return;
    const double begin = elapsed(world, began);
    if (context.round > 0 && begin >= options.seconds) return;
    if (world.first()) log::info("{}: {}", check.name, check.proves);
    std::vector<Finding> found;
    if (begin >= options.seconds)
      found = skipped(format("the time limit of {:.0f} s", options.seconds));
    else
      try {
        found = check.run(context);
      } catch (const Error& error) {
        if (error.scope() != Scope::all_ranks || error.code() == Code::comm) throw;
        const bool differs = error.code() == Code::nonfinite;
        if (!differs && report.error == 0) report.error = exit_status(error.code());
        found = {{.result = differs ? Result::failure : Result::error, .text = error.what()}};
      }
    if (const Finding other = failure_elsewhere(context, found); other.result == Result::failure)
      found.push_back(other);
    const double seconds = elapsed(world, began) - begin;
    for (Finding& finding : found) {
      finding.check = check.name;
      finding.seconds = seconds;
      checked |= finding.result != Result::skipped;
      if (world.first() && (finding.result == Result::failure || finding.result == Result::error))
        log::warning("{}: {}", check.name, finding.text);
      if (context.round > 0) {  // one line for all rounds, or for the first failure
        const auto same = std::ranges::find_if(report.findings, [&](const Finding& earlier) {
          return earlier.check == finding.check && earlier.checked == finding.checked;
        });
        if (same != report.findings.end() && finding.result != Result::failure) continue;
        if (same != report.findings.end() && same->result == Result::failure) continue;
      }
      report.findings.push_back(std::move(finding));
    }
  };
  for (const Check& check : kChecks) run(check);
  while (options.burn_in && std::exchange(checked, false) && elapsed(world, began) < options.seconds) {
    ++context.round;
    for (const Check& check : kChecks)
      if (check.repeats) run(check);
  }
  report.seconds = elapsed(world, began);
  return report;
}

}  // namespace trainer::verify
