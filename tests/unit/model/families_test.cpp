// Models of published families compared with values computed independently of this program: losses and gradients in
// double precision. Weights (value_at) and tokens are formulas, so that nothing has to be stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "config/families.h"
#include "config/load.h"
#include "unit/model/rig.h"

namespace trainer::model_test {
namespace {

constexpr int64_t kLength = 8, kSequences = 2;

/// A gradient: one entry as transformers stores the tensor (a linear's weight is [out, in]), and the tensor's norm.
struct Gradient {
  const char* tensor;
  int64_t row, col;
  double entry, norm;
};
struct Family {
  const char* name;
  int64_t vocab;
  std::vector<std::string> sets;
  double loss, norm;
  std::vector<Gradient> gradients;
  double z_loss = 0, z_term = 0;                     // coefficient, and the mean of the term
  std::vector<std::vector<int64_t>> documents = {};  // first rows of each sequence's documents; empty: one document
  std::optional<config::FamilyFacts> facts = {};     // instead of those of arch
};

// StableLM 2 with RoPE on all features of a head: not a family of this program, but facts that exist.
const config::Family kStableLm = {
    .arch = config::Arch::llama,
    .name = "stablelm",
    .about = "llama with LayerNorm",
    .facts = {.norm = config::NormKind::layer, .positions = config::Positions::rope, .mlp = config::MlpKind::gated},
    .hugging_face = {.model_type = "stablelm", .architecture = "StableLmForCausalLM"}};

const std::vector<std::string> kSmall = {"n_layer=2", "n_head=4",  "n_kv_head=2",   "d_model=16",
                                         "d_ff=20",   "seq_len=8", "norm_eps=1e-6", "rope_theta=1e4"};
const std::vector<std::string> kLarger = {"n_layer=2", "n_head=4",      "n_kv_head=2",    "d_model=32",   "d_ff=40",
                                          "seq_len=8", "norm_eps=1e-5", "rope_theta=1e4", "rope_factor=4"};

std::vector<std::string> operator+(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
const std::vector<std::string> kLlama3 =
    kLarger + std::vector<std::string>{"arch=llama", "rope_type=llama3", "rope_high_freq=8", "rope_original=256"};

std::vector<Family> families() {
  return {
      {"llama3-rope",
       31,
       kLlama3,
       4.649672878680455,
       9.419745331413120,
       {{"wte", 7, 1, -4.640506808043389e-01, 6.002770675920421},
        {"blocks.1.attn.q.weight", 1, 1, -2.568050394037116e-03, 5.600098089425241e-01},
        {"blocks.1.attn.k.weight", 1, 1, 1.056671352951394e-02, 4.036872656349496e-01},
        {"head.weight", 7, 1, 9.575557094647120e-03, 1.671244273828832}}},
      {"linear",
       31,
       kLarger + std::vector<std::string>{"arch=llama", "rope_type=linear"},
       4.535343842665819,
       8.477312329110722,
       {{"blocks.1.attn.q.weight", 1, 1, -7.316890786492994e-04, 7.166753082840460e-01},
        {"blocks.1.attn.k.weight", 1, 1, 2.133846729672838e-02, 5.785185544445823e-01},
        {"head.weight", 7, 1, 5.785957958829629e-03, 1.634624408466868}}},
      {"yarn",
       31,
       kLarger + std::vector<std::string>{"arch=llama", "rope_type=yarn", "rope_original=64"},
       4.646592106978195,
       11.19036626414738,
       {{"blocks.1.attn.q.weight", 1, 1, -3.126494569625592e-03, 5.454002149696023e-01},
        {"blocks.1.attn.k.weight", 1, 1, 1.286686397351424e-02, 3.789895408283790e-01},
        {"head.weight", 7, 1, 8.568461431004808e-03, 1.658117615016279}}},
      {"biases",
       29,
       kSmall + std::vector<std::string>{"arch=llama", "attn_bias=all", "mlp_bias=true"},
       3.799147259854071,
       2.833161593461805,
       {{"blocks.1.attn.o.bias", 1, 0, 1.700368400963969e-02, 1.587973834206608e-01},
        {"blocks.1.mlp.down.bias", 1, 0, 2.147677444776685e-02, 1.443128648754782e-01},
        {"blocks.1.mlp.gate.bias", 1, 0, -2.287032546453513e-03, 9.266219946150368e-02},
        {"blocks.1.mlp.up.bias", 1, 0, 8.198040570732883e-03, 5.477548755766001e-02}}},
      {"biases of queries, keys and values (qwen2)",
       29,
       kSmall + std::vector<std::string>{"arch=qwen2", "rope_theta=1e6", "tie_embeddings=true"},
       3.928008426891320,
       3.308588424963740,
       {{"blocks.1.attn.q.bias", 1, 0, 1.902057783062468e-02, 6.580695032364703e-02},
        {"blocks.1.attn.k.bias", 1, 0, 3.640002262467982e-05, 2.309382744310340e-02},
        {"blocks.1.attn.v.bias", 1, 0, 7.072639357891972e-02, 3.517415399884849e-01}}},
      {"norms of queries and keys (qwen3)",
       29,
       kSmall + std::vector<std::string>{"arch=qwen3", "head_dim=6", "rope_theta=1e6", "tie_embeddings=true"},
       3.946844029023999,
       4.702691630338259,
       {{"wte", 7, 1, -3.479626987195032e-02, 2.788763757316008},
        {"blocks.1.attn.q.weight", 1, 1, 3.045071667103949e-02, 3.633634379425716e-01},
        {"blocks.1.attn.k.weight", 1, 1, 1.098119455315468e-03, 3.225752630462124e-01},
        {"blocks.1.attn.o.weight", 1, 1, -1.103831320183916e-02, 4.092372265874669e-01},
        {"blocks.1.attn.q_norm.gain", 1, 0, 4.371954969935494e-02, 5.078129405914760e-02},
        {"blocks.1.attn.k_norm.gain", 1, 0, 4.564870445549277e-02, 5.521371138401224e-02},
        {"blocks.1.mlp.down.weight", 1, 1, -2.404531954179107e-03, 4.544340111746461e-01}}},
      {"norms of queries and keys with yarn",
       29,
       kSmall + std::vector<std::string>{"arch=llama", "head_dim=8", "qk_norm=head", "rope_type=yarn", "rope_factor=4",
                                         "rope_original=64"},
       4.130819399245827,
       4.332924835250001,
       {{"blocks.1.attn.q.weight", 1, 1, 7.116690907972782e-03, 2.265599687262468e-01},
        {"blocks.1.attn.k_norm.gain", 1, 0, -4.380992012245022e-03, 2.308964964737302e-02}}},
      {"heads wider than d_model / n_head",
       29,
       kSmall + std::vector<std::string>{"arch=mistral", "head_dim=6"},
       3.633052353727665,
       4.306254023992839,
       {{"blocks.1.attn.q.weight", 1, 1, -4.427481044315734e-03, 3.573538391221324e-01},
        {"blocks.1.attn.k.weight", 1, 1, -7.970551556046146e-03, 2.174706151727706e-01},
        {"blocks.1.attn.v.weight", 1, 1, 3.315129486726801e-02, 6.215567337993637e-01},
        {"blocks.1.attn.o.weight", 1, 1, 4.584618287850886e-02, 7.056915473748715e-01},
        {"head.weight", 7, 1, -5.731078763888588e-02, 1.053269120283614}}},
      {"z-loss",
       31,
       kLlama3,
       4.649672878680455,
       9.557852673738740,
       {{"head.weight", 7, 1, 1.042736505662514e-02, 1.714626193367554},
        {"blocks.1.attn.q.weight", 1, 1, -2.951154359548477e-03, 5.645225020218155e-01}},
       0.01,
       4.845321255922544 - 4.649672878680455},
      {"soft cap of logits",
       31,
       kLlama3 + std::vector<std::string>{"logit_softcap=3"},
       4.019973786873232,
       7.931915755685872,
       {{"head.weight", 7, 1, -9.225846018875444e-03, 1.337384046710018},
        {"blocks.1.attn.k.weight", 1, 1, 1.961119509571775e-02, 3.922247235259341e-01}}},
      {"a layer without RoPE (smollm3)",
       29,
       kSmall + std::vector<std::string>{"arch=smollm3", "nope_every=2", "rope_theta=2e6", "tie_embeddings=true"},
       4.009414074915131,
       4.045572936225022,
       {{"blocks.1.attn.q.weight", 1, 1, -2.849349900991040e-02, 2.561921240414271e-01},
        {"blocks.1.attn.k.weight", 1, 1, 2.557339083594904e-02, 1.872887595543392e-01}}},
      {"norms over all heads and after each branch (olmo2)",
       29,
       kSmall + std::vector<std::string>{"arch=olmo2", "rope_theta=5e5"},
       3.534047166974874,
       3.233577835749271,
       {{"blocks.1.attn.q_norm.gain", 1, 0, 3.857165014397899e-03, 2.417047992756761e-02},
        {"blocks.1.attn.k_norm.gain", 1, 0, 9.940239584431933e-03, 2.640833212451857e-02},
        {"blocks.1.norm1.gain", 1, 0, -7.022019186257281e-02, 1.270930749521483e-01},
        {"blocks.1.norm2.gain", 1, 0, 5.764955549683203e-03, 1.078939507717118e-01}}},
      {"windows (mistral)",
       29,
       kSmall + std::vector<std::string>{"arch=mistral", "head_dim=6", "window=3"},
       3.515977033966931,
       3.773614417678750,
       {{"blocks.1.attn.k.weight", 1, 1, -1.402346376036670e-02, 1.708476993973023e-01},
        {"blocks.1.attn.v.weight", 1, 1, -1.006589173923126e-02, 6.042880428769509e-01}}},
      {"windows and separate documents",
       29,
       kSmall + std::vector<std::string>{"arch=mistral", "head_dim=6", "window=3"},
       3.262633266648641,
       4.093853174636878,
       {{"blocks.1.attn.k.weight", 1, 1, -4.906077062320041e-03, 1.316080756385115e-01},
        {"wte", 7, 1, 9.691626624761085e-02, 2.208357448236421}},
       0,
       0,
       {{0, 3, 4}, {0, 6}}},
      {"separate documents",
       31,
       kLlama3,
       4.601361761617005,
       6.048299479940694,
       {{"blocks.1.attn.k.weight", 1, 1, 1.701641662975497e-03, 1.827199767403544e-01},
        {"wte", 7, 1, -1.051859471692565e-01, 3.446789150489442}},
       0,
       0,
       {{0, 3, 4}, {0, 6}}},
      {"another row (stablelm)",
       29,
       kSmall + std::vector<std::string>{"bias=true", "attn_bias=none", "mlp_bias=false", "tie_embeddings=false"},
       4.103421764696505,
       4.725887180302448,
       {{"blocks.1.norm1.gain", 1, 0, -1.294790526630965e-02, 1.647778620791356e-01},
        {"blocks.1.norm1.bias", 1, 0, 2.223629853157121e-03, 2.351632085090256e-01},
        {"blocks.1.attn.q.weight", 1, 1, 1.650386576685586e-02, 1.707541242122560e-01},
        {"blocks.1.mlp.gate.weight", 1, 1, 2.034908904676330e-03, 3.947601429540206e-01},
        {"norm_f.bias", 1, 0, -8.266885047069873e-02, 3.597405540518184e-01}},
       0,
       0,
       {},
       kStableLm.facts},
  };
}

/// Returns all tensors that a model may have, in the order in which they are applied; value_at() numbers those present.
std::vector<std::string> tensor_order(const config::Model& model) {
  std::vector<std::string> all{"wte"};
  const bool post = has_post_norms(model);
  for (int64_t layer = 0; layer < model.n_layer; ++layer)
    for (const char* tensor : {post ? "" : "norm1.gain",
                               "norm1.bias",
                               "attn.q.weight",
                               "attn.q.bias",
                               "attn.k.weight",
                               "attn.k.bias",
                               "attn.v.weight",
                               "attn.v.bias",
                               "attn.o.weight",
                               "attn.o.bias",
                               "attn.q_norm.gain",
                               "attn.k_norm.gain",
                               post ? "norm1.gain" : "norm2.gain",
                               "norm2.bias",
                               "mlp.gate.weight",
                               "mlp.gate.bias",
                               "mlp.up.weight",
                               "mlp.up.bias",
                               "mlp.down.weight",
                               "mlp.down.bias",
                               post ? "norm2.gain" : ""})
      all.push_back(format("blocks.{}.{}", layer, tensor));
  all.insert(all.end(), {"norm_f.gain", "norm_f.bias", "head.weight"});
  return all;
}

/// Returns element (row, col) of tensor number `index`, as transformers stores it.
double value_at(const std::string& name, int64_t index, int64_t row, int64_t col) {
  const double wave = std::sin(static_cast<double>(1 + 37 * row + 11 * col + 3 * row * col + 101 * index));
  return name.ends_with(".gain") ? 1 + 0.25 * wave : (name.ends_with(".bias") ? 0.1 : 0.3) * wave;
}

/// Maps transformers' (row, col) to this program's tensor: linears are [in, out] here and [out, in] in transformers.
struct Placed {
  explicit Placed(const params::Param& param)
      : turned(param.name.ends_with(".weight") && param.name != "head.weight"),
        rows(param.shape[turned ? 1 : 0]),
        cols(param.shape.dims() == 1 ? 1 : param.shape[turned ? 0 : 1]) {}
  size_t at(int64_t row, int64_t col) const {
    return static_cast<size_t>(turned ? col * rows + row : row * cols + col);
  }

  bool turned;
  int64_t rows, cols;  // in transformers
};

struct Families : ::testing::TestWithParam<config::Recompute> {};

TEST_P(Families, ComputeTheLossesAndGradientsOfTheReference) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    std::vector<std::string> sets;
    for (const std::string& set : family.sets) sets.push_back("model." + set);
    config::Model model = config::load_text("", "x", sets, {.files = false}).model;
    if (family.facts) model.family = *family.facts;
    Rig rig(model, family.vocab, 1, {.train = {.recompute = GetParam()}});
    std::map<std::string, params::Param> params;
    for (const params::Param& param : rig.store.params()) params.emplace(param.name, param);
    Named weights;
    int64_t index = 0;
    for (const std::string& name : tensor_order(model)) {
      const auto found = params.find(name);
      if (found == params.end()) continue;
      const Placed placed(found->second);
      std::vector<double>& values = weights[name];
      values.resize(static_cast<size_t>(found->second.shape.count()));
      for (int64_t row = 0; row < placed.rows; ++row)
        for (int64_t col = 0; col < placed.cols; ++col) values[placed.at(row, col)] = value_at(name, index, row, col);
      ++index;
    }
    ASSERT_EQ(weights.size(), params.size());
    rig.set_weights(weights);
    reference::Batch batch{.sequences = kSequences, .length = kLength};
    for (int64_t b = 0; b < kSequences; ++b)
      for (int64_t t = 0; t <= kLength; ++t) {
        const auto token = static_cast<int32_t>((3 * t * t + 5 * t + 11 * b + 7) % family.vocab);
        if (t < kLength) batch.ids.push_back(token);
        if (t > 0) batch.targets.push_back(token);
      }
    for (size_t b = 0; b < family.documents.size(); ++b)
      for (int64_t t = 0; t < kLength; ++t) {
        const std::vector<int64_t>& starts = family.documents[b];
        batch.first_keys.push_back(static_cast<int32_t>(*(std::ranges::upper_bound(starts, t) - 1)));
      }
    EXPECT_NEAR(rig.loss(batch), family.loss, 1e-12);
    rig.z_loss = family.z_loss;
    EXPECT_NEAR(rig.step({batch}), family.loss, 1e-12);
    EXPECT_NEAR(rig.z_term, family.z_term, 1e-12);
    const Named gradients = rig.gradients();
    double squares = 0;
    for (const auto& [name, values] : gradients) squares += norm_of(values) * norm_of(values);
    EXPECT_NEAR(std::sqrt(squares), family.norm, 1e-11 * family.norm);
    for (const Gradient& expected : family.gradients) {
      const std::vector<double>& values = gradients.at(expected.tensor);
      EXPECT_NEAR(norm_of(values), expected.norm, 1e-11 * expected.norm) << expected.tensor;
      EXPECT_NEAR(values[Placed(params.at(expected.tensor)).at(expected.row, expected.col)], expected.entry,
                  1e-12 * expected.norm)
          << expected.tensor;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recompute, Families,
                         ::testing::Values(config::Recompute::none, config::Recompute::selective,
                                           config::Recompute::full));

}  // namespace
}  // namespace trainer::model_test
