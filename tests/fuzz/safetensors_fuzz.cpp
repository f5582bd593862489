// A safetensors file. An accepted file has tensors that fill it and can be read.
#include "huggingface/safetensors.h"

#include <optional>
#include <vector>

#include "fuzz.h"
#include "rigs/files.h"

using namespace trainer;
using huggingface::SafetensorsFile;
using huggingface::TensorEntry;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tests::TempFolder folder;
  const std::filesystem::path path = folder / "x.safetensors";
  tests::write(path, fuzz::text_of(data, size));
  std::optional<SafetensorsFile> file;
  const auto open = [&] { file.emplace(path); };
  if (!fuzz::accepted({Code::checkpoint, Code::io}, open)) return 0;
  int64_t end = 0;
  for (const TensorEntry& tensor : file->tensors()) {
    TRAINER_CHECK(tensor.begin == end && tensor.end >= end, "{} from {} to {}", tensor.name, tensor.begin, tensor.end);
    end = tensor.end;
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.end - tensor.begin));
    file->read(tensor, 0, bytes);
  }
  return 0;
}
