#include "comm/agreement.h"

#include <unistd.h>

#include <algorithm>

namespace trainer::comm {
namespace {

/// Packs the host, then names and values in turn, each terminated by a zero byte.
std::string packed(const Facts& facts) {
  std::string text = host_name() + '\0';
  for (const auto& [name, value] : facts) text += name + '\0' + value + '\0';
  return text;
}
std::pair<std::string, Facts> unpacked(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\0', begin);
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  Facts facts;
  for (size_t i = 1; i + 1 < words.size(); i += 2) facts.emplace_back(words[i], words[i + 1]);
  return {words.front(), facts};
}

/// Describes the first difference: "train.steps is 7, but 8 on rank 0 (host a)". Empty if there is none.
std::string first_difference(const Facts& mine, const Facts& first, const std::string& host) {
  const auto [at, there] = std::mismatch(mine.begin(), mine.end(), first.begin(), first.end());
  if (at == mine.end() && there == first.end()) return {};
  if (at == mine.end() || (there != first.end() && at->first != there->first))
    return format("it has no {}, which is {} on rank 0 (host {})", there->first, there->second, host);
  if (there == first.end()) return format("{} is {}, but rank 0 (host {}) has none", at->first, at->second, host);
  return format("{} is {}, but {} on rank 0 (host {})", at->first, at->second, there->second, host);
}

}  // namespace

std::string host_name() {
  char host[256] = {};
  return ::gethostname(host, sizeof host - 1) == 0 ? host : "?";
}

void require_same(World& world, const Facts& facts, Code code, const std::string& remedy, const std::string& relation) {
  if (world.size() == 1) return;
  const std::vector<std::string> all = world.control().gather(packed(facts));
  const auto [host_of_first, first] = unpacked(all.front());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto [host, others] = unpacked(all[rank]);
    const std::string difference = first_difference(others, first, host_of_first);
    if (difference.empty()) continue;
    throw Error(code, format("rank {} on {} {}: {}; {}", rank, host, relation, difference, remedy))
        .on(Scope::all_ranks);
  }
}

}  // namespace trainer::comm
