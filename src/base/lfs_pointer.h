#pragma once
// Pointers of Git LFS, which a clone without LFS has in place of large files.
#include <filesystem>
#include <string_view>

#include "base/error.h"

namespace trainer {

/// Throws an error if a file begins like a pointer.
void refuse_lfs_pointer(const std::filesystem::path& path, std::string_view start, Code code);

}  // namespace trainer
