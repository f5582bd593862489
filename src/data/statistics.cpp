#include "data/statistics.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "base/limits.h"

namespace trainer::data {
namespace {

constexpr int64_t kMostCounted = int64_t{1} << 28, kBlockTokens = int64_t{1} << 20;  // tokens

/// Counts tokens [begin, end) of the stream: all of them, or `most` in evenly spaced blocks of 2^20.
std::vector<int64_t> token_counts(const TokenStream& stream, int64_t begin, int64_t end, int64_t vocab_size,
                                  int threads, int64_t most) {
  const int64_t total = end - begin, blocks = (std::min(total, most) + kBlockTokens - 1) / kBlockTokens;
  const double distance = static_cast<double>(total) / static_cast<double>(blocks);
  const auto workers = static_cast<size_t>(std::max(threads, 1));
  std::vector<std::vector<int64_t>> counts(workers, std::vector<int64_t>(static_cast<size_t>(vocab_size)));
  std::vector<std::exception_ptr> errors(workers);
  const auto work = [&](size_t worker) {
    try {
      for (auto block = static_cast<int64_t>(worker); block < blocks; block += static_cast<int64_t>(workers)) {
        const int64_t from =
            begin + (total > most ? static_cast<int64_t>(distance * static_cast<double>(block)) : block * kBlockTokens);
        stream.count(from, std::min(from + kBlockTokens, end), counts[worker]);
      }
    } catch (...) {
      errors[worker] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (size_t worker = 1; worker < workers; ++worker)
      helpers.push_back(
          start_thread(format("thread {} of {}", worker + 1, workers), [&work, worker] { work(worker); }));
    work(0);
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  for (size_t worker = 1; worker < workers; ++worker) {
    std::ranges::transform(counts[0], counts[worker], counts[0].begin(), std::plus());
  }
  return counts[0];
}

}  // namespace

double unigram_entropy(const TrainingData& train, const TokenDataset& val, int64_t vocab_size, int threads) {
  const auto has_spans = [](const NamedDataset& set) { return set.dataset.stream().has_spans(); };
  if (val.stream().has_spans() || std::ranges::any_of(train.sources(), has_spans))
    return std::numeric_limits<double>::quiet_NaN();
  // The probability of a token is the sum over sources of share · (count + 1) / total.
  std::vector<double> frequency(static_cast<size_t>(vocab_size), 0.0);
  double total = 1;
  for (const auto& [name, source, hash] : train.sources()) {
    double share = 1;
    if (train.mixture() != nullptr) {
      const SlotsByName& slots = train.mixture()->phases().back().slots;
      const auto found = slots.find(name);
      if (found == slots.end()) continue;
      share = static_cast<double>(found->second) / static_cast<double>(kMixtureSlots);
    }
    const auto seen = token_counts(source.stream(), source.begin(), source.end(), vocab_size, threads,
                                   kMostCounted / static_cast<int64_t>(train.sources().size()));
    double seen_total = static_cast<double>(vocab_size);
    for (const int64_t count : seen) seen_total += static_cast<double>(count);
    if (train.mixture() == nullptr) total = seen_total;
    const double scale = train.mixture() == nullptr ? 1 : share / seen_total;
    for (size_t token = 0; token < seen.size(); ++token)
      frequency[token] += scale * static_cast<double>(seen[token] + 1);
  }
  const int64_t first = val.begin() + 1;  // the first token is never predicted
  const int64_t last = val.packing() != nullptr ? val.end() : first + val.windows() * val.seq_len();
  const auto targets = token_counts(val.stream(), first, last, vocab_size, threads, kMostCounted);
  double targets_total = 0, nats = 0;
  for (size_t token = 0; token < targets.size(); ++token) {
    const auto weight = static_cast<double>(targets[token]);
    nats += weight * (std::log(total) - std::log(frequency[token]));
    targets_total += weight;
  }
  return nats / targets_total;
}

int64_t evaluated_bytes(const Tokenizer& tokenizer, const TokenBatch& batch) {
  int64_t bytes = 0;
  for (size_t row = 0; row < batch.targets.size(); ++row) {
    if (batch.weights[row] <= 0) continue;
    const std::string_view piece = tokenizer.piece(batch.targets[row]);
    const bool starts = batch.ids[row] == tokenizer.eos() || batch.ids[row] == tokenizer.bos();
    const bool prefix = starts && tokenizer.dummy_prefix() && piece.starts_with(' ');
    bytes += static_cast<int64_t>(piece.size()) - (prefix ? 1 : 0);
  }
  return bytes;
}

}  // namespace trainer::data
