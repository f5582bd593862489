#include "cli/arguments.h"

#include <algorithm>

#include "base/error.h"
#include "base/join.h"
#include "config/suggest.h"

namespace trainer::cli {
namespace {

using Words = std::vector<std::string>;

bool is_option(const std::string& word) { return word.size() > 1 && word.front() == '-'; }
bool among(const std::string& word, const Words& words) { return std::ranges::count(words, word) > 0; }

void require_verb_first(const Words& words, const Words& verbs, const Words& valued) {
  if (words.empty() || among(words.front(), verbs)) return;
  if (!is_option(words.front())) {
    const bool file = words.front().find_first_of("./") != std::string::npos;
    throw Error(Code::usage, format("unknown verb \"{}\"{}; there are {}", words.front(),
                                    file ? "; a configuration is given as --config FILE"
                                         : config::did_you_mean(words.front(), verbs),
                                    fmt::join(verbs, ", ")));
  }
  Words before;
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (among(word, {"--help", "-h", "--version", "-V"})) return;
    if (among(word, verbs))
      throw Error(Code::usage,
                  format("{} before the verb `{}`: options follow the verb, as in `trainer {} {}{}`", before.front(),
                         word, word, fmt::join(before, " "), at + 1 < words.size() ? " …" : ""));
    before.push_back(word);
    if (among(word, valued) && at + 1 < words.size()) before.push_back(words[++at]);
    while (among(before.front(), {"--set", "-s"}) && at + 1 < words.size() && !is_option(words[at + 1]) &&
           words[at + 1].find('=') != std::string::npos)
      before.push_back(words[++at]);
  }
}

}  // namespace

Words arguments(int argc, const char* const* argv, const Words& verbs, const Words& valued) {
  const Words words(argv + std::min(argc, 1), argv + argc);
  require_verb_first(words, verbs, valued);
  Words out;
  bool sets = false;  // the words so far end in --set and its values
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (is_option(word)) {
      const bool apart = word == "--set" || word == "-s";
      sets = apart || word.starts_with("--set=");
      out.push_back(word);
      if (apart && at + 1 < words.size()) out.push_back(words[++at]);
    } else {
      sets = sets && word.find('=') != std::string::npos;
      if (sets) out.emplace_back("--set");
      out.push_back(word);
    }
  }
  return out;
}

}  // namespace trainer::cli
