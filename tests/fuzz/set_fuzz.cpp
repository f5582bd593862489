// Lines of `--set` texts, the first of them as --resume's value, without a file.
#include <algorithm>

#include "base/files.h"
#include "config/load.h"
#include "config/text.h"
#include "fuzz.h"

using namespace trainer;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::text_of(data, size);
  config::LoadOptions options{.world = {}, .files = false, .resume = std::string(input.substr(0, input.find('\n')))};
  input.remove_prefix(std::min(options.resume.size() + 1, input.size()));
  std::vector<std::string> sets;
  while (!input.empty()) {
    sets.emplace_back(input.substr(0, input.find('\n')));
    input.remove_prefix(std::min(sets.back().size() + 1, input.size()));
  }
  config::Config config;
  if (!fuzz::accepted({Code::config}, [&] { config = config::load_text("", "", sets, options); })) return 0;
  std::string resume = expand_home(options.resume);
  for (size_t at = 0; (at = resume.find("{name}", at)) != std::string::npos; at += config.run.name.size())
    resume.replace(at, 6, config.run.name);
  TRAINER_CHECK(resume.empty() || config.checkpoint.resume == resume, "resume {}, not {}", config.checkpoint.resume,
                resume);
  const std::string in_force = to_toml(config);
  const std::string again = to_toml(config::load_text(in_force, "", {}, {.files = false}));
  TRAINER_CHECK(again == in_force, "read back as\n{}\ninstead of\n{}", again, in_force);
  return 0;
}
