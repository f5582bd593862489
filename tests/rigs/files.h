#pragma once
// Temporary folders, removed after the test, and functions that read and write whole files.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trainer::tests {

class TempFolder {
 public:
  TempFolder() {
    // In memory if /dev/shm is writable: crash tests create thousands of files.
    const std::filesystem::path memory = "/dev/shm";
    std::string name =
        (::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path()) / "trainer-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp: " + name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  operator const std::filesystem::path&() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
/// Overwrites the file, creates its folder if necessary, and returns the path.
inline std::string write(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  return path.string();
}

}  // namespace trainer::tests
