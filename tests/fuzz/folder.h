#pragma once
// A folder for the files that a target writes: in memory if /dev/shm exists, and removed at exit.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trainer::fuzz {

struct Folder {
  Folder() {
    namespace fs = std::filesystem;
    std::string name = (fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) / "fuzz-XXXXXX";
    TRAINER_CHECK(::mkdtemp(name.data()) != nullptr, "mkdtemp {}", name);
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

inline void write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace trainer::fuzz
