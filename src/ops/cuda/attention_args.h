#pragma once
// Arguments of the kernels of attention_*.cu: plain data, passed by value.
#include <cstdint>

#include "base/philox.h"

namespace trainer::ops::cuda {

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

/// A [rows, heads·D] operand. `vectors`: base, rows and heads are 16-byte aligned, as 16-byte copies require.
struct AttentionRows {
  void* data = nullptr;
  int64_t ld = 0;  // elements
  bool vectors = false;
  bool adds = false;  // gradients: f32, added to
};

struct AttentionArgs {
  int q_len = 0, k_len = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int group = 0;           // query heads per key/value head
  int shift = 0;           // row i sees no key after key shift + i; negative: the first rows see none
  int first_key = 0;       // position in the sequence of key 0; that of query 0: first_key + shift
  int slices = 1;          // attention_simt.cu: thread blocks that split the columns of a head
  int64_t k_capacity = 0;  // rows per sequence in k and v
  AttentionRows q, k, v, out, dout, dq, dk, dv;
  float* lse = nullptr;    // [batch·heads, q_len]; null: not stored
  float* delta = nullptr;  // [batch·heads, q_len] Σ dout·out of each row
  float* parts = nullptr;  // for attention_decode.cu
  float scale = 1;
  float scale_log2 = 1;  // scale·log2(e): probabilities are powers of two

  int window = 0;                   // a row sees this many keys at most; 0: no limit
  const int* first_keys = nullptr;  // [batch·q_len] the position of the first key that a row may see; null: 0

  uint32_t threshold = 0, step = 0;  // dropout: kept if draw >= threshold; no dropout: 0
  float keep_scale = 1;
  int length = 0;  // tokens of the whole sequence, for the index of dropout
  PhiloxKey key{0, 0};
  int64_t first_head = 0, heads_global = 0;  // global index of sequence 0's first head; global heads per sequence
};

}  // namespace trainer::ops::cuda
