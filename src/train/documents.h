#pragma once
// Separate documents (data.separate_documents): the first visible key of every row of a batch, and its position.
#include <cstdint>
#include <vector>

#include "config/model.h"
#include "data/dataset.h"

namespace trainer::train {

/// Sets first[r] to the row, counted within its sequence, at which the document of row r begins; the first row of a
/// sequence always begins one.
void fill_first_keys(const data::TokenBatch& batch, std::vector<int32_t>& first);

/// Returns the position of each row in its document, given its first row.
const std::vector<int32_t>& positions_in_documents(const std::vector<int32_t>& first, int64_t seq_len,
                                                   std::vector<int32_t>& memory);

/// Counts pairs of a query and a visible key over the layers of a model.
struct VisiblePairs {
  double separate = 0, together = 0;  // if documents are separate, and if they are not
  void add(const config::Model& model, const std::vector<int32_t>& first);
};

}  // namespace trainer::train
