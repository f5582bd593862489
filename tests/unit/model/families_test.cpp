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
  // With experts: coefficients of the balance loss and of the routers' z-loss, the loss with both, and how often each
  // expert was chosen, layer by layer.
  double balance = 0, router_z = 0, objective = 0;
  std::vector<int64_t> counts = {};
  bool per_sequence = false;
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

const std::vector<std::string> kExperts = {"n_layer=2",  "n_head=4",   "d_model=16",          "seq_len=8",
                                           "n_expert=5", "d_expert=6", "experts_per_token=2", "norm_eps=1e-6"};

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
      {.name = "mixtral",
       .vocab = 29,
       .sets = kExperts + std::vector<std::string>{"arch=mixtral", "n_kv_head=2", "rope_theta=1e6", "norm_eps=1e-5"},
       .loss = 3.799407871072920,
       .norm = 4.528748409948188,
       .gradients = {{"blocks.1.mlp.router.weight", 1, 1, 1.987452947404428e-02, 1.622989698221070e-01},
                     {"blocks.1.mlp.experts.gate.weight@2", 1, 1, -7.292381466610890e-03, 9.891749916333438e-02},
                     {"blocks.1.mlp.experts.up.weight@2", 1, 1, 3.730045067403940e-04, 1.191983971808349e-01},
                     {"blocks.1.mlp.experts.down.weight@2", 1, 1, -6.068361510013652e-03, 6.252373721902701e-02}},
       .balance = 0.02,
       .objective = 3.822550227740555,
       .counts = {12, 6, 11, 2, 1, 6, 7, 5, 9, 5}},
      {.name = "olmoe",
       .vocab = 29,
       .sets = kExperts + std::vector<std::string>{"arch=olmoe", "rope_theta=1e4", "norm_eps=1e-5"},
       .loss = 3.534367347818247,
       .norm = 2.571377796554143,
       .gradients = {{"blocks.1.mlp.router.weight", 1, 1, -2.757626814137742e-03, 7.911948829855234e-02},
                     {"blocks.1.mlp.experts.gate.weight@2", 1, 1, -4.172476099987257e-03, 2.818535760318848e-02},
                     {"blocks.1.mlp.experts.up.weight@2", 1, 1, -2.237198809455040e-03, 2.654250037445517e-02},
                     {"blocks.1.mlp.experts.down.weight@2", 1, 1, -2.522051309025594e-04, 2.935381826233575e-02}},
       .balance = 0.01,
       .router_z = 0.001,
       .objective = 3.550811527828651,
       .counts = {4, 3, 13, 7, 5, 7, 1, 6, 10, 8}},
      {.name = "a shared expert (qwen2_moe)",
       .vocab = 29,
       .sets = kExperts + std::vector<std::string>{"arch=qwen2_moe", "n_kv_head=2", "rope_theta=1e6", "d_shared=10"},
       .loss = 3.627687380861351,
       .norm = 3.030844562529218,
       .gradients = {{"blocks.1.mlp.router.weight", 1, 1, -4.833383527889980e-02, 2.073411668814294e-01},
                     {"blocks.1.mlp.experts.gate.weight@2", 1, 1, 3.716630048396033e-04, 9.346773142945088e-02},
                     {"blocks.1.mlp.experts.up.weight@2", 1, 1, 1.113909121814547e-04, 9.053645416533258e-02},
                     {"blocks.1.mlp.experts.down.weight@2", 1, 1, 3.820915969012218e-03, 1.037331964090348e-01},
                     {"blocks.1.mlp.shared_gate.weight", 0, 1, -1.599375839939262e-02, 4.410360449834404e-02}},
       .balance = 0.05,
       .objective = 3.692676931422734,
       .counts = {3, 6, 8, 6, 9, 4, 12, 5, 1, 10},
       .per_sequence = true},
      {.name = "experts in one of two layers (qwen3_moe)",
       .vocab = 29,
       .sets = kExperts + std::vector<std::string>{"arch=qwen3_moe", "n_kv_head=2", "head_dim=6", "rope_theta=1e6",
                                                   "moe_every=2", "d_ff=20"},
       .loss = 3.869441999037714,
       .norm = 5.883896716954026,
       .gradients = {{"blocks.1.mlp.router.weight", 1, 1, 1.405367145144819e-02, 1.118911827124618e-01},
                     {"blocks.1.mlp.experts.gate.weight@2", 1, 1, -2.579220056101692e-03, 1.087562744128790e-02},
                     {"blocks.1.mlp.experts.up.weight@2", 1, 1, -1.487540702300642e-03, 9.007550885288073e-03},
                     {"blocks.1.mlp.experts.down.weight@2", 1, 1, -1.473013720590010e-04, 1.358611366368709e-02}},
       .balance = 0.002,
       .objective = 3.872461847577755,
       .counts = {13, 2, 1, 2, 14}},
      // Mistakes that change the loss.
      {.name = "mixtral without normalized weights",
       .vocab = 29,
       .sets = kExperts + std::vector<std::string>{"arch=mixtral", "n_kv_head=2", "rope_theta=1e6", "norm_eps=1e-5",
                                                   "norm_topk=false"},
       .loss = 3.813436264869549},
      {.name = "mixtral with one expert per token",
       .vocab = 29,
       .sets = kExperts + std::vector<std::string>{"arch=mixtral", "n_kv_head=2", "rope_theta=1e6", "norm_eps=1e-5",
                                                   "experts_per_token=1"},
       .loss = 3.845667478699608},
      {.name = "olmoe with normalized weights",
       .vocab = 29,
       .sets = kExperts + std::vector<std::string>{"arch=olmoe", "rope_theta=1e4", "norm_eps=1e-5", "norm_topk=true"},
       .loss = 3.503470383178156},
      {.name = "qwen3_moe without normalized weights",
       .vocab = 29,
       .sets = kExperts + std::vector<std::string>{"arch=qwen3_moe", "n_kv_head=2", "head_dim=6", "rope_theta=1e6",
                                                   "moe_every=2", "d_ff=20", "norm_topk=false"},
       .loss = 3.870381309804182},
  };
}

/// Adds the tensors of a layer's experts, matrix by matrix: "blocks.0.mlp.experts.up.weight@2" is that of expert 2.
void add_experts(std::vector<std::string>& all, const std::string& mlp, int64_t experts) {
  all.push_back(mlp + "router.weight");
  for (int64_t e = 0; e < experts; ++e)
    for (const char* part : {"gate", "up", "down"}) all.push_back(format("{}experts.{}.weight@{}", mlp, part, e));
  for (const char* part : {"shared.gate", "shared.up", "shared.down", "shared_gate"})
    all.push_back(format("{}{}.weight", mlp, part));
}

/// Returns all tensors that a model may have, in the order in which they are applied; value_at() numbers those present.
std::vector<std::string> tensor_order(const config::Model& model) {
  std::vector<std::string> all{"wte"};
  const bool post = !has_norms_before(model);
  for (int64_t layer = 0; layer < model.n_layer; ++layer) {
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
    if (is_moe_layer(model, layer)) add_experts(all, format("blocks.{}.mlp.", layer), model.n_expert);
  }
  all.insert(all.end(), {"norm_f.gain", "norm_f.bias", "head.weight"});
  return all;
}

/// Returns element (row, col) of tensor number `index`, as transformers stores it.
double value_at(const std::string& name, int64_t index, int64_t row, int64_t col) {
  const double wave = std::sin(static_cast<double>(1 + 37 * row + 11 * col + 3 * row * col + 101 * index));
  return name.ends_with(".gain") ? 1 + 0.25 * wave : (name.ends_with(".bias") ? 0.1 : 0.3) * wave;
}

/// Returns the name of this program's tensor, of which "name@2" is a matrix, and the index of the matrix.
std::pair<std::string, int64_t> tensor_of(const std::string& name) {
  const size_t at = name.find('@');
  return {name.substr(0, at), at == std::string::npos ? 0 : std::stoi(name.substr(at + 1))};
}

/// Maps transformers' (row, col) to this program's tensor: linears are [in, out] here and [out, in] in transformers.
struct Placed {
  explicit Placed(const params::Param& param, int64_t slice = 0)
      : turned(param.name.ends_with(".weight") && param.name != "head.weight"),
        rows(param.shape[turned ? -1 : 0]),
        cols(param.shape.dims() == 1 ? 1 : param.shape[turned ? -2 : 1]),
        first(slice * rows * cols) {}
  size_t at(int64_t row, int64_t col) const {
    return static_cast<size_t>(first + (turned ? col * rows + row : row * cols + col));
  }

  bool turned;
  int64_t rows, cols;  // in transformers
  int64_t first;       // the matrix begins here in its tensor
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
      const auto [tensor, slice] = tensor_of(name);
      const auto found = params.find(tensor);
      if (found == params.end()) continue;
      const Placed placed(found->second, slice);
      std::vector<double>& values = weights[tensor];
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
    if (family.norm == 0) continue;
    if (rig.routing) rig.routing->per_sequence = family.per_sequence;
    rig.balance_loss = family.balance;
    rig.router_z_loss = family.router_z;
    rig.z_loss = family.z_loss;
    EXPECT_NEAR(rig.step({batch}), family.loss, 1e-12);
    EXPECT_NEAR(rig.z_term, family.z_term, 1e-12);
    if (rig.routing) {
      EXPECT_NEAR(family.loss + family.balance * rig.balance_term + family.router_z * rig.router_z_term,
                  family.objective, 1e-12);
      EXPECT_EQ(std::vector(rig.routing->counts().begin(), rig.routing->counts().end()), family.counts);
    }
    const Named gradients = rig.gradients();
    double squares = 0;
    for (const auto& [name, values] : gradients) squares += norm_of(values) * norm_of(values);
    EXPECT_NEAR(std::sqrt(squares), family.norm, 1e-11 * family.norm);
    for (const Gradient& expected : family.gradients) {
      const auto [name, slice] = tensor_of(expected.tensor);
      const std::vector<double>& values = gradients.at(name);
      const Placed placed(params.at(name), slice);
      const auto first = values.begin() + placed.first;
      EXPECT_NEAR(norm_of({first, first + placed.rows * placed.cols}), expected.norm, 1e-11 * expected.norm)
          << expected.tensor;
      EXPECT_NEAR(values[placed.at(expected.row, expected.col)], expected.entry, 1e-12 * expected.norm)
          << expected.tensor;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recompute, Families,
                         ::testing::Values(config::Recompute::none, config::Recompute::selective,
                                           config::Recompute::full));

}  // namespace
}  // namespace trainer::model_test
