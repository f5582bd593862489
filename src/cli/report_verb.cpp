#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "report/comparison.h"
#include "report/csv.h"
#include "report/html.h"
#include "report/summary.h"
#include "run/step_samples.h"

namespace trainer::cli {
namespace {

using Runs = std::vector<report::NamedRun>;

constexpr size_t kBlock = size_t{1} << 20;

/// Writes the table to standard output, or to a file that is replaced atomically.
void print_csv(const Runs& runs, const std::string& output) {
  if (!output.empty()) require_replaceable(output);
  std::string text;
  report::write_csv(runs, [&](std::string_view line) {
    text += line;
    if (!output.empty() || text.size() < kBlock) return;
    print(text);
    text.clear();
  });
  if (output.empty()) return print(text);
  replace_file(output, text);
}

/// Regenerates a run's report.
void renew(const report::NamedRun& run, const std::string& output) {
  if (!output.empty())
    throw Error(Code::usage,
                "report --output: the report of a single run is written into the run's folder; use --output only with "
                "--csv or with several runs");
  require_replaceable(run.folder / "report.html");
  const report::Summary summary = report::report_from(run.folder);
  for (const std::string& line : report::summary_lines(summary, run.folder)) print(line + "\n");
}

void compare(const Runs& named, const std::string& output) {
  if (named.size() > report::kMostCompared)
    throw Error(Code::usage, format("report: {} runs, but a page compares at most {}; use --csv or fewer runs",
                                    named.size(), report::kMostCompared));
  const std::string file = output.empty() ? "comparison.html" : output;
  require_replaceable(file);
  const std::vector<report::ComparedRun> runs = report::read_runs(named);
  replace_file(file, report::comparison_html(runs, std::filesystem::absolute(file).parent_path()));
  print(report::comparison_text(runs));
  log::info("wrote {}", file);
}

void print_step(const Runs& runs, int64_t step) {
  if (runs.size() > 1)
    throw Error(Code::usage, format("report --step: expected one run, but {} are given", runs.size()));
  print(run::to_text(run::samples_of_step(runs.front().folder, step)));
}

}  // namespace

int report_command(const ReportOptions& o) {
  const Runs runs = report::named_runs(o.runs);
  if (o.step > 0) {
    print_step(runs, o.step);
  } else if (o.csv) {
    print_csv(runs, o.output);
  } else if (runs.size() == 1) {
    renew(runs.front(), o.output);
  } else {
    compare(runs, o.output);
  }
  return 0;
}

}  // namespace trainer::cli
