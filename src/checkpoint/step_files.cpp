#include "checkpoint/step_files.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "data/tokenizer.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;

void complete_step_folder(const fs::path& folder, Manifest manifest, SystemCalls& calls) {
  const auto add_file = [&](const std::string& name, const std::string& bytes) {
    write_file(folder / name, bytes, calls);
    manifest.files.push_back({name, static_cast<int64_t>(bytes.size()), checksum_of(bytes)});
  };
  add_file(kConfigFile, manifest.header.config_toml);
  if (const std::string& tokenizer = manifest.header.tokenizer; !tokenizer.empty())
    add_file(data::tokenizer_file_name(tokenizer), tokenizer);

  const std::string json = to_json(manifest);
  parse_manifest(json, kManifestFile);  // throws if the shards do not cover the tensors
  write_file(folder / kManifestFile, json, calls);
  write_file(folder / kCompleteFile, completion_mark(json), calls);
  sync_folder(folder, calls);
}

void write_new_file(const fs::path& output, const std::function<void(const fs::path&)>& write) {
  fs::path target = output;
  if (!target.has_filename()) target = target.parent_path();  // "folder/"
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(target, ignored)))
    throw Error(Code::io, format("{}: already exists; choose a name that does not exist", target.string()));
  const fs::path parent = target.has_parent_path() ? target.parent_path() : ".";
  const std::string prefix = format(".writing-{}-", target.filename().string());
  const fs::path temporary = parent / format("{}{:x}", prefix, ::getpid());
  make_folders(parent);
  for (const std::string& name : names_in(parent)) {  // remains of a killed process
    if (!name.starts_with(prefix)) continue;
    char* end = nullptr;
    const pid_t writer = static_cast<pid_t>(std::strtol(name.c_str() + prefix.size(), &end, 16));
    const bool same_target = *end == '\0';  // folders for "gpt2-2" also begin with the prefix for "gpt2"
    // In containers every process has number 1, so this removes what another container is writing to the same target.
    const bool ended = writer == ::getpid() || (writer > 0 && ::kill(writer, 0) != 0 && errno == ESRCH);
    if (same_target && ended) remove_tree(parent / name);
  }
  try {
    write(temporary);
    rename(temporary, target, system_calls());
    sync_folder(parent);
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
}

void write_new_folder(const fs::path& output, const std::function<void(const fs::path&)>& write) {
  write_new_file(output, [&](const fs::path& folder) {
    make_folder(folder);
    write(folder);
  });
}

}  // namespace trainer::checkpoint
