// The keys of [train], [optim] and [muon].
#include "config/declare.h"

namespace trainer::config {

void declare_train(std::vector<Key>& keys) {
  Declare<Train> train(keys, "train", &Config::train);
  train.integer(
      "steps", &Train::steps, 0,
      {.range = between(1, 1e9), .unit = "optimizer steps", .derived = "1000, or as many as train.tokens needs"},
      "Length of the run; give either steps or tokens.");
  train.integer(
      "tokens", &Train::tokens, 0, {.range = between(1, 1e18), .unit = "tokens", .derived = "unset: train.steps"},
      "Length of the run in training tokens, rounded up to whole steps; tokens trained before a resume are included.");
  train.integer("global_batch", &Train::global_batch, 32, {.range = between(1, 1e9), .unit = "sequences"},
                "Sequences per optimizer step: micro_batch x accumulation x data replicas.");
  train.integer("micro_batch", &Train::micro_batch, 4, {.range = between(1, 1e6), .unit = "sequences"},
                "Sequences per replica in one forward and backward pass; raise it for speed, lower it to save memory.");
  train.choice("recompute", &Train::recompute, Recompute::none,
               {std::begin(kRecomputeNames), std::end(kRecomputeNames)},
               "Activation recomputation (checkpointing) in backward, to save memory: none; selective: norms and "
               "activation functions; full: whole blocks.");
  train.integer(
      "recompute_layers", &Train::recompute_layers, 0, {.range = at_least(0), .unit = "layers"},
      "Number of layers, counted from the first, that are recomputed as with \"full\"; recompute applies to the "
      "remaining layers. A larger number takes more time and saves memory, up to a number that depends on the model.");
  train.number("z_loss", &Train::z_loss, 0, {.range = between(0, 1)},
               "Coefficient of the z-loss, the mean square of the logarithm of the softmax denominator, which keeps "
               "logits small (PaLM: 1e-4); 0: none. Reported losses do not include it.");
  train.number("balance_loss", &Train::balance_loss, -1,
               {.range = between(0, 10), .derived = "0.01 with model.n_expert"},
               "Coefficient of the experts' load-balancing loss, the mean over layers of E x sum of f x P over the E "
               "experts: f is an expert's share of the choices, P its mean probability; 1 if loads are equal. Raise it "
               "if experts stay idle; 0: none. Reported losses do not include it.");
  train.choice("balance", &Train::balance, Balance::batch, {std::begin(kBalanceNames), std::end(kBalanceNames)},
               "Tokens over which loads are balanced. batch: all sequences of a micro-batch, of all replicas, which "
               "lets experts specialize; sequence: each sequence.");
  train.number("router_z_loss", &Train::router_z_loss, 0, {.range = between(0, 1)},
               "Coefficient of the router's z-loss, the mean square of the logarithm of its softmax denominator, which "
               "keeps its logits small (ST-MoE: 1e-3); 0: none. Reported losses do not include it.");
  train.integer("eval_interval", &Train::eval_interval, 250, {.range = at_least(0), .unit = "steps"},
                "Steps between evaluations; 0: only after the last step.");
  train.integer("eval_batches", &Train::eval_batches, 16,
                {.range = at_least(0), .unit = "groups of global_batch windows"},
                "Amount of validation data per evaluation, taken from its start; 0: all of it, in whole windows of "
                "seq_len tokens.");
  train.integer("task_interval", &Train::task_interval, -1,
                {.range = at_least(0), .unit = "steps", .derived = "train.eval_interval"},
                "Steps between evaluations of the tasks in [[data.task]]; 0: only after the last step.");
  train.integer("sample_interval", &Train::sample_interval, -1,
                {.range = at_least(0), .unit = "steps", .derived = "a single sample, after the last step"},
                "Steps between generated samples; 0: no samples.");
  train.string("sample_prompt", &Train::sample_prompt, "\n", {},
               "Prompt of the samples; empty: no samples unless sample_interval is set.");
  train.integer("sample_tokens", &Train::sample_tokens, 100, {.range = between(1, 1e6), .unit = "tokens"},
                "Length of a sample.");
  train.integer(
      "max_skipped_steps", &Train::max_skipped_steps, 10, {.range = at_least(0), .unit = "steps"},
      "Consecutive steps with a non-finite loss or gradient that are skipped before the run ends with status 6.");
  train.number(
      "skip_sigma", &Train::skip_sigma, 0, {.range = at_least(0)},
      "Skip the update of a step whose loss or gradient norm exceeds the mean of the last skip_window steps by "
      "more than this number of standard deviations, such as 6; 0: never. Needs 64 earlier steps; skipped steps "
      "count for max_skipped_steps.");
  train.integer("skip_window", &Train::skip_window, 128, {.range = between(64, 1e5), .unit = "steps"},
                "Earlier steps, skipped ones included, that skip_sigma compares a step with.");
  train.boolean(
      "cuda_graph", &Train::cuda_graph, false,
      "Capture micro-steps on a GPU as CUDA graphs and replay them, which saves work on the host; results are bitwise "
      "identical. Ignored, with a note in the log, with dropout or if ranks communicate within a micro-step.");
}

void declare_optim(std::vector<Key>& keys) {
  Declare<Optim> optim(keys, "optim", &Config::optim);
  optim.choice(
      "name", &Optim::name, OptimizerName::adamw, {"adamw", "muon", "sgd"},
      "Optimizer. muon: orthogonalized momentum for the weight matrices in the blocks' linear layers, with AdamW "
      "for all other parameters; sgd: gradient descent. The sections muon and sgd have their keys.");
  optim.number("lr", &Optim::lr, 6e-4, {.range = above(0)}, "Peak learning rate, reached after the warm-up.");
  optim.number("min_lr", &Optim::min_lr, -1, {.range = at_least(0), .derived = "lr / 10"},
               "Learning rate at the end of the run, after the last step.");
  optim.integer("warmup_steps", &Optim::warmup_steps, -1,
                {.range = at_least(0), .unit = "steps", .derived = "5 % of the run, at most 2000"},
                "Steps over which the learning rate rises linearly.");
  optim.choice("schedule", &Optim::schedule, Schedule::cosine, {"cosine", "linear", "wsd", "constant"},
               "Decay of the learning rate to min_lr; wsd: constant at lr, then decay at the end; constant: no decay.");
  optim.number("decay_fraction", &Optim::decay_fraction, 0.2, {.range = {.min = 0, .max = 1, .open_min = true}},
               "wsd: fraction of the run, at its end, in which the learning rate decays.");
  optim.integer("decay_steps", &Optim::decay_steps, 0, {.range = at_least(0), .unit = "steps"},
                "wsd: length of the decay instead of decay_fraction; 0: that.");
  optim.choice("decay_shape", &Optim::decay_shape, DecayShape::linear, {"linear", "sqrt"},
               "wsd: shape of the decay; sqrt: after a share p of it, a share sqrt(p) of the way to min_lr.");
  optim.number("beta1", &Optim::beta1, 0.9, {.range = fraction()}, "AdamW: decay rate of the first moment.");
  optim.number("beta2", &Optim::beta2, 0.95, {.range = fraction()}, "AdamW: decay rate of the second moment.");
  optim.number("eps", &Optim::eps, 1e-8, {.range = above(0)}, "AdamW: added to the square root of the second moment.");
  optim.choice("moments", &Optim::moments, Moments::fp32, {"fp32", "bf16"},
               "Type in which AdamW's moments and sgd's momentum are stored; bf16: with AdamW 8 instead of 12 bytes of "
               "state per "
               "parameter, weights included, and a faster update. Second moments are rounded stochastically.");
  optim.boolean(
      "overlap", &Optim::overlap, true,
      "AdamW and sgd on a CPU, if micro_batch x seq_len is at most 512: update weights during the next forward pass, "
      "on "
      "half of the threads. Gradients then need memory of their own; without effect if that does not fit, and "
      "with a single thread, ZeRO or offload. Results are bitwise identical.");
  optim.number("weight_decay", &Optim::weight_decay, 0.1, {.range = at_least(0)},
               "AdamW and sgd: weight decay of tensors with two or more dimensions, embeddings included.");
  optim.choice(
      "decay", &Optim::decay, Decay::plain, {"plain", "cautious"},
      "Elements on which weight decay acts. plain: all; cautious: those that their update moves towards zero.");
  optim.number("grad_clip", &Optim::grad_clip, 1, {.range = at_least(0)},
               "Gradients are clipped to this global norm; 0: no clipping.");
  optim.number("embedding_lr", &Optim::embedding_lr, 1, {.range = at_least(0)},
               "Learning rate of token and position embeddings, relative to that of the schedule; 0: they stay as they "
               "are. A tied table is an embedding.");
  optim.number("head_lr", &Optim::head_lr, 1, {.range = at_least(0)}, "The same for the head, if it is not tied.");
  optim.number("vector_lr", &Optim::vector_lr, 1, {.range = at_least(0)}, "The same for gains and biases.");
  optim.integer(
      "mup_base_width", &Optim::mup_base_width, 0, {.range = at_least(0), .unit = "features"},
      "muP for AdamW: the width (model.d_model) of a smaller model for which optim.lr and model.init_std were chosen; "
      "0: off. With r = mup_base_width / d_model, the learning rates of the blocks' matrices and of the head are "
      "multiplied by r, their initial standard deviations by sqrt(r) and r. Depth, head size, batch size, steps, "
      "schedule and data must be those of the smaller model.");
}

void declare_sgd(std::vector<Key>& keys) {
  Declare<Sgd> sgd(keys, "sgd", &Config::sgd);
  sgd.number("momentum", &Sgd::momentum, 0, {.range = fraction(), .needs = kSgd},
             "Momentum: decay rate of the sum of gradients; 0: none, and no state.");
  sgd.boolean("nesterov", &Sgd::nesterov, false,
              "Nesterov momentum: add the current gradient to the direction of the update once more.", {.needs = kSgd});
}

void declare_muon(std::vector<Key>& keys) {
  Declare<Muon> muon(keys, "muon", &Config::muon);
  muon.number("momentum", &Muon::momentum, 0.95, {.range = fraction(), .needs = kMuon},
              "Momentum: decay rate of the average of gradients.");
  muon.boolean("nesterov", &Muon::nesterov, true,
               "Nesterov momentum: blend the current gradient into the direction of the update once more.",
               {.needs = kMuon});
  muon.integer("steps", &Muon::steps, 5, {.range = between(1, 20), .unit = "iterations", .needs = kMuon},
               "Newton-Schulz iterations that orthogonalize an update.");
  muon.choice(
      "coefficients", &Muon::coefficients, MuonCoefficients::jordan, {"jordan", "polar"},
      "Coefficients of the iterations: Jordan's triple, or the five triples of Polar Express, the last one in all "
      "further iterations.",
      {.needs = kMuon});
  muon.choice("scale", &Muon::scale, MuonScale::rms, {"rms", "spectral"},
              "Length of an update. rms: 0.2 * sqrt(max(in, out)), about that of AdamW, so that optim.lr keeps its "
              "meaning; spectral: sqrt(max(1, out / in)), for learning rates near 0.02.",
              {.needs = kMuon});
  muon.number("lr_ratio", &Muon::lr_ratio, 1, {.range = above(0), .needs = kMuon},
              "Learning rate of the matrices relative to that of the schedule.");
  muon.number("weight_decay", &Muon::weight_decay, -1,
              {.range = at_least(0), .derived = "optim.weight_decay", .needs = kMuon},
              "Weight decay of the matrices, multiplied by the schedule's learning rate.");
  muon.choice(
      "compute", &Muon::compute, Compute::automatic, {"auto", "bf16", "fp32", "fp64"},
      "Type of the iterations' matrices; auto: that of the run. In fp32 small singular values of the momentum are "
      "preserved better than in bf16.",
      {.needs = kMuon});
  muon.choice("owners", &Muon::owners, MuonOwners::all, {"all", "replica"},
              "Ranks among which the matrices are divided: all, or those of each replica, which exchanges nothing "
              "between replicas but repeats the work in each. Results are bitwise identical.",
              {.needs = kMuon});
}

}  // namespace trainer::config
