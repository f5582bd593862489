#pragma once
// A tiny run for tests of the trainer: random tokens, odd sizes.
#include <functional>
#include <memory>
#include <vector>

#include "base/philox.h"
#include "config/families.h"
#include "tensor/host_copy.h"
#include "train/trainer.h"

namespace trainer::tests {

inline config::Config tiny_config(config::Arch arch = config::Arch::gpt2) {
  const bool llama = arch == config::Arch::llama;
  config::Config c;
  c.run.seed = 7;
  c.model = {.n_layer = 2,
             .n_head = 3,
             .n_kv_head = llama ? 1 : 3,
             .d_model = 24,
             .d_ff = 40,
             .seq_len = 11,
             .tie_embeddings = !llama,
             .bias = !llama,
             .norm_eps = 1e-5,
             .rope_theta = 1e4,
             .dropout = 0.1,
             .init_std = 0.1,
             .vocab_multiple = 16,
             .init_from = {}};
  set_family(c.model, arch);
  c.train.global_batch = 4;
  c.train.micro_batch = 2;
  c.optim = {.lr = 1e-3,
             .min_lr = 1e-4,
             .warmup_steps = 2,
             .schedule = config::Schedule::cosine,
             .decay_fraction = 0.1,
             .beta1 = 0.9,
             .beta2 = 0.95,
             .eps = 1e-8,
             .weight_decay = 0.1,
             .grad_clip = 1.0};
  c.parallel.strategy = config::StrategyName::megatron_1d;
  return c;
}
inline constexpr int64_t kTinyVocab = 37;
/// Makes the MLPs of a model of family llama mixtures of 8 experts, 2 of which compute a token.
inline void add_experts(config::Config& c) {
  c.model.n_expert = 8;
  c.model.experts_per_token = 2;
  c.model.d_expert = 24;
  c.train.balance_loss = 0.05;
  c.train.router_z_loss = 0.01;
}
/// Returns a model with experts; with `shared`, layers with and without experts alternate, and there is a shared one.
inline config::Config tiny_experts(bool shared = false) {
  config::Config c = tiny_config(config::Arch::llama);
  add_experts(c);
  if (!shared) return c;
  c.model.n_layer = 4;
  c.model.moe_every = 2;
  c.model.d_shared = 12;
  c.train.balance = config::Balance::sequence;
  return c;
}
/// A model whose sizes divide by 2, 3, 4, 8 and 16; its vocabulary is padded to 48. `kv_heads`: key/value heads of
/// Llama.
inline config::Config wide_config(config::Arch arch, int64_t kv_heads) {
  config::Config c = tiny_config(arch);
  c.model.n_head = 48;
  c.model.n_kv_head = arch == config::Arch::gpt2 ? 48 : kv_heads;
  c.model.d_model = 96;
  c.model.d_ff = 48;
  c.model.seq_len = 10;
  c.model.vocab_multiple = 48;
  c.optim.grad_clip = 0.1;
  return c;
}

inline train::BatchSource tiny_batches(const config::Config& c) {
  const int64_t length = c.model.seq_len;
  return [length, separate = c.data.separates()](int64_t sample, int64_t sequences, data::TokenBatch& out) {
    out.resize(sequences, length);
    const PhiloxKey key = philox_key(5, "tokens");
    for (size_t r = 0; r < out.ids.size(); ++r) {
      const uint64_t at = static_cast<uint64_t>(sample * length) + r;
      out.ids[r] = static_cast<int32_t>(philox_at(key, at) % kTinyVocab);
      out.targets[r] = static_cast<int32_t>(philox_at(key, at + 1) % kTinyVocab);
      if (separate && philox_at(philox_key(6, "documents"), at) % 5 == 0) out.starts.push_back(static_cast<int64_t>(r));
    }
  };
}

/// Makes the world for collectives on the device's tensors.
using Carrier = std::function<std::unique_ptr<comm::World>(comm::World&, device::Device&)>;

/// A trainer on its own device, ready to step.
struct Tiny {
  Tiny(const config::Config& c, DType compute, int threads, device::Isa isa = device::detect_isa())
      : Tiny(nullptr, c, compute, threads, isa) {}
  /// One rank of `world`; null: of a new world with one rank.
  Tiny(comm::World* world, const config::Config& c, DType compute, int threads, device::Isa isa = device::detect_isa())
      : Tiny(world, c, compute, std::make_unique<device::CpuDevice>(threads, isa)) {}
  Tiny(comm::World* world, const config::Config& c, DType compute, std::unique_ptr<device::Device> where,
       const Carrier& make_carrier = {}, std::optional<sharding::ModelSharding> sharding = {})
      : solo(world == nullptr ? comm::solo_world() : nullptr),
        owned(std::move(where)),
        device(*owned),
        carrier(make_carrier ? make_carrier(*world, device) : nullptr),
        trainer(device,
                carrier            ? *carrier
                : world == nullptr ? *solo
                                   : *world,
                c, kTinyVocab, compute, std::move(sharding)),
        batches(tiny_batches(c)) {
    trainer.plan();
    trainer.store().initialize(static_cast<uint64_t>(c.run.seed));
  }
  train::Trainer::Outcome step(int64_t n, double lr = 1e-3, bool (*stop)() = nullptr) {
    const config::Config& c = trainer.config();
    return trainer.step({.step = n,
                         .first_sample = (n - 1) * c.train.global_batch,
                         .adam_step = n,
                         .micro_batches = trainer.accumulation(),
                         .lr = lr},
                        batches, stop);
  }
  /// Returns all bytes of master weights and moments.
  std::vector<std::byte> state() {
    std::vector<std::byte> bytes;
    trainer.store().settle();
    for (const auto& group : trainer.store().groups())
      for (size_t i = 0; i <= group.states.size(); ++i) {
        const Tensor t = i == 0 ? group.master : group.states[i - 1].memory;
        const HostCopy here(trainer.store().home(), t);
        bytes.insert(bytes.end(), here.tensor().data, here.tensor().data + t.bytes());
      }
    return bytes;
  }
  std::unique_ptr<comm::World> solo;
  std::unique_ptr<device::Device> owned;
  device::Device& device;
  std::unique_ptr<comm::World> carrier;
  train::Trainer trainer;
  train::BatchSource batches;
};

}  // namespace trainer::tests
