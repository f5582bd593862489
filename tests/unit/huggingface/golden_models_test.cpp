// Tiny models of published families compared with values computed independently of this program, from the equations and
// the tensors of Hugging Face's files: losses and gradients in double precision. Weights are given tensor by tensor of
// such a file, by a formula, so that a wrong order of fused rows changes the loss.
#include <cmath>

#include "config/load.h"
#include "huggingface/tensor_map.h"
#include "unit/model/rig.h"

namespace trainer::huggingface {
namespace {

using model_test::Named;
using model_test::Rig;

constexpr int64_t kLength = 8, kSequences = 2;

/// An element of a tensor of the file, counted from 0.
struct Entry {
  int64_t row, col;
  double value;
};
/// A gradient: entries and the norm of a file's tensor.
struct Gradient {
  const char* tensor;
  std::vector<Entry> entries;
  double norm;
};
struct Golden {
  const char* name;
  int64_t vocab;
  std::vector<std::string> sets;
  double loss, norm = 0;  // the norm is that of all gradients; 0: not compared
  std::vector<Gradient> gradients = {};
  bool in_thirds = false;  // reads fused tensors as all of their first part, then all of the second
};

const std::vector<std::string> kNeox = {"arch=gpt_neox", "n_layer=2", "n_head=4",     "d_model=32",
                                        "d_ff=40",       "seq_len=8", "rotary_dim=4", "norm_eps=1e-5"};

const std::vector<std::string> kOlmo3 = {
    "arch=olmo3",      "n_layer=3",     "n_head=4", "n_kv_head=2",    "d_model=16",          "d_ff=20",
    "seq_len=8",       "norm_eps=1e-6", "window=3", "rope_type=yarn", "window_full_every=3", "rope_factor=4",
    "rope_original=64"};

const std::vector<std::string> kGemma3 = {
    "arch=gemma3", "n_layer=3", "n_head=4", "n_kv_head=2",    "head_dim=6",         "d_model=12",
    "d_ff=20",     "seq_len=8", "window=3", "attn_scalar=10", "window_full_every=3"};

std::vector<std::string> operator+(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<Golden> goldens() {
  return {
      {"neox-tiny",
       31,
       kNeox,
       3.737424247366469,
       3.847422954113386,
       {{"gpt_neox.embed_in.weight", {{7, 1, 1.214518663738001e-01}}, 2.113738376113463},
        {"gpt_neox.layers.1.attention.query_key_value.weight",
         {{1, 1, -4.585299868101500e-03},
          {9, 1, -5.000530549455014e-03},
          {17, 1, -1.452070820140950e-02},
          {25, 1, 7.967937075612698e-03}},
         9.371682476097820e-01},
        {"gpt_neox.layers.1.attention.query_key_value.bias",
         {{1, 0, 1.327907807688549e-02},
          {9, 0, 2.426508247816098e-05},
          {17, 0, 2.709786974822790e-02},
          {25, 0, 4.067366675753675e-03}},
         2.178683306700001e-01},
        {"gpt_neox.layers.1.input_layernorm.weight", {{1, 0, -6.106505805071034e-02}}, 1.731521544063246e-01},
        {"gpt_neox.layers.1.input_layernorm.bias", {{1, 0, 4.008207683378252e-02}}, 2.583091792178771e-01},
        {"gpt_neox.layers.1.post_attention_layernorm.weight", {{1, 0, -4.914840912403162e-02}}, 1.118215026510510e-01},
        {"gpt_neox.layers.1.post_attention_layernorm.bias", {{1, 0, 1.378131596980069e-02}}, 1.132100605989634e-01},
        {"gpt_neox.layers.1.attention.dense.weight", {{1, 1, -4.011253079032284e-03}}, 7.291884175629538e-01},
        {"gpt_neox.layers.1.mlp.dense_4h_to_h.weight", {{1, 1, -1.388936083443820e-02}}, 6.210312582076392e-01},
        // Both branches end in the same sum.
        {"gpt_neox.layers.1.attention.dense.bias", {{1, 0, 8.134388146615854e-04}}, 1.435924270468317e-01},
        {"gpt_neox.layers.1.mlp.dense_4h_to_h.bias", {{1, 0, 8.134388146615854e-04}}, 1.435924270468317e-01},
        {"gpt_neox.layers.1.mlp.dense_h_to_4h.weight", {{1, 1, 3.568507731935398e-03}}, 5.933421893722044e-01},
        {"embed_out.weight", {{7, 1, -4.189294332806857e-03}}, 1.340434265082116}}},
      {"neox-sequential-tiny",
       31,
       kNeox + std::vector<std::string>{"rotary_dim=2", "parallel_residual=false", "activation=gelu"},
       4.210895853609184,
       5.917627844027742,
       {{"gpt_neox.layers.1.attention.query_key_value.weight", {{1, 1, 2.457231068708188e-03}}, 1.381148598011081},
        {"gpt_neox.layers.1.mlp.dense_h_to_4h.weight", {{1, 1, 2.739888153960060e-03}}, 6.623579180761558e-01}}},
      {"olmo3-tiny",
       29,
       kOlmo3,
       3.360416939680114,
       4.613778835843715,
       {{"model.layers.2.self_attn.q_proj.weight", {{1, 1, 6.424549117043063e-03}}, 5.272404085837763e-01},
        {"model.layers.2.self_attn.k_norm.weight", {{1, 0, -2.384469734346027e-02}}, 1.024876053027314e-01},
        {"model.embed_tokens.weight", {{7, 1, -5.054958441525482e-01}}, 2.551387631480500},
        {"lm_head.weight", {{7, 1, -1.729129200307142e-02}}, 9.806423873386703e-01}}},
      {"gemma3-tiny",
       29,
       kGemma3,
       3.523961737636803,
       4.285617520512444,
       {{"model.embed_tokens.weight", {{7, 1, -4.969698798709996e-02}}, 3.043287349512837},
        {"model.layers.2.self_attn.q_proj.weight", {{1, 1, -5.611582890243950e-04}}, 1.129662145532980e-01},
        {"model.layers.2.self_attn.k_proj.weight", {{1, 1, -1.067644538460436e-02}}, 1.372909174256834e-01},
        {"model.layers.2.self_attn.q_norm.weight", {{1, 0, 6.373143773999595e-03}}, 1.182897391631231e-02},
        {"model.layers.2.self_attn.k_norm.weight", {{1, 0, 6.959503685386734e-03}}, 1.413223841498633e-02},
        {"model.layers.2.input_layernorm.weight", {{1, 0, 8.291248139131902e-03}}, 9.183320761778727e-02},
        {"model.layers.2.post_attention_layernorm.weight", {{1, 0, -2.620906772328519e-02}}, 5.196457774385862e-02},
        {"model.layers.2.pre_feedforward_layernorm.weight", {{1, 0, -3.949560475757678e-03}}, 2.881503829243015e-02},
        {"model.layers.2.post_feedforward_layernorm.weight", {{1, 0, -3.102720713128095e-03}}, 4.203975703215258e-02},
        {"model.layers.2.mlp.gate_proj.weight", {{1, 1, 5.352953473555589e-03}}, 1.243568409239682e-01},
        {"model.layers.2.mlp.down_proj.weight", {{1, 1, -1.756841804611444e-02}}, 1.758322540366606e-01}}},
      {"gemma3-linear-tiny",
       29,
       kGemma3 + std::vector<std::string>{"rope_type=linear", "rope_factor=4"},
       3.499257439991521,
       3.983474986656288,
       {{"model.layers.2.self_attn.q_proj.weight", {{1, 1, -1.646031564605068e-03}}, 1.040021516162012e-01},
        {"model.embed_tokens.weight", {{7, 1, -7.582221969507534e-02}}, 2.877614616727061}}},
      // Mistakes that change the loss.
      {"gemma3-tiny with scores over the root of head_dim", 29, kGemma3 + std::vector<std::string>{"attn_scalar=6"},
       3.536134480845103},
      {"gemma3-tiny with one RoPE", 29, kGemma3 + std::vector<std::string>{"window_rope_theta=0"}, 3.524479442763889},
      {"gemma3-tiny with exact GELU", 29, kGemma3 + std::vector<std::string>{"activation=gelu_erf"}, 3.523995506944257},
      {"olmo3-tiny with yarn in all layers", 29, kOlmo3 + std::vector<std::string>{"window_rope_theta=0"},
       3.371479103160229},
      {"neox-tiny with the tanh form of GELU", 31, kNeox + std::vector<std::string>{"activation=gelu"},
       3.737436205057416},
      {"neox-tiny, sequential", 31, kNeox + std::vector<std::string>{"parallel_residual=false"}, 4.231120442224879},
      {.name = "neox-tiny, q, k and v as thirds",
       .vocab = 31,
       .sets = kNeox,
       .loss = 3.682789158883089,
       .in_thirds = true},
  };
}

std::vector<std::string> names_of_neox(const config::Model& model) {
  std::vector<std::string> all{"gpt_neox.embed_in.weight"};
  for (int64_t layer = 0; layer < model.n_layer; ++layer)
    for (const char* name : {"input_layernorm", "post_attention_layernorm", "attention.query_key_value",
                             "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"})
      for (const char* suffix : {".weight", ".bias"})
        all.push_back(format("gpt_neox.layers.{}.{}{}", layer, name, suffix));
  all.insert(all.end(), {"gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias", "embed_out.weight"});
  return all;
}
/// Returns the names of a file's tensors in the order that numbers them; some of them do not exist.
std::vector<std::string> names_in_order(const config::Model& model) {
  std::vector<std::string> all{"model.embed_tokens.weight"};
  for (int64_t layer = 0; layer < model.n_layer; ++layer)
    for (const char* name :
         {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm", "pre_feedforward_layernorm",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_feedforward_layernorm"})
      all.push_back(format("model.layers.{}.{}.weight", layer, name));
  all.insert(all.end(), {"model.norm.weight", "lm_head.weight"});
  return model.arch == config::Arch::gpt_neox ? names_of_neox(model) : all;
}
/// Returns element (row, col) of the file's tensor number `index`. Gemma stores gains less 1.
double value_at(const MappedTensor& tensor, bool gemma, int64_t index, int64_t row, int64_t col) {
  const double wave = std::sin(static_cast<double>(1 + 37 * row + 11 * col + 3 * row * col + 101 * index));
  if (tensor.name.ends_with(".bias")) return 0.1 * wave;
  return tensor.shape.dims() == 1 ? (gemma ? 0 : 1) + 0.25 * wave : 0.3 * wave;
}

/// Calls element(name, i, j) for each element i of one of this program's tensors and its place j in the file's tensor.
template <typename F>
void each_element(const MappedTensor& tensor, const F& element) {
  for (size_t part = 0; part < tensor.parts.size(); ++part)
    for (const mesh::Run& run : tensor.runs(part))
      for (int64_t i = 0; i < run.length; ++i)
        element(tensor.parts[part].name, static_cast<size_t>(run.global + i),
                static_cast<size_t>(run.local + i * run.stride));
}

struct GoldenModels : ::testing::TestWithParam<config::Recompute> {};

TEST_P(GoldenModels, HaveTheLossesAndGradientsOfTheReference) {
  for (const Golden& golden : goldens()) {
    SCOPED_TRACE(golden.name);
    std::vector<std::string> sets;
    for (const std::string& set : golden.sets) sets.push_back("model." + set);
    const config::Model model = config::load_text("", "x", sets, {.files = false}).model;
    Rig rig(model, golden.vocab, 1, {.train = {.recompute = GetParam()}});
    std::map<std::string, MappedTensor> tensors;
    for (MappedTensor tensor : tensor_map(model, golden.vocab)) {
      if (golden.in_thirds) tensor.block = 0;
      tensors.emplace(tensor.name, tensor);
    }
    Named weights;
    int64_t index = 0;
    for (const std::string& name : names_in_order(model)) {
      const auto found = tensors.find(name);
      if (found == tensors.end()) continue;
      const MappedTensor& tensor = found->second;
      for (size_t part = 0; part < tensor.parts.size(); ++part)
        weights[tensor.parts[part].name].resize(static_cast<size_t>(tensor.part_shape(part).count()));
      const int64_t cols = tensor.shape.dims() == 1 ? 1 : tensor.shape[1];
      each_element(tensor, [&](const std::string& ours, size_t i, size_t j) {
        const auto place = static_cast<int64_t>(j);
        weights.at(ours)[i] = value_at(tensor, model.arch == config::Arch::gemma3, index, place / cols, place % cols);
      });
      ++index;
    }
    ASSERT_EQ(index, std::ssize(tensors));
    rig.set_weights(weights);
    reference::Batch batch{.sequences = kSequences, .length = kLength};
    for (int64_t b = 0; b < kSequences; ++b)
      for (int64_t t = 0; t <= kLength; ++t) {
        const auto token = static_cast<int32_t>((3 * t * t + 5 * t + 11 * b + 7) % golden.vocab);
        if (t < kLength) batch.ids.push_back(token);
        if (t > 0) batch.targets.push_back(token);
      }
    EXPECT_NEAR(rig.loss(batch), golden.loss, 1e-12);
    if (golden.norm == 0) continue;
    EXPECT_NEAR(rig.step({batch}), golden.loss, 1e-12);
    const Named gradients = rig.gradients();
    double squares = 0;
    for (const auto& [name, values] : gradients) squares += model_test::norm_of(values) * model_test::norm_of(values);
    EXPECT_NEAR(std::sqrt(squares), golden.norm, 1e-11 * golden.norm);
    for (const Gradient& expected : golden.gradients) {
      SCOPED_TRACE(expected.tensor);
      const MappedTensor& tensor = tensors.at(expected.tensor);
      std::vector<double> values(static_cast<size_t>(tensor.shape.count()));
      each_element(tensor, [&](const std::string& ours, size_t i, size_t j) { values[j] = gradients.at(ours)[i]; });
      EXPECT_NEAR(model_test::norm_of(values), expected.norm, 1e-11 * expected.norm);
      const int64_t cols = tensor.shape.dims() == 1 ? 1 : tensor.shape[1];
      for (const auto& [row, col, value] : expected.entries)
        EXPECT_NEAR(values[static_cast<size_t>(row * cols + col)], value, 1e-12 * expected.norm) << row;
    }
  }
}

TEST(WindowRope, OfTheSameBaseIsTheRopeOfAllLayers) {
  std::vector<std::string> sets;
  for (const char* set : {"arch=llama", "n_layer=3", "n_head=4", "d_model=16", "seq_len=8", "window=3",
                          "window_full_every=3", "rope_theta=2e4"})
    sets.push_back(format("model.{}", set));
  const config::Model one = config::load_text("", "x", sets, {.files = false}).model;
  config::Model two = one, other = one;
  two.window_rope_theta = 2e4;
  other.window_rope_theta = 1e4;
  reference::Batch batch{.sequences = 1, .length = kLength};
  for (int32_t t = 0; t < kLength; ++t) {
    batch.ids.push_back(t * t % 29);
    batch.targets.push_back((t + 1) * (t + 1) % 29);
  }
  const auto run = [&](const config::Model& model) {
    Rig rig(model, 29, 1, {});
    rig.store.initialize(1);
    const double loss = rig.step({batch});
    return std::pair(loss, rig.gradients());
  };
  EXPECT_EQ(run(two), run(one));
  EXPECT_NE(run(other).first, run(one).first);
}

INSTANTIATE_TEST_SUITE_P(Recompute, GoldenModels,
                         ::testing::Values(config::Recompute::none, config::Recompute::selective,
                                           config::Recompute::full));

}  // namespace
}  // namespace trainer::huggingface
