// What sums over ranks in bf16 or in fp32 do to gradients in bf16, for every site.
#include "parallel/tagged.h"
#include "rigs/layouts.h"

namespace trainer::tests {
namespace {

using parallel::LayerTags;
using parallel::TagTable;

/// Whose sums are over how many ranks: each has enough elements that it goes round a ring (comm::kDirectElements).
struct Sums {
  const char* name;
  std::vector<mesh::MeshAxis> axes;
  LayerTags layer;
  const char* vocab;
};
Sums of_rows(int ranks) {
  return {"y of out, down; dx of qkv, up", {{"t", ranks}}, {"-", "c", "c", "c", "k", "c", "k"}, "v"};
}
Sums of_columns(int ranks) {
  return {"y of qkv, up; dx of out, down", {{"t", ranks}}, {"c", "-", "-", "k", "c", "k", "c"}, "h"};
}
Sums of_both(int x, int y) {
  return {"all of them", {{"x", x}, {"y", y}}, {"-c", "c-", "c-", "ck", "kc", "ck", "kc"}, "vh"};
}

constexpr int kLayers = 2;

config::Config model(int64_t seed) {
  config::Config c = tiny_config();
  c.run.seed = seed;
  c.model.n_layer = kLayers;
  c.model.n_head = c.model.n_kv_head = 24;
  c.model.d_model = 96;
  c.model.d_ff = 384;
  c.model.seq_len = 64;
  c.model.vocab_multiple = 48;
  c.model.init_std = 0.02;
  c.train.micro_batch = c.train.global_batch = 2;
  c.parallel.tensor = c.parallel.data = 1;
  return c;
}

Tensors gradients(config::Config c, const Sums& sums, DType type) {
  const mesh::MeshShape shape = [&] {
    std::vector<mesh::MeshAxis> axes = {{"data", 1}};
    axes.insert(axes.end(), sums.axes.begin(), sums.axes.end());
    return mesh::MeshShape(axes);
  }();
  c.parallel.tensor = shape.world_size();
  HowToRun how;
  how.factory = {
      [=](const config::Config&, int) { return shape; },
      [=](const config::Config& config, mesh::Mesh& mesh, params::ParamStore& store) {
        const TagTable table{std::vector<LayerTags>(kLayers, sums.layer), sums.layer.stream, sums.vocab, type};
        return std::make_unique<parallel::Tagged>(mesh, store, table, config);
      }};
  return train(c, DType::bf16, 1, how).gradients;
}

/// Of gradients by site: squares of their errors relative to their norms.
struct Error {
  double squares = 0;
  int tensors = 0;
  double mean() const { return std::sqrt(squares / tensors); }
};
using Errors = std::map<std::string, Error>;
std::string site_of(const std::string& name) {
  for (const char* site : {"attn.q", "attn.k", "attn.v", "attn.o", "mlp.up", "mlp.down", "norm1", "norm2"})
    if (name.find(std::string(site) + (site[0] == 'n' ? "" : ".weight")) != std::string::npos) return site;
  if (!name.starts_with("blocks")) return name;
  return is_key_bias(name) ? "" : "biases";
}
void add_errors(Errors& errors, const Tensors& found, const Tensors& exact) {
  for (const auto& [name, values] : exact)
    if (const std::string site = site_of(name); !site.empty()) {
      errors[site].squares += std::pow(relative_error(found.at(name), values), 2);
      ++errors[site].tensors;
    }
}

struct Reference {
  config::Config c;
  Tensors exact;
  Tensors one;
};
std::vector<Reference> references(int64_t seeds) {
  std::vector<Reference> all;
  for (int64_t seed = 1; seed <= seeds; ++seed) {
    const config::Config c = model(seed);
    all.push_back({c, train(c, DType::f64, 1).gradients, train(c, DType::bf16, 1).gradients});
  }
  return all;
}
/// By site: error with these sums over that of one rank.
std::map<std::string, double> ratios(const std::vector<Reference>& references, const Sums& sums, DType type) {
  Errors one, many;
  for (const Reference& reference : references) {
    add_errors(one, reference.one, reference.exact);
    add_errors(many, gradients(reference.c, sums, type), reference.exact);
  }
  std::map<std::string, double> ratios;
  for (const auto& [site, error] : many) ratios[site] = error.mean() / one.at(site).mean();
  return ratios;
}

TEST(SumTypes, KeepBf16GradientsWithinOneAndAHalfTimesTheErrorOfOneRank) {
  const auto all = references(2);
  for (const Sums& sums : {of_rows(8), of_columns(8), of_both(4, 2)})
    for (const auto& [site, ratio] : ratios(all, sums, DType::bf16)) EXPECT_LE(ratio, 1.5) << sums.name << ": " << site;
  for (const auto& [site, ratio] : ratios(all, of_columns(8), DType::f32)) EXPECT_LE(ratio, 1.1) << "fp32: " << site;
}

}  // namespace
}  // namespace trainer::tests
