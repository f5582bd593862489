#pragma once
// The list of layouts that training tests share. Adding lines to it tests a strategy.
#include <functional>

#include "config/sharding_spec.h"
#include "rigs/axonn.h"
#include "rigs/megatron.h"
#include "rigs/optimus.h"

namespace trainer::tests {

struct LayoutCase {
  std::string name;
  config::Config config;
  int64_t steps = 5;
};
inline std::ostream& operator<<(std::ostream& out, const LayoutCase& one) { return out << one.name; }

/// Returns a case with two layers whose sharding specs have one letter per mesh axis (strategy "autoddl").
inline LayoutCase tables(const char* name, config::Arch arch, std::vector<int64_t> axes,
                         std::vector<config::LayerSpec> layers, const char* head, const char* table,
                         int64_t kv_heads = 2) {
  config::Config c = configure(MegatronLayout{.arch = arch, .kv_heads = arch == config::Arch::llama ? kv_heads : 0});
  if (arch == config::Arch::llama) c.model.n_kv_head = kv_heads;
  c.parallel.strategy = config::StrategyName::autoddl;
  c.parallel.axes = std::move(axes);
  for (config::LayerSpec& tags : layers) tags.layers = layers.size() == 2 ? 1 : 2;
  c.parallel.layer = std::move(layers);
  c.parallel.head = head;
  c.parallel.table = table;
  return {format("{}{}", name, arch == config::Arch::gpt2 ? "Gpt2" : "Llama"), c};
}

/// Sharding specs over 2 x 2 ranks: a layer as in Megatron-1D, and one as in Optimus-2D. Some sites are transposed.
inline LayoutCase mixed_specs(config::Arch arch) {
  return tables("Mixed", arch, {2, 2},
                {{"rr", "cc", "cc", "cc", "kk", "cc", "kk"}, {"rc", "rc", "rc", "fc", "fc", "fc", "fk"}}, "rc", "fv");
}

/// FSDP over `shards` ranks, `context` of which share each sequence and split its heads, in `data` replicas.
inline LayoutCase sharded(int64_t shards, int64_t data, config::Arch arch, int64_t context = 1) {
  config::Config c = configure(AxonnGrid{1, 1, shards, data, arch});
  c.parallel.strategy = config::StrategyName::fsdp;
  c.parallel.grid = {1, 1, 1};
  c.parallel.shards = shards;
  c.parallel.context = c.parallel.context_heads = context;
  c.model.seq_len = 12;  // rows divide over eight ranks, a sequence over four
  c.train.micro_batch /= context;
  c.train.global_batch = 4 * c.train.micro_batch * data;
  return {format("Shards{}{}Data{}{}", shards, context > 1 ? format("Context{}", context) : "", data,
                 arch == config::Arch::gpt2 ? "Gpt2" : "Llama"),
          c};
}

/// Lets `context` ranks share each sequence, of 24 tokens. With FSDP, `heads` of them split its heads.
inline LayoutCase shared(LayoutCase one, int64_t context, config::Panels kv, int64_t heads = 0) {
  one.name += format("Shared{}{}{}", context, heads > 1 ? format("Heads{}", heads) : "",
                     kv == config::Panels::ring ? "Ring" : "Gather");
  one.config.model.seq_len = 24;
  one.config.parallel.context = context;
  one.config.parallel.context_heads = heads;
  one.config.parallel.context_kv = kv;
  return one;
}

/// Returns the layout for a model with experts. `shared`: also with a shared expert, in every second layer, with
/// weights that do not sum to 1 and loads balanced by sequence.
inline LayoutCase with_experts(LayoutCase one, bool shared) {
  one.name += shared ? "SharedExpert" : "Experts";
  add_experts(one.config);
  one.config.model.norm_topk = !shared;
  if (!shared) return one;
  one.config.model.d_shared = 36;
  one.config.model.moe_every = 2;
  one.config.train.balance = config::Balance::sequence;
  return one;
}

/// Divides the experts over two ranks. Loads are balanced, so that the bytes do not depend on the data. Segments of
/// shared sequences have 8 tokens, whose choices are the same number of each expert.
inline LayoutCase divided(LayoutCase one) {
  if (one.name.find("Shared2") != std::string::npos) one.config.model.seq_len = 32;
  one.name += "Divided";
  one.config.parallel.experts = 2;
  one.config.debug.balanced_routing = true;
  return one;
}

inline std::vector<LayoutCase> all_cases() {
  std::vector<LayoutCase> all;
  const auto add = [&](const auto& layout, int64_t steps = 5) {
    all.push_back({to_string(layout), configure(layout), steps});
  };
  using config::AxisOrder, config::Panels, config::Stationary, config::VocabAxes;
  // Megatron-1D. Sequences have 24 rows. With one sequence, every shard is inside it; with two, three shards have 16
  // rows, and one of them has rows of both.
  for (const int64_t tensor : {2, 3, 4, 8})
    for (const bool sequence_parallel : {false, true})
      add(MegatronLayout{tensor, 1, sequence_parallel, tensor % 4 == 0 ? config::Arch::llama : config::Arch::gpt2,
                         tensor == 4 ? 1 : 2},
          tensor == 4 ? 20 : 5);
  add(MegatronLayout{1, 2});
  add(MegatronLayout{2, 2, true, config::Arch::gpt2, 1}, 20);
  add(MegatronLayout{3, 1, true, config::Arch::llama});
  add(MegatronLayout{4, 2, false, config::Arch::gpt2, 1});
  add(MegatronLayout{4, 2, true, config::Arch::llama, 1});
  // Shared key/value heads with biases: a rank has elements that it owns next to copies in one slot.
  add(MegatronLayout{4, 1, true, config::Arch::gpt2, 1, 2});
  add(MegatronLayout{8, 2, false, config::Arch::gpt2, 1, 2});
  // Optimus-2D: square meshes, with depth and with replicas; node tiles of several rows and columns of the mesh, also
  // where ranks share key/value heads.
  for (const config::Arch arch : {config::Arch::gpt2, config::Arch::llama}) {
    for (const Panels panels : {Panels::ring, Panels::gather}) {
      add(Square{2, 1, 1, arch, Stationary::automatic, {1, 1}, panels}, arch == config::Arch::gpt2 ? 20 : 5);
      add(Square{3, 1, 1, arch, Stationary::paper, {1, 1}, panels});
    }
    add(Square{2, 1, 2, arch, Stationary::paper});
    add(Square{
        2, 2, 1, arch, Stationary::automatic, {1, 1}, arch == config::Arch::gpt2 ? Panels::ring : Panels::gather});
    add(Square{4, 1, 1, arch, Stationary::automatic, {2, 2}});
  }
  add(Square{2, 2, 2});
  add(Square{1, 3});
  add(Square{1, 2, 2, config::Arch::llama});
  add(Square{2, 1, 1, config::Arch::gpt2, Stationary::automatic, {2, 1}});
  add(Square{4, 1, 1, config::Arch::llama, Stationary::paper, {1, 2}});
  // AxoNN-4D: all power-of-two grids of 2, 4 and 8 ranks, other axis orders, extents of 3, and some grids of 16 ranks.
  for (const int64_t ranks : {2, 4, 8})
    for (int64_t x = 1; x <= ranks; x *= 2)
      for (int64_t y = 1; x * y <= ranks; y *= 2)
        if (const int64_t z = ranks / (x * y); ranks < 8 || x * y * z == 8)
          add(AxonnGrid{x, y, z, 1, (x + z) % 3 == 0 ? config::Arch::llama : config::Arch::gpt2}, ranks == 4 ? 20 : 5);
  for (const AxonnGrid& grid :
       {AxonnGrid{3, 1, 2, 1}, AxonnGrid{1, 3, 2, 1}, AxonnGrid{3, 2, 1, 1}, AxonnGrid{2, 3, 1, 2},
        AxonnGrid{2, 2, 1, 1, config::Arch::gpt2, AxisOrder::xyzd}, AxonnGrid{1, 2, 2, 2, config::Arch::llama},
        AxonnGrid{2, 2, 2, 1, config::Arch::gpt2, AxisOrder::xyzd}, AxonnGrid{2, 4, 2, 1},
        AxonnGrid{2, 2, 4, 1, config::Arch::llama}, AxonnGrid{4, 2, 1, 2, config::Arch::llama, AxisOrder::zxyd},
        AxonnGrid{2, 2, 2, 1, config::Arch::gpt2, AxisOrder::yxzd, VocabAxes::xy},
        AxonnGrid{1, 3, 2, 1, config::Arch::llama, AxisOrder::yxzd, VocabAxes::xy},
        AxonnGrid{2, 3, 1, 2, config::Arch::gpt2, AxisOrder::xyzd, VocabAxes::xy},
        AxonnGrid{4, 2, 1, 2, config::Arch::llama, AxisOrder::yzxd, VocabAxes::xy}})
    add(grid);
  // FSDP and hybrid sharding.
  all.push_back(sharded(4, 1, config::Arch::llama));
  all.push_back(sharded(3, 2, config::Arch::gpt2));
  all.push_back(sharded(4, 1, config::Arch::gpt2, 4));
  all.push_back(sharded(4, 1, config::Arch::llama, 4));  // more ranks than key/value heads
  all.push_back(sharded(6, 1, config::Arch::gpt2, 2));
  // Sharding specs, which may differ between adjacent layers.
  const config::LayerSpec optimus{"rc", "rc", "rc", "fc", "fc", "fc", "fk"},
      axonn{"r-c", "rc-", "rc-", "fck", "fkc", "fck", "fkc"};
  config::LayerSpec ring = optimus;
  ring.schedule = "ring";
  for (const config::Arch arch : {config::Arch::gpt2, config::Arch::llama}) {
    all.push_back(tables("AxonnWholeColumns", arch, {2, 2, 2}, {axonn}, "r-r", "fvf"));
    all.push_back(mixed_specs(arch));
    all.push_back(tables("Ring", arch, {2, 2}, {ring}, "rc", "fv"));
    all.push_back(tables("RingAfterGather", arch, {2, 2}, {optimus, ring}, "rc", "fv"));
    all.push_back(tables("SharedHeads", arch, {4, 2}, {{"r-", "c-", "c-", "c-", "k-", "c-", "k-"}}, "r-", "v-"));
    all.push_back(tables("Crossed", arch, {2, 2},
                         {{"-c", "cr", "c-", "ck", "rf", "kk", "rr"}, {"cc", "cc", "cc", "kr", "ff", "fc", "kc"}}, "rr",
                         "fv"));
  }
  all.push_back(tables("Contrary", config::Arch::llama, {2, 3},
                       {{"cr", "r-", "rc", "kc", "ck", "fr", "cc"}, {"rc", "-c", "-r", "rk", "kf", "k-", "-k"}}, "r-",
                       "fh", 3));
  // Features that model families add to the block, on layouts of each strategy; in some, ranks share key/value heads.
  const auto with = [&](const char* feature, const std::function<void(config::Config&)>& change) {
    for (const char* base : {"Tensor4Data1SpEach1Llama", "Tensor8Data1Each2Llama", "Q2Depth1Data1LlamaAutoRingTile1x1",
                             "Q3Depth1Data1LlamaPaperGatherTile1x1", "Q4Depth1Data1LlamaAutoRingTile2x2",
                             "X2Y2Z1Data1Llama", "X1Y2Z2Data2Llama", "MixedLlama", "CrossedLlama"}) {
      const auto found = std::ranges::find(all, base, &LayoutCase::name);
      if (found == all.end()) throw std::runtime_error(std::string("no case ") + base);
      LayoutCase changed = *found;
      changed.name += feature;
      change(changed.config);
      all.push_back(changed);
    }
  };
  with("WideHeadsYarn", [](config::Config& c) {
    c.model.head_dim = 6;
    c.model.rope_type = config::RopeType::yarn;
    c.model.rope_factor = 4;
    c.model.rope_original = 16;
  });
  with("QkNorm", [](config::Config& c) { c.model.qk_norm = config::QkNorm::head; });
  with("PostNorm", [](config::Config& c) {
    c.model.norm_place = config::NormPlace::post;
    c.model.qk_norm = config::QkNorm::full;
  });
  with("BothNorms", [](config::Config& c) {  // with Gemma's gains, activation and scales
    c.model.norm_place = config::NormPlace::both;
    c.model.qk_norm = config::QkNorm::head;
    c.model.family.gain_offset = 1;
    c.model.family.scales_embedding = true;
    c.model.activation = config::Activation::gelu;
    c.model.attn_scalar = 10;
  });
  with("Neox", [](config::Config& c) {
    set_family(c.model, config::Arch::gpt_neox);
    c.model.bias = true;
  });
  with("QkvBiases", [](config::Config& c) { c.model.attn_bias = config::AttentionBias::qkv; });
  with("ZLossSoftcap", [](config::Config& c) {
    c.train.z_loss = 0.01;
    c.model.logit_softcap = 4;
  });
  with("Masks", [](config::Config& c) {
    c.model.window = 5;
    c.model.window_full_every = 2;
    c.model.nope_every = 2;
    c.data.separate_documents = true;
  });
  const config::Arch llama = config::Arch::llama;
  const auto named = [](const auto& layout) { return LayoutCase{to_string(layout), configure(layout)}; };
  const auto square = [](int64_t depth) {
    return Square{2, depth, 1, config::Arch::llama, Stationary::automatic, {1, 1}, Panels::gather};
  };
  // Ranks that share sequences. Segments of 6, 4 or 3 tokens; a window of 5 spans two or three of them.
  const auto masked = [](LayoutCase one) {
    one.name += "Masks";
    one.config.model.qk_norm = one.config.parallel.tensor > 1 ? config::QkNorm::full : config::QkNorm::head;
    one.config.model.window = 5;
    one.config.model.window_full_every = 2;
    one.config.model.nope_every = 2;
    one.config.data.separate_documents = true;
    return one;
  };
  for (const Panels kv : {Panels::gather, Panels::ring}) {
    const auto shared_z = [&](AxonnGrid grid, int64_t context) { return shared(named(grid), context, kv); };
    for (const LayoutCase& one :
         {shared(sharded(2, 1, config::Arch::gpt2), 2, kv, 1), shared(sharded(4, 1, llama), 4, kv, 1),
          shared(sharded(4, 2, config::Arch::gpt2), 4, kv, 2), shared(sharded(6, 1, llama), 3, kv, 1),
          shared(named(MegatronLayout{2, 1, false}), 2, kv), shared(named(MegatronLayout{2, 1, true, llama}), 2, kv),
          shared(named(MegatronLayout{2, 2, true, llama, 1, 1}), 4, kv), shared_z({2, 1, 2, 1}, 2),
          shared_z({1, 2, 4, 1, llama}, 2), shared_z({1, 2, 2, 2, llama, AxisOrder::zyxd}, 2),
          shared(named(square(1)), 2, kv)}) {
      all.push_back(one);
      if (one.name.starts_with("Shards4") || one.name.starts_with("Tensor2Data1Sp")) all.push_back(masked(one));
    }
    LayoutCase spec = tables("Shared", llama, {2, 2}, {{"-r", "cs", "cr", "cf", "kr", "cr", "kf"}}, "-r", "vf");
    spec.config.parallel.context_kv = kv;
    all.push_back(spec);
    all.back().name += kv == Panels::ring ? "Ring" : "Gather";
  }
  const auto add_experts = [&](bool shared, std::vector<LayoutCase> layouts) {
    for (LayoutCase& one : layouts) all.push_back(with_experts(std::move(one), shared));
  };
  add_experts(false, {sharded(4, 1, llama, 2), sharded(2, 2, llama), named(MegatronLayout{2, 2, false, llama}),
                      named(AxonnGrid{2, 1, 2, 1, llama}), named(square(2)), mixed_specs(llama)});
  add_experts(true, {sharded(4, 1, llama, 2), named(MegatronLayout{2, 1, true, llama}),
                     named(AxonnGrid{2, 1, 2, 2, llama}), named(square(1)), mixed_specs(llama)});
  all.push_back(divided(with_experts(named(MegatronLayout{1, 2, true, llama}), false)));
  all.push_back(divided(with_experts(sharded(4, 1, llama, 2), true)));
  all.push_back(divided(with_experts(shared(sharded(4, 1, llama), 2, Panels::ring, 1), true)));
  all.push_back(divided(with_experts(shared(named(MegatronLayout{1, 1, true, llama}), 2, Panels::gather), false)));
  return all;
}

inline const std::vector<LayoutCase>& layout_cases() {
  static const std::vector<LayoutCase> all = all_cases();
  return all;
}
/// Returns the cases with these names.
inline std::vector<LayoutCase> layouts_named(std::initializer_list<const char*> names) {
  std::vector<LayoutCase> some;
  for (const char* name : names) {
    const auto found = std::ranges::find(layout_cases(), name, &LayoutCase::name);
    if (found == layout_cases().end()) throw std::runtime_error(std::string("no case ") + name);
    some.push_back(*found);
  }
  return some;
}
inline std::string name_of_case(const testing::TestParamInfo<LayoutCase>& info) { return info.param.name; }

}  // namespace trainer::tests
