#pragma once
// Output of `trainer checkpoint inspect|verify`.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace trainer::checkpoint {

/// Returns step, tokens, model keys, parameter count, hashes and the list of tensors, as a table or as {"folder",
/// "step", …, "tensors": [{"name", "dtype", "shape", "bytes"}]}. PATH as in resolve(). Reads the manifest only. Throws
/// Code::checkpoint when there is no complete checkpoint.
std::string inspect_text(const std::filesystem::path& path);
nlohmann::json inspect_json(const std::filesystem::path& path);

struct VerifyReport {
  std::filesystem::path folder;
  int64_t tensors = 0, bytes = 0;     // tensors that were verified, and their size
  std::vector<std::string> problems;  // empty if every file has exactly the bytes that were written
};
/// Verifies everything: COMPLETE, the manifest, each file's size and checksum, and the zeros between tensors;
/// unexpected files are problems too. Corruption is reported, not thrown; throws Code::checkpoint if PATH contains no
/// checkpoint. In a `checkpoints` or run folder, the step folder that `latest` names is verified, complete or not.
VerifyReport verify(const std::filesystem::path& path);
std::string to_text(const VerifyReport& report);
nlohmann::json to_json(const VerifyReport& report);

}  // namespace trainer::checkpoint
