#include "report/csv.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "report/events_json.h"

namespace trainer::report {
namespace {

using Row = std::map<std::string, std::string>;  // text of the value, by column

constexpr const char* kFirstColumns[] = {"run",
                                         "step",
                                         "tokens",
                                         "epoch",
                                         "loss",
                                         "validation.loss",
                                         "validation.perplexity",
                                         "validation.bits_per_byte",
                                         "lr",
                                         "grad_norm",
                                         "skipped",
                                         "step_ms",
                                         "tokens_per_s",
                                         "tflops_per_device",
                                         "mfu",
                                         "mfu_causal",
                                         "hfu"};

std::filesystem::path log_of(const NamedRun& run) { return run.folder / "metrics.jsonl"; }

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

std::string cell(const Json& value) {
  if (value.is_null()) return "";
  return quoted(value.is_string() ? value.get<std::string>() : to_line(value));
}

/// Adds the values of an event, and of the objects in it, under their names.
void flatten(const Json& object, const std::string& prefix, Row& row) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      flatten(value, prefix + key + ".", row);
    } else if (key != "event") {
      row[prefix + key] = cell(value);
    }
  }
}

/// Calls use(row) for each step of a run. An evaluation joins the row of its step.
void for_each_row(const NamedRun& run, const std::function<void(const Row&)>& use) {
  std::ifstream in(log_of(run), std::ios::binary);
  if (!in) throw Error(Code::io, format("cannot read {}", log_of(run).string()));
  Row row;
  const auto end_row = [&] {
    if (!row.empty()) use(row);
    row.clear();
  };
  const auto begin_row = [&](const Json& event) {
    end_row();
    row["run"] = quoted(run.name);
    row["step"] = cell(event.value("step", Json()));
  };
  for (std::string line; std::getline(in, line);) {
    const Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) continue;  // torn by a crash
    const Json kind = event.value("event", Json());
    if (kind == "step") {
      begin_row(event);
      flatten(event, "", row);
    } else if (kind == "eval") {
      if (row.empty() || row["step"] != cell(event.value("step", Json()))) begin_row(event);
      Row values;
      flatten(event, "validation.", values);
      values.erase("validation.step");
      row.merge(values);
    }
  }
  end_row();
}

std::string joined(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) line += (i == 0 ? "" : ",") + cells[i];
  return line + "\n";
}

}  // namespace

std::vector<NamedRun> named_runs(const std::vector<std::string>& folders) {
  std::vector<NamedRun> runs;
  std::set<std::string> names;
  for (const std::string& given : folders) {
    std::filesystem::path folder = given;
    if (folder.filename() == "metrics.jsonl" || folder.filename().empty()) folder = folder.parent_path();
    if (folder.empty()) folder = ".";
    std::error_code none;
    if (!std::filesystem::is_regular_file(folder / "metrics.jsonl", none))
      throw Error(Code::usage,
                  format("{}: no metrics.jsonl there; expected the folder of a run (run.dir) that was made "
                         "with log.jsonl = true",
                         given));
    const std::string name =
        std::filesystem::absolute(folder / "metrics.jsonl").lexically_normal().parent_path().filename().string();
    names.insert(name);
    runs.push_back({name, folder});
  }
  if (names.size() < runs.size())
    for (NamedRun& run : runs) run.name = run.folder.string();
  return runs;
}

void write_csv(const std::vector<NamedRun>& runs, const std::function<void(std::string_view)>& out) {
  std::set<std::string> found;
  for (const NamedRun& run : runs)
    for_each_row(run, [&](const Row& row) {
      for (const auto& [column, value] : row) found.insert(column);
    });
  std::vector<std::string> columns;
  for (const char* column : kFirstColumns)
    if (found.erase(column) > 0) columns.emplace_back(column);
  columns.insert(columns.end(), found.begin(), found.end());
  std::vector<std::string> names;
  for (const std::string& column : columns) names.push_back(quoted(column));
  out(joined(names));
  for (const NamedRun& run : runs)
    for_each_row(run, [&](const Row& row) {
      std::vector<std::string> cells;
      for (const std::string& column : columns) {
        const auto value = row.find(column);
        cells.push_back(value == row.end() ? "" : value->second);
      }
      out(joined(cells));
    });
}

}  // namespace trainer::report
