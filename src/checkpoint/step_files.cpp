#include "checkpoint/step_files.h"

#include <unistd.h>

#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/name_lock.h"
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
  while (target.has_parent_path() && target.has_relative_path() && (!target.has_filename() || target.filename() == "."))
    target = target.parent_path();  // "folder/", "folder/."
  if (target.empty()) throw Error(Code::usage, "the name of the output is empty; choose a name that does not exist");
  std::error_code ignored;
  const auto require_new = [&] {
    if (fs::exists(fs::symlink_status(target, ignored)))
      throw Error(Code::io, format("{}: already exists; choose a name that does not exist", target.string()));
  };
  require_new();
  const fs::path parent = target.has_parent_path() ? target.parent_path() : ".";
  const std::string name = target.filename().string(), prefix = format(".writing-{}-", name);
  bool in_checkpoint = false;
  for (fs::path above = fs::weakly_canonical(target, ignored); above.has_relative_path(); above = above.parent_path())
    in_checkpoint |= fs::exists(above / kManifestFile, ignored) && fs::exists(above / kCompleteFile, ignored);
  if (in_checkpoint)
    throw Error(Code::io,
                format("{}: inside a checkpoint, which must not change; choose a name elsewhere", target.string()));
  make_folders(parent);
  const std::optional<NameLock> lock = NameLock::take(parent / (".lock-" + name));
  if (!lock)
    throw Error(Code::io, format("{}: another process is writing it; choose a different name", target.string()));
  require_new();  // the previous holder may have written it
  // A killed process leaves a name of this form.
  const auto is_remains = [&](const std::string& each) {
    return each.starts_with(prefix) && each.find_first_not_of("0123456789abcdef", prefix.size()) == std::string::npos;
  };
  if (lock->is_exclusive())
    for (const std::string& each : names_in(parent))
      if (is_remains(each)) remove_tree(parent / each);
  const fs::path temporary = parent / format("{}{:x}", prefix, ::getpid());
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
