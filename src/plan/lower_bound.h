#pragma once
// A lower bound on the words that a rank communicates for one GEMM Y[m, n] = X[m, k] W[k, n] whose operands are
// distributed evenly over all ranks, with one copy of each element. It is the reference for any layout of a linear, and
// is independent of the memory size (Al Daas, Ballard, Grigori, Kumar, Rouse 2022, arXiv 2205.13407).
#include <cstdint>

namespace trainer::plan {

struct Product {
  double m = 0, k = 0, n = 0;
};

/// Returns the number of words that at least one rank must send or receive. With a >= b >= c the sorted
/// extents: D - (ab + ac + bc)/P, where D is (ab + ac)/P + bc up to P = a/b, then 2 √(abc²/P) + ab/P up to P = ab/c²,
/// then 3 (abc/P)^(2/3).
double least_words(const Product& product, int64_t ranks);

}  // namespace trainer::plan
