#include "report/events_json.h"

#include <ctime>

#include "base/units.h"
#include "config/toml_reader.h"

namespace trainer::report {
namespace {

double ratio(double measured, double predicted) {
  return predicted > 0 && measured > 0 ? measured / predicted : kUnknown;
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string experts_text(const StartReport& start) {
  const config::Model& m = start.model;
  if (m.n_expert == 0) return "";
  const double active = start.flops.matmul / 6;  // weights that multiply a token
  return format("{} per layer, {} per token{}; {} of {} parameters active", m.n_expert, m.experts_per_token,
                m.d_shared > 0 ? " and a shared one" : "", format_count(active), format_count(start.parameters));
}

std::string to_text(const Json& value) {
  return value.is_null() ? "" : value.is_string() ? value.get<std::string>() : json_text(value);
}

void flatten(const Json& object, const std::string& prefix, char separator,
             const std::function<void(const std::string& name, const Json& value)>& use) {
  for (const auto& [key, value] : object.items())
    if (value.is_object())
      flatten(value, prefix + key + separator, separator, use);
    else
      use(prefix + key, value);
}

Json config_json(const std::string& toml_text) {
  try {
    return Json::parse(config::toml_as_json(toml_text));
  } catch (const config::TomlMistake&) {
    return toml_text;
  }
}

Json ratios(const Estimate& measured, const Estimate& predicted) {
  Json comm = Json::object();
  for (const auto& [axis, operations] : predicted.comm_bytes) {
    for (const auto& [operation, bytes] : operations) {
      const auto found = measured.comm_bytes.find(axis);
      int64_t sent = 0;
      if (found != measured.comm_bytes.end() && found->second.contains(operation)) sent = found->second.at(operation);
      comm[axis][operation] = ratio(static_cast<double>(sent), static_cast<double>(bytes));
    }
  }
  return {
      {"step_ms", ratio(measured.step_ms, predicted.step_ms)},
      {"memory_bytes", ratio(static_cast<double>(measured.memory_bytes), static_cast<double>(predicted.memory_bytes))},
      {"comm_bytes", comm}};
}

}  // namespace trainer::report
