#pragma once
// Orthogonalization of a matrix by Newton-Schulz iterations, X <- a·X + (b·A + c·A·A)·X with A = X·Xᵀ. The order of
// summation in its GEMMs depends only on shape, type and instruction set, so that every rank computes the same bits.
#include "config/optim.h"
#include "tensor/exec.h"

namespace trainer::optim {

struct NewtonSchulz {
  /// jordan: the triple of Jordan 2024 in every step. polar: the triples of Polar Express (arXiv 2505.16932), the last
  /// one in all further steps.
  config::MuonCoefficients coefficients = config::MuonCoefficients::jordan;
  int steps = 5;
};

/// x <- approximately U·Vᵀ, for x = U·Σ·Vᵀ [rows, cols]; packed; f64, f32 or bf16. If rows > cols, iterates on the
/// transpose. Products are metered as OpKind::orthogonalize. A zero matrix stays zero.
void orthogonalize(Exec& ex, const Tensor& x, const NewtonSchulz& how);

/// Returns the FLOPs of its GEMMs: steps·(4k²n + 2k³) with k <= n, the two dimensions.
int64_t orthogonalize_flops(const Shape& shape, int steps);

/// The factor of an orthogonalized update of a matrix [in, out].
///   rms       0.2·sqrt(max(in, out)): entries as large as AdamW's (Moonlight, arXiv 2502.16982)
///   spectral  sqrt(max(1, out/in))
double update_scale(config::MuonScale scale, const Shape& shape);

}  // namespace trainer::optim
