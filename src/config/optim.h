#pragma once
// The sections [optim], [muon] and [sgd].
#include <cstdint>

#include "config/train.h"

namespace trainer::config {

enum class Schedule { cosine, linear, wsd, constant };
enum class DecayShape { linear, sqrt };
enum class Moments { fp32, bf16 };
enum class OptimizerName { adamw, muon, sgd };
enum class Decay { plain, cautious };
enum class MuonCoefficients { jordan, polar };
enum class MuonScale { rms, spectral };
enum class MuonOwners { all, replica };

struct Optim {
  OptimizerName name = OptimizerName::adamw;
  double lr = 0, min_lr = 0;  // resolve() turns a negative min_lr into lr / 10
  int64_t warmup_steps = 0;   // resolve() turns a negative number into a share of the steps
  Schedule schedule = Schedule::cosine;
  double decay_fraction = 0;                    // wsd: fraction of the steps in the final decay
  int64_t decay_steps = 0;                      // wsd: its steps instead of decay_fraction; 0: that
  DecayShape decay_shape = DecayShape::linear;  // wsd
  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, grad_clip = 0;  // grad_clip 0: no clipping
  Moments moments = Moments::fp32;
  bool overlap = true;
  Decay decay = Decay::plain;
  double embedding_lr = 1, head_lr = 1, vector_lr = 1;  // learning rates of classes, relative to the schedule's
  int64_t mup_base_width = 0;                           // 0: off; config::width_ratio() returns what follows from it
};

/// Muon updates the weight matrices of the blocks' linears (optim/muon.h).
struct Muon {
  double momentum = 0;
  bool nesterov = true;
  int64_t steps = 0;
  MuonCoefficients coefficients = MuonCoefficients::jordan;
  MuonScale scale = MuonScale::rms;
  double lr_ratio = 1, weight_decay = 0;  // resolve() turns a negative weight_decay into that of Optim
  Compute compute = Compute::automatic;   // operand type of the GEMMs
  MuonOwners owners = MuonOwners::all;
};

/// Returns the steps of wsd's final decay in a run of `steps`; the warm-up may leave fewer.
int64_t final_decay(const Optim& optim, int64_t steps);

struct Sgd {
  double momentum = 0;
  bool nesterov = false;
};

}  // namespace trainer::config
