#include "checkpoint/step_files.h"

#include <optional>
#include <system_error>

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
  const fs::path parent = target.has_parent_path() ? target.parent_path() : ".";
  const std::string name = target.filename().string();
  const fs::path temporary = parent / (".writing-" + name);
  make_folders(parent);
  const std::optional<File> lock = lock_file(parent / (".lock-" + name));
  if (!lock)
    throw Error(Code::io, format("{}: another process is writing it; choose a different name", target.string()));
  std::error_code ignored;
  try {
    if (fs::exists(fs::symlink_status(target, ignored)))
      throw Error(Code::io, format("{}: already exists; choose a name that does not exist", target.string()));
    remove_tree(temporary);  // remains of a killed process
    write(temporary);
    rename(temporary, target, system_calls());
    sync_folder(parent);
  } catch (...) {
    fs::remove_all(temporary, ignored);
    fs::remove(lock->path(), ignored);
    throw;
  }
  fs::remove(lock->path(), ignored);  // before the lock is released: lock_file() checks the name
}

void write_new_folder(const fs::path& output, const std::function<void(const fs::path&)>& write) {
  write_new_file(output, [&](const fs::path& folder) {
    make_folder(folder);
    write(folder);
  });
}

}  // namespace trainer::checkpoint
