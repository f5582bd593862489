#pragma once
// Reader: opens a checkpoint, compares it with a run, and fills tensors of any layout from it.
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "checkpoint/manifest.h"
#include "data/tokenizer.h"

namespace trainer::checkpoint {

/// The parts of a checkpoint to load.
struct LoadRules {
  bool weights_only = false;  // eval, generate, init_from: tensors with a '#' in their name (moments) are skipped
  bool tied = false;          // the run's output head is tied to its embedding
  std::set<std::string> elsewhere = {};  // parameters of the run's model that only other pipeline stages have
  bool upcycles = false;  // each expert of the run gets the MLP of a dense checkpoint; routers are not filled
};

/// Returns the tokenizer of a checkpoint, with the run's setting for the BOS token; an empty result if the checkpoint
/// has none. `folder` is the checkpoint's folder, for messages.
std::optional<data::Tokenizer> tokenizer_of(const Snapshot& header, const std::filesystem::path& folder);

class Reader {
 public:
  /// Resolves `path` (see resolve) and reads manifest, config and tokenizer. Throws Code::checkpoint with the name of
  /// the file that is missing or corrupted.
  explicit Reader(const std::filesystem::path& path);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  /// Returns state, config, tokenizer, hashes and model keys, without tensors.
  const Snapshot& header() const { return manifest_.header; }

  /// Returns the model's vocabulary size without padding. Throws Code::checkpoint if the manifest does not contain it.
  int64_t vocab_size() const;

  /// Fills the runs of all slices. Names, shapes and element types must be exactly those of the checkpoint, except that
  /// fp32 and fp64 weights are converted to the run's type if only weights are loaded; one Code::checkpoint lists all
  /// differences. If the checkpoint's head is tied but the run's is not, the head is filled
  /// with copies of the embedding and the embedding's moments; the reverse is rejected. Bytes are verified before they
  /// are copied; after a throw the contents of the slices are undefined.
  void load(std::span<const TensorSlice> slices, const LoadRules& rules) const;

 private:
  std::filesystem::path folder_;
  Manifest manifest_;
};

/// Throws Code::checkpoint, with every model key that differs, unless `run` may resume from `stored`. A different
/// tokenizer or different data are rejected, or, with `allow_other_data`, cause a warning. Empty hashes are not
/// compared. `folder` is the folder of `stored`, for messages.
void require_compatible(const Snapshot& stored, const Snapshot& run, const std::filesystem::path& folder,
                        bool allow_other_data);
/// Throws Code::checkpoint unless `run` has the model of `stored`; the message lists every key that differs, and the
/// --set values that restore them. RoPE allows any seq_len. `chosen` returns whether the user set a key: norm_eps and
/// RoPE keys that the user set only cause a warning, since they are changed on purpose to extend contexts. A run with
/// experts may have weights of a dense model (LoadRules::upcycles) that is equal but for its MLPs, whose width must be
/// that of the experts; the weights of the chosen experts must sum to 1, and there must be no shared expert.
void require_same_use(const Snapshot& stored, const Snapshot& run, const std::filesystem::path& folder,
                      const std::function<bool(const std::string& key)>& chosen);
/// Checks only the tokenizer, as require_compatible() does.
void require_same_tokenizer(const Snapshot& stored, const Snapshot& run, const std::filesystem::path& folder,
                            bool allow_other_data);

}  // namespace trainer::checkpoint
