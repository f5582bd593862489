// The keys of [optim] and [muon].
#include "config/declare.h"

namespace trainer::config {

void declare_optim(std::vector<Key>& keys) {
  Declare<Optim> optim(keys, "optim", &Config::optim);
  optim.choice("name", &Optim::name, OptimizerName::adamw, {"adamw", "muon"},
               "Optimizer of the weight matrices in the blocks' linear layers. muon: orthogonalized momentum, with "
               "AdamW for all "
               "other parameters; the section muon has its keys.");
  optim.number("lr", &Optim::lr, 6e-4, {.range = above(0)}, "Peak learning rate, reached after the warm-up.");
  optim.number("min_lr", &Optim::min_lr, -1, {.range = at_least(0), .derived = "lr / 10"},
               "Learning rate at the end of the run.");
  optim.integer("warmup_steps", &Optim::warmup_steps, -1,
                {.range = at_least(0), .unit = "steps", .derived = "5 % of the run, at most 2000"},
                "Steps over which the learning rate rises linearly.");
  optim.choice("schedule", &Optim::schedule, Schedule::cosine, {"cosine", "linear", "wsd", "constant"},
               "Decay of the learning rate to min_lr; wsd: constant at lr, then linear decay at the end; constant: no "
               "decay.");
  optim.number("decay_fraction", &Optim::decay_fraction, 0.2, {.range = {.min = 0, .max = 1, .open_min = true}},
               "wsd: fraction of the run, at its end, in which the learning rate decays.");
  optim.number("beta1", &Optim::beta1, 0.9, {.range = fraction()}, "AdamW: decay rate of the first moment.");
  optim.number("beta2", &Optim::beta2, 0.95, {.range = fraction()}, "AdamW: decay rate of the second moment.");
  optim.number("eps", &Optim::eps, 1e-8, {.range = above(0)}, "AdamW: added to the square root of the second moment.");
  optim.choice(
      "moments", &Optim::moments, Moments::fp32, {"fp32", "bf16"},
      "AdamW: type in which the moments are stored; bf16: 8 instead of 12 bytes of state per parameter, weights "
      "included, and a faster update. Second moments are rounded stochastically.");
  optim.number("weight_decay", &Optim::weight_decay, 0.1, {.range = at_least(0)},
               "AdamW: weight decay of tensors with two or more dimensions, embeddings included.");
  optim.number("grad_clip", &Optim::grad_clip, 1, {.range = at_least(0)},
               "Gradients are clipped to this global norm; 0: no clipping.");
}

void declare_muon(std::vector<Key>& keys) {
  constexpr const char* kMuon = "muon";
  Declare<Muon> muon(keys, "muon", &Config::muon);
  muon.number("momentum", &Muon::momentum, 0.95, {.range = fraction(), .belongs_to = kMuon},
              "Momentum: decay rate of the average of gradients.");
  muon.boolean("nesterov", &Muon::nesterov, true,
               "Nesterov momentum: blend the current gradient into the direction of the update once more.",
               {.belongs_to = kMuon});
  muon.integer("steps", &Muon::steps, 5, {.range = between(1, 20), .unit = "iterations", .belongs_to = kMuon},
               "Newton-Schulz iterations that orthogonalize an update.");
  muon.choice(
      "coefficients", &Muon::coefficients, MuonCoefficients::jordan, {"jordan", "polar"},
      "Coefficients of the iterations: Jordan's triple, or the five triples of Polar Express, the last one in all "
      "further iterations.",
      {.belongs_to = kMuon});
  muon.choice("scale", &Muon::scale, MuonScale::rms, {"rms", "spectral"},
              "Length of an update. rms: 0.2 * sqrt(max(in, out)), about that of AdamW, so that optim.lr keeps its "
              "meaning; spectral: sqrt(max(1, out / in)), for learning rates near 0.02.",
              {.belongs_to = kMuon});
  muon.number("lr_ratio", &Muon::lr_ratio, 1, {.range = above(0), .belongs_to = kMuon},
              "Learning rate of the matrices relative to that of the schedule.");
  muon.number("weight_decay", &Muon::weight_decay, -1,
              {.range = at_least(0), .derived = "optim.weight_decay", .belongs_to = kMuon},
              "Weight decay of the matrices, multiplied by the schedule's learning rate.");
  muon.choice(
      "compute", &Muon::compute, Compute::automatic, {"auto", "bf16", "fp32", "fp64"},
      "Type of the iterations' matrices; auto: that of the run. In fp32 small singular values of the momentum are "
      "preserved better than in bf16.",
      {.belongs_to = kMuon});
  muon.choice("owners", &Muon::owners, MuonOwners::all, {"all", "replica"},
              "Ranks among which the matrices are divided: all, or those of each replica, which exchanges nothing "
              "between replicas but repeats the work in each. Results are bitwise identical.",
              {.belongs_to = kMuon});
}

}  // namespace trainer::config
