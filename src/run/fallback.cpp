#include "run/fallback.h"

#include <sstream>

#include "base/log.h"
#include "checkpoint/manifest.h"
#include "comm/agreement.h"

namespace trainer::run {

namespace fs = std::filesystem;

std::vector<fs::path> list_on_first_rank(comm::World& world, const std::function<std::vector<fs::path>()>& list) {
  std::string lines;
  world.control().run_on_all_ranks([&] {
    if (!world.first()) return;
    for (const fs::path& path : list()) lines += path.string() + '\n';
  });
  world.control().broadcast(lines);
  std::vector<fs::path> paths;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) paths.emplace_back(line);
  return paths;
}

std::string find_damage_on_any_rank(comm::World& world, const std::function<void()>& read) {
  std::string damage;
  world.control().run_on_all_ranks([&] {
    try {
      read();
    } catch (const checkpoint::Damage& met) {
      damage = met.what();
    }
  });
  for (std::string& each : world.control().gather(damage))
    if (!each.empty()) return std::move(each);
  return {};
}

void require_same_copy(comm::World& world, const checkpoint::Reader& reader) {
  const checkpoint::Manifest& manifest = reader.manifest();
  comm::require_same(world,
                     {{"its step", format("{}", manifest.header.state.step)},
                      {"the checksum of its manifest", to_string(manifest.checksum)}},
                     Code::checkpoint, "keep it on a file system that all hosts share, or copy it to every host again",
                     format("has a different copy of the checkpoint {} than rank 0", reader.folder().string()));
}

void load_first_whole(comm::World& world, const std::vector<fs::path>& folders, const std::string& none_whole,
                      const std::function<std::string(const fs::path&)>& load) {
  for (const fs::path& folder : folders) {
    const std::string damage = load(folder);
    if (damage.empty()) return;
    if (folder == folders.back()) throw checkpoint::Damage(none_whole + damage).on(Scope::all_ranks);
    if (world.first()) log::warning("checkpoint skipped, trying the previous one: {}", damage);
  }
}

}  // namespace trainer::run
