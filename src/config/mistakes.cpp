#include "config/mistakes.h"

#include <algorithm>
#include <tuple>

namespace trainer::config {

std::string place(const Origin& origin, const std::string& file, const std::string& key) {
  if (!origin.set.empty()) return origin.set;
  std::string where = file;
  if (origin.line > 0) where += format("{}{}:{}", where.empty() ? "" : ":", origin.line, origin.column);
  if (!key.empty()) where += (where.empty() ? "" : ": ") + key;
  return where;
}

std::string place(const Config& config, const std::string& key) {
  const auto given = config.origins.find(key);
  return place(given == config.origins.end() ? Origin() : given->second, config.path, key);
}

void Mistakes::add(const Origin& origin, const std::string& key, const std::string& text, Code code) {
  const std::string where = place(origin, file_, key);
  all_.push_back({origin, format("{}{}{}", where, where.empty() ? "" : ": ", text), code});
  involve(key);
}

void Mistakes::throw_if_any() const {
  if (all_.empty()) return;
  std::vector<Mistake> sorted = all_;
  std::ranges::stable_sort(
      sorted, {}, [](const Mistake& m) { return std::tuple(!m.origin.set.empty(), m.origin.line, m.origin.column); });
  std::string text;
  Code code = sorted.front().code;
  for (const Mistake& mistake : sorted) {
    text += (text.empty() ? "" : "\n") + mistake.line;
    if (mistake.code != code) code = Code::config;
  }
  throw Error(code, text);
}

}  // namespace trainer::config
