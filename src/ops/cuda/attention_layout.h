#pragma once
// The layout of a tile of bf16 rows in shared memory, and the row addresses that the lanes of a warp pass to ldmatrix.
// Plain arithmetic: a test on the host counts bank conflicts with it.

namespace trainer::ops::cuda {

/// Elements of bf16 in 16 bytes, the unit of copies and of ldmatrix.
inline constexpr int kChunk = 8;

/// A row-major tile whose chunks are permuted within each row, depending on the row. The same chunk of eight successive
/// rows is in eight different groups of banks, and so are eight successive chunks of a row.
template <int kCols>
struct TileLayout {
  static_assert(kCols % 32 == 0);
  static constexpr int kRowChunks = kCols / kChunk;
  static constexpr bool kWholeLines = kCols % 64 == 0;  // a row is a multiple of 128 bytes, the width of all banks
  static constexpr int kMask = kWholeLines ? 7 : 3;

  static constexpr int key_of(int row) { return (kWholeLines ? row : row >> 1) & kMask; }
  /// Element offset of a chunk.
  static constexpr int offset(int row, int chunk) { return row * kCols + (chunk ^ key_of(row)) * kChunk; }
};

/// A lane's part of a 16×16 block of a tile: its row and which of the two chunks.
struct LanePlace {
  int row, chunk;
};
/// Returns the row and chunk whose address a lane passes to ldmatrix. It is the same for all operands, so that they
/// share address arithmetic. The four matrices are the upper and lower eight rows of the first chunk, then of the
/// second:
///   left operand (m × k): as mma expects them
///   right operand stored n × k: columns 0 … 7 of the result have matrices 0 and 2, later columns 1 and 3
///   right operand stored k × n, each matrix transposed: columns 0 … 7 have matrices 0 and 1, later columns 2 and 3
constexpr LanePlace block_place(int lane) { return {lane & 15, lane >> 4}; }

/// Element offsets of a lane's rows in the 16×16 blocks of a tile, with most of the arithmetic done once.
template <int kCols>
struct BlockOffsets {
  using Layout = TileLayout<kCols>;
  int row_offset, swizzled;

  constexpr BlockOffsets(int first_row, LanePlace place)
      : row_offset((first_row + place.row) * kCols), swizzled(place.chunk ^ Layout::key_of(first_row + place.row)) {}
  /// Returns the offset in the block of rows first_row + 16·i … and columns 16·j ….
  constexpr int at(int i, int j) const {
    constexpr int kMask = Layout::kMask;
    return row_offset + 16 * i * kCols + ((2 * j & ~kMask) | (swizzled ^ (2 * j & kMask))) * kChunk;
  }
};

}  // namespace trainer::ops::cuda
