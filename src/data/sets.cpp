#include "data/sets.h"

#include <cmath>
#include <optional>

#include "base/checksum.h"
#include "base/error.h"
#include "config/config.h"
#include "config/resolve.h"
#include "data/source_checks.h"

namespace trainer::data {
namespace {

/// Returns the index of a part's packed windows; null if they are consecutive.
std::shared_ptr<const PackingIndex> index_of(const config::Config& config, const FilePart& part,
                                             const std::shared_ptr<const TokenStream>& stream, int64_t begin,
                                             int64_t end, const IndexPlace& place) {
  if (config::is_packed(part.data))
    return packing_index(stream, config.model.seq_len, begin, end, place.known, place.make, place.watch);
  if (stream->has_spans())
    throw Error(Code::config,
                fmt::format("data.packing: {} consists of conversations, which consecutive windows would cut at their "
                            "borders; use \"best-fit\"",
                            stream->name()));
  return nullptr;
}

}  // namespace

bool has_tails(const config::Data& data) { return data.val_fraction > 0 && validation_parts(data).empty(); }

int64_t validation_begin(const TokenStream& stream, double fraction) {
  const auto target = static_cast<int64_t>(std::llround(fraction * static_cast<double>(stream.tokens())));
  const int64_t cut = stream.tokens() - target, distance = stream.has_spans() ? stream.tokens() : target / 2;
  const std::optional<int64_t> end = stream.document_end_near(cut, distance);
  if (!end && stream.has_spans())
    throw Error(Code::data,
                fmt::format("data.val_fraction = {}: {} has a single conversation, which is not divided into training "
                            "and validation; add conversations, or set data.val_fraction = 0",
                            fraction, stream.name()));
  return end.value_or(cut);
}

IndexPlace index_in(const std::filesystem::path& cache, const FilePart& part, bool tail, const Watch& watch) {
  const std::filesystem::path path = (cache / part.tokens).replace_extension(tail ? ".tail.pack" : ".pack");
  return {path, [path] { return path; }, watch};
}

NamedDataset training_set(const config::Config& config, const FilePart& part,
                          const std::shared_ptr<const TokenStream>& stream, const IndexPlace& place) {
  int64_t end = stream->tokens();
  if (has_tails(config.data)) {
    end = validation_begin(*stream, config.data.val_fraction);
    if (!config::is_packed(part.data)) require_windows(*stream, end, config);
  }
  const std::string permutation = part.name.empty() ? "data.permutation" : "data.permutation/" + part.name;
  const auto seed = static_cast<uint64_t>(config.run.seed);
  return {part.name, TokenDataset(stream, config.model.seq_len, seed, 0, end, permutation,
                                  index_of(config, part, stream, 0, end, place))};
}

NamedDataset validation_set(const config::Config& config, const FilePart& part,
                            const std::shared_ptr<const TokenStream>& stream, int64_t begin, const IndexPlace& place) {
  const int64_t end = stream->tokens();
  const auto seed = static_cast<uint64_t>(config.run.seed);
  return {part.name, TokenDataset(stream, config.model.seq_len, seed, begin, end, "data.permutation",
                                  index_of(config, part, stream, begin, end, place))};
}

std::string facts_of_windows(const TokenDataset& set, int64_t bound) {
  const bool packed = set.packing() != nullptr;
  return fmt::format("{} {}{}", set.stream().fingerprint(packed), bound,
                     packed ? fmt::format(" best-fit {}", set.seq_len()) : "");
}

std::string hash_validation(std::vector<NamedDataset>& sets) {
  std::string facts;
  for (auto& [name, set, hash] : sets) {
    hash = to_string(checksum_of(facts_of_windows(set, set.begin())));
    if (name.empty()) return hash;
    facts += fmt::format("{} {}\n", name, hash);
  }
  return sets.empty() ? "" : to_string(checksum_of(facts));
}

}  // namespace trainer::data
