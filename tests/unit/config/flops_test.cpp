#include "config/flops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "config/families.h"

namespace trainer::config {
namespace {

config::Model gpt2_124m() {
  config::Model model;
  set_family(model, Arch::gpt2);
  model.n_layer = 12;
  model.n_head = 12;
  model.d_model = 768;
  model.d_ff = 3072;
  model.seq_len = 1024;
  return model;
}

config::Model llama3_8b() {
  config::Model model;
  set_family(model, Arch::llama);
  model.n_layer = 32;
  model.n_head = 32;
  model.n_kv_head = 8;
  model.d_model = 4096;
  model.d_ff = 14336;
  model.seq_len = 8192;
  return model;
}

TEST(Flops, Gpt2SmallByHand) {
  // A block: 4·768² + 2·768·3072 = 7 077 888; twelve of them 84 934 656; head 768·50257 = 38 597 376.
  const MatmulWeights weights = matmul_weights(gpt2_124m(), 50257);
  EXPECT_EQ(weights.blocks, 84'934'656);
  EXPECT_EQ(weights.head, 38'597'376);
  EXPECT_EQ(weights.total(), 123'532'032);
  const FlopsPerToken flops = flops_per_token(gpt2_124m(), 50257, 0);
  EXPECT_EQ(flops.matmul, 741'192'192.0);
  EXPECT_EQ(flops.attention, 113'246'208.0);  // 12·12·768·1024
  EXPECT_EQ(flops.full(), 854'438'400.0);
  EXPECT_EQ(flops.causal(), 797'815'296.0);
  EXPECT_EQ(flops.hardware(), flops.causal());
}

TEST(Flops, LlamaWithGroupedHeadsByHand) {
  // A block: q and o 2·4096², k and v 2·4096·1024, gate, up and down 3·4096·14336: 218 103 808.
  const MatmulWeights weights = matmul_weights(llama3_8b(), 128256);
  EXPECT_EQ(weights.blocks, 32 * int64_t{218'103'808});
  EXPECT_EQ(weights.head, 4096 * int64_t{128256});
  // Published size 8 030 261 248 = these + the embedding + 65 gains of 4096.
  EXPECT_EQ(weights.total() + 4096 * int64_t{128256} + 65 * 4096, 8'030'261'248);
}

// Weights that multiply, and FLOPs per token of training at 2048 tokens; parameters without tables are those of table 1
// of arXiv 2304.01373.
TEST(Flops, OfPythias) {
  struct Case {
    int64_t layers, width, heads, vocab, weights, flops, without_tables;
  };
  for (const auto& [layers, width, heads, vocab, weights, flops, without_tables] :
       {Case{6, 512, 8, 50304, 44'630'016, 343'277'568, 18'915'328},
        Case{12, 768, 12, 50304, 123'568'128, 967'901'184, 85'056'000},
        Case{16, 2048, 8, 50304, 908'328'960, 6'255'280'128, 805'736'448},
        Case{36, 5120, 40, 50688, 11'584'143'360, 74'034'708'480, 11'327'027'200}}) {
    config::Model model;
    set_family(model, Arch::gpt_neox);
    model.n_layer = layers;
    model.n_head = heads;
    model.d_model = width;
    model.d_ff = 4 * width;
    model.seq_len = 2048;
    EXPECT_EQ(matmul_weights(model, vocab).total(), weights);
    EXPECT_EQ(flops_per_token(model, vocab, 0).full(), static_cast<double>(flops));
    // Biases of 3, 1, 4 and 1 widths, and gain and bias of two norms per layer and of the last one.
    EXPECT_EQ(matmul_weights(model, vocab).blocks + layers * 13 * width + 2 * width, without_tables);
  }
}

TEST(Flops, OfOlmo3CountItsWindows) {
  config::Model model;
  set_family(model, Arch::olmo3);
  model.n_layer = 32;
  model.n_head = 32;
  model.d_model = 4096;
  model.d_ff = 11008;
  model.seq_len = 8192;
  model.window = 4096;
  model.window_full_every = 4;
  EXPECT_EQ(matmul_weights(model, 100'278).total(), 6'886'744'064);
  EXPECT_EQ(flops_per_token(model, 100'278, 0).full(), 49'373'528'064.0);
}

TEST(Flops, OfGemma3CountItsWindows) {
  config::Model model;
  set_family(model, Arch::gemma3);
  model.n_layer = 18;
  model.n_head = 4;
  model.n_kv_head = 1;
  model.head_dim = 256;
  model.d_model = 640;
  model.d_ff = 2048;
  model.seq_len = 4096;
  model.window = 512;
  model.window_full_every = 6;
  EXPECT_EQ(matmul_weights(model, 262'144).total(), 268'042'240);
  EXPECT_EQ(flops_per_token(model, 262'144, 0).full(), 1'853'620'224.0);
}

TEST(Flops, OfExpertsCountThoseThatComputeAToken) {
  struct Case {
    const char* name;
    Arch arch;
    int64_t n_layer, n_head, n_kv_head, head_dim, d_model, n_expert, k, d_expert, d_shared, vocab;
    int64_t parameters, active;
    double flops;  // for a token of a sequence of 4096
  };
  for (const Case& c : {Case{"Mixtral 8x7B", Arch::mixtral, 32, 32, 8, 128, 4096, 8, 2, 14336, 0, 32000, 46'702'792'704,
                             12'748'587'008, 82'933'972'992},
                        {"OLMoE 1B-7B", Arch::olmoe, 16, 16, 16, 128, 2048, 64, 8, 1024, 0, 50304, 6'919'161'856,
                         1'178'861'568, 8'683'782'144},
                        {"Qwen1.5-MoE-A2.7B", Arch::qwen2_moe, 24, 16, 16, 128, 2048, 60, 4, 1408, 5632, 151936,
                         14'315'784'192, 2'377'760'768, 16'682'483'712},
                        {"Qwen3-30B-A3B", Arch::qwen3_moe, 48, 32, 4, 128, 2048, 128, 8, 768, 0, 151936, 30'532'122'624,
                         3'041'656'832, 27'913'617'408}}) {
    SCOPED_TRACE(c.name);
    config::Model model;
    set_family(model, c.arch);
    model.bias = model.tie_embeddings = false;
    model.n_layer = c.n_layer;
    model.n_head = c.n_head;
    model.n_kv_head = c.n_kv_head;
    model.head_dim = c.head_dim;
    model.d_model = c.d_model;
    model.n_expert = c.n_expert;
    model.experts_per_token = c.k;
    model.d_expert = c.d_expert;
    model.d_shared = c.d_shared;
    model.seq_len = 4096;
    EXPECT_EQ(parameter_count(model, c.vocab), c.parameters);
    EXPECT_EQ(matmul_weights(model, c.vocab).total(), c.active);
    EXPECT_EQ(flops_per_token(model, c.vocab, 0).full(), c.flops);
  }
  config::Model dense = llama3_8b();
  dense.bias = dense.tie_embeddings = false;
  EXPECT_EQ(parameter_count(dense, 128256), 8'030'261'248);
}

TEST(Flops, HeadsOfASizeOfTheirOwnByHand) {
  config::Model model = llama3_8b();  // Mistral Nemo
  model.n_layer = 40;
  model.d_model = 5120;
  model.head_dim = 128;
  const MatmulWeights weights = matmul_weights(model, 131072);
  EXPECT_EQ(weights.total(), 11'576'279'040);
  EXPECT_EQ(weights.total() + 5120 * int64_t{131072} + 81 * 5120, 12'247'782'400);  // with the embedding and 81 gains
  EXPECT_EQ(flops_per_token(model, 131072, 0).attention, 12.0 * 40 * 4096 * 8192);
  model.n_layer = 28;  // Qwen3 0.6B
  model.n_head = 16;
  model.d_model = 1024;
  model.d_ff = 3072;
  EXPECT_EQ(matmul_weights(model, 151936).total(), 595'984'384);
  model = llama3_8b();  // OLMo 2 1B
  model.n_layer = model.n_head = model.n_kv_head = 16;
  model.d_model = 2048;
  model.d_ff = 8192;
  EXPECT_EQ(matmul_weights(model, 100352).total(), 1'279'262'720);
  EXPECT_EQ(matmul_weights(model, 100352).total() + 2048 * (int64_t{100352} + 16 * 4 + 1), 1'484'916'736);
  model.n_layer = 36;  // SmolLM3
  model.n_kv_head = 4;
  model.d_ff = 11008;
  EXPECT_EQ(matmul_weights(model, 128256).total(), 3'074'949'120);
  EXPECT_EQ(matmul_weights(model, 128256).total() + 73 * 2048, 3'075'098'624);
  model.n_layer = 24;  // Qwen2.5 0.5B
  model.n_head = 14;
  model.n_kv_head = 2;
  model.d_model = 896;
  model.d_ff = 4864;
  EXPECT_EQ(matmul_weights(model, 151936).total(), 493'961'216);
  EXPECT_EQ(matmul_weights(model, 151936).total() + 49 * 896 + 24 * (14 + 2 * 2) * 64, 494'032'768);  // with biases
}

TEST(Flops, WindowsByHand) {
  config::Model model = gpt2_124m();
  model.seq_len = 8;
  model.window = 3;
  const auto attention = [&] { return flops_per_token(model, 50257, 12); };
  // Row t sees min(t, 3) keys; the integral of this over 8 rows is 3·8 − 3²/2: 3 − 9/16 keys per row.
  EXPECT_EQ(attention().attention, 12.0 * 12 * 768 * 3);
  EXPECT_EQ(attention().attention_causal, 12.0 * 12 * 768 * (3 - 9.0 / 16));
  EXPECT_EQ(attention().recomputed, 169'869'312.0 + 4.0 * 12 * 768 * (3 - 9.0 / 16));
  model.window_full_every = 4;  // layers 3, 7 and 11, counted from 0
  EXPECT_EQ(attention().attention, 12.0 * 768 * (9 * 3 + 3 * 8));
  EXPECT_EQ(attention().attention_causal, 12.0 * 768 * (9 * (3 - 9.0 / 16) + 3 * 4));
  const FlopsPerToken some = flops_per_token(model, 50257, 4);
  EXPECT_EQ(some.recomputed, 169'869'312.0 / 3 + 4.0 * 768 * (3 * (3 - 9.0 / 16) + 4));
  const FlopsPerToken shown = with_visible_share(some, 0.25);
  EXPECT_EQ(shown.recomputed, 169'869'312.0 / 3 + 768 * (3 * (3 - 9.0 / 16) + 4));
  model.window = 8;  // as long as the sequence: no effect
  EXPECT_EQ(attention().attention, 12.0 * 12 * 768 * 8);
  EXPECT_EQ(attention().attention_causal, 12.0 * 12 * 768 * 4);
  const FlopsPerToken half = with_visible_share(attention(), 0.5);
  EXPECT_EQ(half.full(), attention().full());
  EXPECT_EQ(half.attention_causal, 12.0 * 12 * 768 * 2);
  EXPECT_EQ(half.recomputed, 169'869'312.0 + 4.0 * 12 * 768 * 2);
}

TEST(Flops, RecomputationCountsForHardwareUtilisationOnly) {
  const config::Model model = gpt2_124m();
  const FlopsPerToken none = flops_per_token(model, 50257, 0);
  const FlopsPerToken some = flops_per_token(model, 50257, 5);
  const FlopsPerToken full = flops_per_token(model, 50257, 12);
  EXPECT_EQ(none.recomputed, 0.0);
  EXPECT_EQ(some.recomputed, full.recomputed / 12 * 5);
  EXPECT_EQ(full.full(), none.full());
  // The forward pass of the blocks again: 2·84 934 656, and 2·L·d·s for causal scores and their GEMM with v.
  EXPECT_EQ(full.recomputed, 169'869'312.0 + 2.0 * 12 * 768 * 1024);
  EXPECT_EQ(full.hardware() - full.causal(), full.recomputed);
}

TEST(Flops, UtilisationIsAShareOfThePeak) {
  const FlopsPerToken flops = flops_per_token(gpt2_124m(), 50257, 0);
  const Utilisation share = utilisation(flops, 1000.0, 2e12);
  EXPECT_DOUBLE_EQ(share.mfu, 854'438'400.0 * 1000 / 2e12);
  EXPECT_DOUBLE_EQ(share.mfu_causal, 797'815'296.0 * 1000 / 2e12);
  EXPECT_DOUBLE_EQ(share.hfu, share.mfu_causal);
  EXPECT_TRUE(std::isnan(utilisation(flops, 1000.0, 0).mfu));
  EXPECT_TRUE(std::isnan(utilisation(flops, 1000.0, std::nan("")).hfu));
}

TEST(Flops, RejectsUnresolvedSizes) {
  config::Model model = gpt2_124m();
  model.d_ff = 0;
  EXPECT_THROW(matmul_weights(model, 50257), Error);
}

}  // namespace
}  // namespace trainer::config
