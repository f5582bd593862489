// Runs a fuzz target on the saved inputs of a folder, for builds without a fuzzer.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fuzz.h"

int main(int argc, char** argv) {
  int inputs = 0, failed = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      ++inputs;
      try {
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      } catch (const std::exception& e) {
        ++failed;
        std::printf("%s: %s\n", entry.path().c_str(), e.what());
      }
    }
  }
  std::printf("%d inputs, %d failed\n", inputs, failed);
  return inputs == 0 || failed > 0;
}
