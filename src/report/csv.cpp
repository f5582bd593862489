#include "report/csv.h"

#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "base/join.h"
#include "base/json.h"
#include "data/file_list.h"
#include "report/events_json.h"

namespace trainer::report {
namespace {

/// Columns and their values as text, in the event's order.
using Row = std::vector<std::pair<std::string, std::string>>;

std::filesystem::path log_of(const NamedRun& run) { return run.folder / "metrics.jsonl"; }

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

/// Calls use(row) for each step of a run. Evaluations are part of their step's row.
void for_each_row(const NamedRun& run, const std::function<void(const Row&)>& use) {
  std::ifstream in(log_of(run), std::ios::binary);
  if (!in) throw Error(Code::io, format("cannot read {}", log_of(run).string()));
  Row row;
  Json step;  // the row's step
  const auto end_row = [&] {
    if (!row.empty()) use(row);
    row.clear();
  };
  for (std::string line; std::getline(in, line);) {
    auto event = parse_json<Json>(line);
    if (!event.is_object()) continue;  // a line torn by a crash
    const Json kind = event.value("event", Json()), at = event.value("step", Json());
    if (kind == "ranks" && !row.empty() && step == at)
      row.emplace_back("slowest_rank", to_text(event.value("slowest", Json())));
    if (kind != "step" && kind != "eval" && kind != "tasks") continue;
    if (kind == "step" || row.empty() || step != at) {
      end_row();
      step = at;
      row = {{"run", quoted(run.name)}, {"step", quoted(to_text(at))}};
    }
    const std::string prefix = kind == "eval" ? "validation." : "";
    const auto add = [&](const std::string& name, const Json& value) {
      row.emplace_back(name, quoted(to_text(value)));
    };
    const Json sets = event.value("sets", Json::object());    // in an evaluation: become columns validation.NAME.loss
    const Json tasks = event.value("tasks", Json::object());  // become columns task.NAME.score
    for (const char* key : {"event", "step", "set", "sets", "tasks"}) event.erase(key);
    flatten(event, prefix, '.', add);
    flatten(sets, prefix, '.', add);
    flatten(tasks, "task.", '.', add);
  }
  end_row();
}

}  // namespace

std::vector<NamedRun> named_runs(const std::vector<std::string>& folders) {
  std::vector<NamedRun> runs;
  std::set<std::string> names;
  for (const std::string& given : folders) {
    const size_t before = runs.size();
    for (std::filesystem::path folder : data::expand_glob(given)) {  // quoted, or from a program without a shell
      if (folder.filename() == "metrics.jsonl" || folder.filename().empty()) folder = folder.parent_path();
      if (folder.empty()) folder = ".";
      std::error_code none;
      if (!std::filesystem::is_regular_file(folder / "metrics.jsonl", none)) continue;
      const std::string name =
          std::filesystem::absolute(folder / "metrics.jsonl").lexically_normal().parent_path().filename().string();
      names.insert(name);
      runs.push_back({name, folder});
    }
    if (runs.size() == before)
      throw Error(
          Code::usage,
          format("{}: contains no metrics.jsonl; expected the folder (run.dir) of a run with log.jsonl = true", given));
  }
  if (names.size() < runs.size())
    for (NamedRun& run : runs) run.name = run.folder.string();
  return runs;
}

void write_csv(const std::vector<NamedRun>& runs, const std::function<void(std::string_view)>& out) {
  std::map<std::string, size_t> columns;  // column name to position
  for (const NamedRun& run : runs)
    for_each_row(run, [&](const Row& row) {
      for (const auto& [column, value] : row) columns.try_emplace(column, columns.size());
    });
  const auto write = [&](const Row& row) {
    std::vector<std::string> cells(columns.size());
    for (const auto& [column, value] : row) cells[columns.at(column)] = value;
    out(format("{}\n", fmt::join(cells, ",")));
  };
  Row head;
  for (const auto& [column, place] : columns) head.emplace_back(column, quoted(column));
  write(head);
  for (const NamedRun& run : runs) for_each_row(run, write);
}

}  // namespace trainer::report
