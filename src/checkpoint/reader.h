#pragma once
// Reader: opens a checkpoint, identifies its run, and fills tensors of any layout from it.
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/file_io.h"
#include "checkpoint/manifest.h"
#include "data/tokenizer.h"

namespace trainer::checkpoint {

/// The parts of a checkpoint to load, and the names of the tensors of the head and the embedding.
struct LoadRules {
  bool weights_only = false;  // eval, generate, init_from: tensors with a '#' in their name (moments) are skipped
  bool tied = false;          // the run's head is its embedding
  std::string head = "head.weight", embedding = "wte";
};

/// Returns the tokenizer of a checkpoint, which begins texts as its run did; empty: it has none. `folder` names it in
/// messages.
std::optional<data::Tokenizer> tokenizer_of(const Snapshot& header, const std::filesystem::path& folder);

class Reader {
 public:
  /// Resolves `path` (see resolve) and reads manifest, config and tokenizer. Throws Code::checkpoint naming the file
  /// that is missing or damaged.
  explicit Reader(const std::filesystem::path& path, SystemCalls& calls = system_calls());

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  /// Returns state, config, tokenizer, hashes and model keys, without tensors.
  const Snapshot& header() const { return manifest_.header; }

  /// Returns the model's vocabulary size without padding. Throws Code::checkpoint if the manifest does not contain it.
  int64_t vocab_size() const;

  /// Fills the runs of all slices. Names, shapes and element types must be exactly those of the checkpoint. All
  /// differences are listed in one Code::checkpoint. A checkpoint with a tied head fills the head of an untied run with
  /// copies of the embedding and of its moments. The reverse is rejected. Bytes are verified before they are copied;
  /// after a throw the contents of the slices are undefined.
  void load(std::span<const TensorSlice> slices, const LoadRules& rules) const;

 private:
  std::filesystem::path folder_;
  SystemCalls& calls_;
  Manifest manifest_;
};

/// Throws Code::checkpoint unless a run with these keys may resume from `stored`: lists every model key that differs. A
/// different tokenizer or different data are rejected, or, with `allow_other_data`, cause a warning. Empty hashes are
/// not compared. `folder` is the folder of `stored`, for messages.
void require_compatible(const Snapshot& stored, const Snapshot& run, const std::filesystem::path& folder,
                        bool allow_other_data);
/// Throws Code::checkpoint unless this run has the model of `stored`: lists every key that differs, and the values of
/// --set that remedy it. RoPE allows any seq_len. `chosen`: keys that the user set to a different value. A different
/// epsilon of the norm or base of RoPE that was set is only a warning, since contexts are extended this way.
void require_same_use(const Snapshot& stored, const Snapshot& run, const std::filesystem::path& folder,
                      const std::function<bool(const std::string& key)>& chosen);
/// Does the last part of require_compatible().
void require_same_tokenizer(const Snapshot& stored, const Snapshot& run, const std::filesystem::path& folder,
                            bool allow_other_data);

}  // namespace trainer::checkpoint
