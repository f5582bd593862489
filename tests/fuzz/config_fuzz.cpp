// A configuration file, and after the first NUL byte a `--set` text.
#include "config/load.h"
#include "config/text.h"
#include "fuzz.h"

using namespace trainer;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::text_of(data, size), text = input.substr(0, input.find('\0'));
  std::vector<std::string> sets;
  if (text.size() < size) sets.emplace_back(input.substr(text.size() + 1));

  const config::LoadOptions no_files{.world = {}, .files = false};
  config::Config config;
  if (!fuzz::accepted({Code::config}, [&] { config = config::load_text(text, "fuzz.toml", sets, no_files); })) return 0;
  const std::string in_force = to_toml(config);
  const std::string again = to_toml(config::load_text(in_force, "fuzz.toml", {}, no_files));
  TRAINER_CHECK(again == in_force, "read back as\n{}\ninstead of\n{}", again, in_force);
  return 0;
}
