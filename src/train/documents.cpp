#include "train/documents.h"

#include <algorithm>

namespace trainer::train {

void fill_first_keys(const data::TokenBatch& batch, std::vector<int32_t>& first) {
  first.assign(batch.ids.size(), 0);
  auto start = batch.starts.begin();
  for (int64_t sequence = 0; sequence < batch.sequences; ++sequence) {
    int32_t begin = 0;
    for (int64_t row = 0; row < batch.seq_len; ++row) {
      const int64_t at = sequence * batch.seq_len + row;
      for (; start != batch.starts.end() && *start <= at; ++start)
        if (*start == at) begin = static_cast<int32_t>(row);
      first[static_cast<size_t>(at)] = begin;
    }
  }
}

const std::vector<int32_t>& positions_in_documents(const std::vector<int32_t>& first, int64_t seq_len,
                                                   std::vector<int32_t>& memory) {
  memory.resize(first.size());
  for (size_t r = 0; r < first.size(); ++r)
    memory[r] = static_cast<int32_t>(static_cast<int64_t>(r) % seq_len) - first[r];
  return memory;
}

void VisiblePairs::add(const config::Model& model, const std::vector<int32_t>& first) {
  int64_t windows = 0;  // layers with a window; all have the same one
  for (int64_t layer = 0; layer < model.n_layer; ++layer) windows += window_of(model, layer) > 0;
  const auto sum = [&](int64_t within, int64_t all) {
    return static_cast<double>(windows * std::min(within, std::max<int64_t>(1, model.window)) +
                               (model.n_layer - windows) * all);
  };
  for (size_t r = 0; r < first.size(); ++r) {
    const int64_t row = static_cast<int64_t>(r) % model.seq_len, own = row + 1 - first[r];
    separate += sum(own, own);
    together += sum(row + 1, row + 1);
  }
}

}  // namespace trainer::train
