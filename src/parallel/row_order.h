#pragma once
// RowOrder: the order in which the token rows of a micro-batch are stored.
#include <span>
#include <vector>

#include "sharding/sharding.h"

namespace trainer::parallel {

/// Rows have a natural order, sequence by sequence. If c ranks have different tokens of the same sequences, a sequence
/// consists of 2c segments of equal length, and the rank with index k along these axes has segments k and 2c − 1 − k:
/// so every rank has the same number of pairs of a query and an earlier key. Each rank's rows are contiguous and
/// ordered by half (first segment, second segment), sequence and token, so that each half of all its sequences is one
/// operand.
class RowOrder {
 public:
  RowOrder() = default;
  /// The order of `sequences` sequences of seq_len tokens, those of one replica: natural if no ranks share sequences.
  /// All layers must split attention in the same way (sharding::first_violation).
  RowOrder(const sharding::ModelSharding& sharding, int64_t sequences, int64_t seq_len);

  /// Returns the natural row of each stored row; empty: the order is natural.
  const std::vector<int32_t>& rows() const { return rows_; }
  /// Returns the position of each stored row in its sequence; empty: the order is natural.
  std::vector<int32_t> positions() const;
  /// Returns values of rows in their natural order as the values of stored rows: the values themselves, or `memory`.
  template <typename T>
  const std::vector<T>& stored(const std::vector<T>& natural, std::vector<T>& memory) const {
    if (rows_.empty()) return natural;
    memory.clear();
    for (const int32_t row : rows_) memory.push_back(natural[static_cast<size_t>(row)]);
    return memory;
  }

  /// Returns the number of segments of a sequence, a divisor of its length; 1 if no ranks share sequences.
  static int64_t segments(const sharding::ModelSharding& sharding);

 private:
  std::vector<int32_t> rows_;
  int64_t seq_len_ = 0;
};

}  // namespace trainer::parallel
