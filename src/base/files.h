#pragma once
// Helpers for all modules that read or write files: system errors with their remedies, text files that the user names,
// and atomic replacement of files.
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trainer {

/// The reason behind an errno and, where there is one, the remedy: "No space left on device; the disk is full: free …".
std::string system_reason(int error);

/// "~" and "~/x" of a path with the user's home folder (HOME), as shells do it; everything else as it is.
std::string expand_home(const std::string& path);

/// Returns the text of a file that the user named, or of standard input ("-"). "~" is expanded. Texts larger than 64
/// MiB are refused, since devices and pipes may have no end. `expected` describes the expected content and where one
/// comes from: "a configuration file; `trainer config reference` prints one". Throws `code` with the path, the kind of
/// file found and the expected one.
std::string read_text_file(const std::string& path, std::string_view expected, Code code = Code::config);

/// Renames within one file system; the new name has reached the disk on return. Throws Code::io.
void publish(const std::filesystem::path& from, const std::filesystem::path& to);

/// Writes a temporary file next to `path`, syncs it and publishes it. A reader of `path` finds the old content or all
/// of the new, even after a loss of power. When something fails, the old file stays and the temporary one is removed. A
/// link is kept and its target is replaced; a folder, a device, a pipe or a socket is rejected. Throws Code::io with
/// the path, the reason and the remedy.
void replace_file(const std::filesystem::path& path, std::string_view bytes);

/// Throws what replace_file() would throw where no file can be put at `path`; before work whose result goes there.
void require_replaceable(const std::filesystem::path& path);

}  // namespace trainer
