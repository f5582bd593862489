// Writes the text of an input to standard output, for comparison with other readers:
//   rows FILE COLUMN…
#include <cstdio>
#include <string>

#include "base/error.h"
#include "data/byte_source.h"

using namespace trainer;

int main(int argc, char** argv) try {
  if (argc < 3) return 2;
  const std::string text = data::whole_text(argv[1], data::Columns(argv + 2, argv + argc));
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return exit_status(error.code());
}
