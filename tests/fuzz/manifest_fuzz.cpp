// The manifest of a checkpoint.
#include "checkpoint/manifest.h"
#include "fuzz.h"

using namespace trainer;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  checkpoint::Manifest manifest;
  const auto read = [&] { manifest = checkpoint::parse_manifest(fuzz::text_of(data, size), "manifest.json"); };
  if (!fuzz::accepted({Code::checkpoint}, read)) return 0;
  const std::string written = to_json(manifest);
  const std::string again = to_json(checkpoint::parse_manifest(written, "manifest.json"));
  TRAINER_CHECK(again == written, "read back as\n{}\ninstead of\n{}", again, written);
  return 0;
}
