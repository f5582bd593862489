#pragma once
// Helpers for all modules that read or write files: system errors with remedies, text files that the user names, and
// atomic replacement of files.
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trainer {

/// Returns the meaning of an errno and, if there is one, the remedy: "No space left on device; the disk is full: free
/// …".
std::string system_reason(int error);

/// Replaces a leading "~" or "~/" with the user's home folder (HOME), as shells do; other paths are returned unchanged.
std::string expand_home(const std::string& path);

/// Returns the text of a file that the user named, or of standard input ("-"). "~" is expanded. Texts larger than 64
/// MiB are rejected, since devices and pipes may have no end. `expected` describes the expected content and how to get
/// it: "a configuration file; `trainer config reference` prints one". Throws `code` with the path, the kind of file
/// found and the expected one.
std::string read_text_file(const std::string& path, std::string_view expected, Code code = Code::config);

/// Renames a file within one file system; the new name is durable on return. Throws Code::io.
void publish(const std::filesystem::path& from, const std::filesystem::path& to);

/// Writes a temporary file next to `path`, syncs it and publishes it. A reader of `path` finds either the old or the
/// whole new content, even after a power failure. If an operation fails, the old file stays and the temporary one is
/// removed. If `path` is a link, its target is replaced; a folder, a device, a pipe or a socket is rejected. Throws
/// Code::io with the path, the reason and the remedy.
void replace_file(const std::filesystem::path& path, std::string_view bytes);

/// Throws the error of replace_file() if no file can be written to `path`. Call it before the work that produces the
/// file.
void require_replaceable(const std::filesystem::path& path);

}  // namespace trainer
