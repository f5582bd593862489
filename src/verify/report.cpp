// The report of `trainer verify`, as text and as JSON.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/join.h"
#include "base/units.h"
#include "verify/verify.h"

namespace trainer::verify {
namespace {

constexpr const char* kResults[] = {"pass", "WARN", "FAIL", "skipped", "ERROR"};
constexpr const char* kJsonResults[] = {"pass", "warning", "failure", "skipped", "error"};

size_t index_of(Result result) { return static_cast<size_t>(result); }
std::string number(double value, const char* otherwise) {
  return std::isnan(value) ? otherwise : format("{:.1e}", value);
}

/// True if the checks have passed that together compare the layout with one rank.
bool is_complete(const Report& report) {
  return std::ranges::all_of(std::array{"gradients", "norm", "update"},
                             [&](const char* check) { return report.passed(check); });
}

/// Returns the checks without any finding of a comparison.
std::vector<std::string> not_checked(const Report& report) {
  std::vector<std::string> names;
  for (const Check& check : checks())
    if (std::ranges::none_of(report.findings, [&](const Finding& finding) {
          return finding.check == check.name && finding.result != Result::skipped && finding.result != Result::error;
        }))
      names.emplace_back(check.name);
  return names;
}

std::string verdict_of(const Report& report) {
  const auto count = [&](Result result) { return std::ranges::count(report.findings, result, &Finding::result); };
  const auto failures = count(Result::failure), warnings = count(Result::warning), errors = count(Result::error);
  std::string text = failures > 0               ? format("{} found", counted(failures, "difference"))
                     : errors > 0               ? "not all checks could be completed"
                     : count(Result::pass) == 0 ? "nothing was checked"
                                                : "pass";
  if (warnings > 0) text += format(", {}", counted(warnings, "warning"));
  if (errors > 0) text += format(", {}", counted(errors, "error"));
  if (const std::vector<std::string> names = not_checked(report); !names.empty() && count(Result::pass) > 0)
    text += format("; not checked: {}", fmt::join(names, ", "));
  if (failures == 0 && is_complete(report))
    text +=
        format(". On these hosts this layout computes what one rank computes{}; not covered: {}rare faults (--minutes)",
               report.full ? "" : ", for this structure", report.full ? "" : "larger GEMMs (--full) and ");
  return text;
}

}  // namespace

std::string to_text(const Report& report) {
  const std::set<std::string> hosts(report.hosts.begin(), report.hosts.end());
  std::string text =
      format("verify: {}, {} on {}, {}, {}; {}\n", report.layout, counted(std::ssize(report.hosts), "rank"),
             counted(std::ssize(hosts), "host"), report.compute, report.transport,
             report.full ? "the configured model"
                         : format("model shrunk to {} (verify is exact in structure, not in size)", report.model));
  size_t widest = 7;
  for (const Finding& finding : report.findings) widest = std::max(widest, finding.checked.size());
  text += format("{:<11} {:<{}}  {:>8}  {:>8}  {}\n", "check", "checked", widest, "worst", "bound", "result");
  std::string last;
  for (const Finding& finding : report.findings) {
    std::string result = kResults[index_of(finding.result)];
    if (!finding.text.empty())
      result += ": " + finding.text;
    else if (!finding.where.empty())
      result += " (" + finding.where + ")";
    const bool skipped = finding.result == Result::skipped || finding.result == Result::error;
    text +=
        format("{:<11} {:<{}}  {:>8}  {:>8}  {}\n", finding.check == last ? "" : finding.check, finding.checked, widest,
               number(finding.worst, skipped                          ? ""
                                     : finding.result == Result::pass ? "equal"
                                                                      : "differ"),
               number(finding.bound, skipped ? "" : "equal"), result);
    last = finding.check;
  }
  return text + format("verdict: {}. {:.0f} s\n", verdict_of(report), report.seconds);
}

nlohmann::json to_json(const Report& report) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Finding& finding : report.findings) {
    nlohmann::json one{
        {"check", finding.check}, {"checked", finding.checked}, {"result", kJsonResults[index_of(finding.result)]},
        {"worst", finding.worst}, {"bound", finding.bound},     {"where", finding.where},
        {"ranks", finding.ranks}, {"text", finding.text},       {"seconds", finding.seconds}};
    std::set<std::string> hosts;
    for (const int rank : finding.ranks) hosts.insert(report.hosts[static_cast<size_t>(rank)]);
    one["hosts"] = hosts;
    checks.push_back(std::move(one));
  }
  return {{"layout", report.layout},
          {"ranks", report.hosts.size()},
          {"hosts", report.hosts},
          {"compute", report.compute},
          {"transport", report.transport},
          {"model", report.model},
          {"full", report.full},
          {"checks", std::move(checks)},
          {"passed", exit_status_of(report) == 0},
          {"complete", is_complete(report)},
          {"not_checked", not_checked(report)},
          {"verdict", verdict_of(report)},
          {"seconds", report.seconds}};
}

}  // namespace trainer::verify
