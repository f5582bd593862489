// The search of LayerCosts for the best sharding of a layer and of the tables.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "config/layouts.h"
#include "plan/layer_costs.h"

namespace trainer::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum Variable : int { kStream, kQkv, kAttention, kOut, kUp, kHidden, kDown, kVariables };
Variable variable_of(Site site) {
  switch (site) {
    case Site::qkv:
      return kQkv;
    case Site::out:
      return kOut;
    case Site::up:
      return kUp;
    default:
      return kDown;
  }
}
bool is_of_attention(Site site) { return site == Site::qkv || site == Site::out; }

/// Returns every assignment of the axes, other than the one that counts replicas, to one of `choices` sets, the fifth
/// of which is "none"; the last axis varies fastest.
std::vector<std::array<AxisSet, 4>> ways_to_cut(const ModelSharding& mesh, size_t choices) {
  std::vector<std::array<AxisSet, 4>> all = {{}};
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    if (a == mesh.replica_axis()) continue;
    std::vector<std::array<AxisSet, 4>> longer;
    for (const std::array<AxisSet, 4>& sets : all)
      for (size_t choice = 0; choice < choices; ++choice) {
        longer.push_back(sets);
        if (choice < 4) longer.back()[choice] |= AxisSet{1} << a;
      }
    all = std::move(longer);
  }
  return all;
}

/// The cheapest linears of an attention or an MLP for each choice of the stream and of the spread inside.
struct Half {
  struct Pair {
    double seconds = kInfinity;
    int first = 0, second = 0;
  };
  size_t inside = 0;        // choices of the spread inside
  std::vector<Pair> pairs;  // [choice of stream · inside + choice of the spread inside]
};

Half half_of(const SearchProblem& problem, Variable first, Variable inside, Variable second) {
  const auto edge = [&](int a, int b) -> const std::vector<double>& {
    return std::ranges::find_if(problem.edges, [&](const auto& e) { return e.a == a && e.b == b; })->costs;
  };
  // Returns the cheapest choice of a linear between two spreads, and its seconds.
  const auto linear = [&](int from, int choice, Variable variable, int to, int next) {
    const std::vector<double>&arriving = edge(from, variable), &leaving = edge(variable, to);
    const int n = problem.choices(variable), after = problem.choices(to);
    std::pair<double, int> least{kInfinity, 0};
    for (int l = 0; l < n; ++l)
      least = std::min(
          least, {arriving[static_cast<size_t>(choice * n + l)] + problem.nodes[variable][static_cast<size_t>(l)] +
                      leaving[static_cast<size_t>(l * after + next)],
                  l});
    return least;
  };
  Half half{static_cast<size_t>(problem.choices(inside)), {}};
  for (int s = 0; s < problem.choices(kStream); ++s)
    for (int i = 0; i < problem.choices(inside); ++i) {
      const auto [before, from] = linear(kStream, s, first, inside, i);
      const auto [after, to] = linear(inside, i, second, kStream, s);
      half.pairs.push_back({before + problem.nodes[inside][static_cast<size_t>(i)] + after, from, to});
    }
  return half;
}

/// Returns the choices of the cheapest assignment for each choice of the three spreads, ignoring memory; at most
/// `most`, cheapest first. The linears do not depend on each other once the spreads are fixed.
std::vector<std::vector<int>> by_spreads(const SearchProblem& problem, size_t most) {
  const Half attention = half_of(problem, kQkv, kAttention, kOut), mlp = half_of(problem, kUp, kHidden, kDown);
  struct Spreads {
    double seconds;
    size_t stream, attention, hidden;
  };
  std::vector<Spreads> all;
  for (size_t s = 0; s < problem.nodes[kStream].size(); ++s)
    for (size_t a = 0; a < attention.inside; ++a)
      for (size_t h = 0; h < mlp.inside; ++h)
        all.push_back({problem.nodes[kStream][s] + attention.pairs[s * attention.inside + a].seconds +
                           mlp.pairs[s * mlp.inside + h].seconds,
                       s, a, h});
  std::ranges::stable_sort(all, {}, &Spreads::seconds);
  if (all.size() > most) all.resize(most);
  std::vector<std::vector<int>> found;
  for (const Spreads& spreads : all) {
    const Half::Pair &of_attention = attention.pairs[spreads.stream * attention.inside + spreads.attention],
                     &of_mlp = mlp.pairs[spreads.stream * mlp.inside + spreads.hidden];
    found.push_back({static_cast<int>(spreads.stream), of_attention.first, static_cast<int>(spreads.attention),
                     of_attention.second, of_mlp.first, static_cast<int>(spreads.hidden), of_mlp.second});
  }
  return found;
}

}  // namespace

bool LayerCosts::divides(const Spread& spread, double rows, double cols) const {
  return std::fmod(rows, ranks(spread.rows)) == 0 && std::fmod(cols, ranks(spread.cols)) == 0;
}

void LayerCosts::add_choices(LayerSearch& layer) const {
  const double sequences = rows_ / static_cast<double>(config_.model.seq_len);
  for (const std::array<AxisSet, 4>& sets : ways_to_cut(axes_, 3)) {
    const Spread spread{sets[0], sets[1]};
    const bool keeps_experts = (layer.experts & ~spread.rows) == 0;
    if (keeps_experts && divides(spread, rows_, width_)) layer.stream.push_back(spread);
    if (divides(spread, sequences, heads_) && divides(spread, sequences, kv_heads_)) layer.attention.push_back(spread);
    if (keeps_experts && std::ranges::all_of(matrices_.at(Site::down),
                                             [&](const Matrix& matrix) { return divides(spread, rows_, matrix.in); }))
      layer.hidden.push_back(spread);
  }
  for (const std::array<AxisSet, 4>& sets : ways_to_cut(axes_, 5)) {
    const LinearSharding l{.rows = sets[0] | sets[3], .cols = sets[1], .contraction = sets[2], .flat = sets[0]};
    const auto over = [&](double extent, AxisSet set) { return std::fmod(extent, ranks(set)) == 0; };
    for (const auto& [site, matrices] : matrices_) {
      // Experts need whole rows of x, and give whole rows of y, on the ranks of the axis that divides them.
      const AxisSet split = site == Site::up ? l.contraction : l.cols;
      if (routes(site) && (split != 0 || (layer.experts & ~l.rows) != 0)) continue;
      if (over(rows_, l.rows) && std::ranges::all_of(matrices, [&](const Matrix& matrix) {
            return over(matrix.in, l.contraction) &&
                   std::ranges::all_of(matrix.parts, [&](double part) { return over(part, l.cols); });
          }))
        layer.linears[site].push_back(l);
    }
  }
}

void LayerCosts::add_costs(LayerSearch& layer) {
  SearchProblem& problem = layer.problem;
  problem.nodes.resize(kVariables);
  // The best placement of the tables depends on the stream only, so the stream's node includes its cost.
  for (const Spread& spread : layer.stream) {
    const auto [at, is_new] = at_stream_.try_emplace({spread.rows, spread.cols}, 0);
    if (is_new) {
      ModelSharding only = axes_;
      only.layers = {{.stream = spread, .count = config_.model.n_layer}};
      only.head = spread;
      at->second = best_table(std::move(only), kInfinity).second / static_cast<double>(config_.model.n_layer);
    }
    problem.nodes[kStream].push_back(stream(spread) + at->second);
  }
  for (const Spread& spread : layer.attention) problem.nodes[kAttention].push_back(attention(spread, {}));
  for (const Spread& spread : layer.hidden) problem.nodes[kHidden].push_back(hidden(spread, layer.experts));
  for (const auto& [site, linears] : layer.linears) {
    const Variable variable = variable_of(site), inner = is_of_attention(site) ? kAttention : kHidden;
    const std::vector<Spread>& inside = is_of_attention(site) ? layer.attention : layer.hidden;
    for (const LinearSharding& l : linears) problem.nodes[variable].push_back(linear(site, l, layer.experts));
    const bool reads = reads_residual(site);
    SearchProblem::Edge arriving{reads ? kStream : inner, variable, {}}, leaving{variable, reads ? inner : kStream, {}};
    for (const Spread& spread : reads ? layer.stream : inside)
      for (const LinearSharding& l : linears) arriving.costs.push_back(read(site, spread, l));
    for (const LinearSharding& l : linears)
      for (const Spread& spread : reads ? inside : layer.stream) leaving.costs.push_back(write(site, l, spread));
    problem.edges.push_back(std::move(arriving));
    problem.edges.push_back(std::move(leaving));
  }
}

void LayerCosts::set_memory(LayerSearch& layer, Gradients stored) const {
  std::vector<std::vector<double>>& memory = layer.problem.memory;
  memory.assign(kVariables, {});
  const double kept = in_flight_ * (1 - repeated()), streams = in_flight_ * repeated() + kept * kept_streams();
  for (const Spread& spread : layer.stream) memory[kStream].push_back(streams * stream_bytes(spread));
  for (const Spread& spread : layer.attention) memory[kAttention].push_back(kept * attention_bytes(spread, rebuilds()));
  for (const Spread& spread : layer.hidden)
    memory[kHidden].push_back(kept * hidden_bytes(spread, rebuilds(), layer.experts));
  for (const auto& [site, linears] : layer.linears)
    for (const LinearSharding& l : linears)
      memory[variable_of(site)].push_back(site_bytes(site, l, layer.experts, stored));
}

LayerCosts::LayerSearch& LayerCosts::layer_search(Gradients stored, AxisSet experts) {
  const auto [found, is_new] = searches_.try_emplace({config_.train.recompute, experts});
  LayerSearch& layer = found->second;
  if (is_new) {
    layer.experts = experts;
    add_choices(layer);
    add_costs(layer);
  }
  set_memory(layer, stored);
  return layer;
}

std::pair<sharding::VocabSpread, double> LayerCosts::best_table(ModelSharding layout, double cap) {
  std::pair<sharding::VocabSpread, double> least{{}, kInfinity};
  const sharding::Extents extents = config::extents_of(config_);
  for (const std::array<AxisSet, 4>& sets : ways_to_cut(axes_, 4)) {
    if ((sets[1] & ~layout.head.rows) != 0) continue;  // illegal
    layout.table = {.vocab = sets[0], .width = sets[2], .flat = sets[1], .keep = config_.parallel.cache_layers > 0};
    double seconds = vocabulary(layout.head, layout.table);
    if (cap < kInfinity) seconds *= std::max(1.0, 1e3 * (bytes(layout) / cap - 1));
    if (seconds < least.second && !first_violation(layout, extents)) least = {layout.table, seconds};
  }
  return least;
}

std::vector<ModelSharding> LayerCosts::best(double cap, size_t most) {
  std::vector<ModelSharding> layouts = best(cap, most, gradients());
  if (gradients() == Gradients::own_memory || cap == kInfinity) return layouts;
  // Without gradients, the search may miss that they need more memory than the activations that they replace.
  std::erase_if(layouts, [&](const ModelSharding& layout) { return bytes(layout) > cap; });
  return layouts.empty() ? best(cap, most, Gradients::own_memory) : layouts;
}

std::vector<ModelSharding> LayerCosts::best(double cap, size_t most, Gradients stored) {
  std::vector<std::pair<double, ModelSharding>> all = best(cap, most, stored, 0);
  for (size_t a = 0; a < axes_.axes.size() && routed_ > 0; ++a) {
    const AxisSet axis = AxisSet{1} << a;
    if (a == axes_.replica_axis() || ranks(axis) == 1 || config_.model.n_expert % axes_.ranks(axis) != 0) continue;
    std::ranges::move(best(cap, most, stored, axis), std::back_inserter(all));
  }
  if (routed_ > 0) std::ranges::stable_sort(all, {}, &std::pair<double, ModelSharding>::first);
  std::vector<ModelSharding> layouts;
  for (auto& [seconds, layout] : all)
    if (layouts.size() < most) layouts.push_back(std::move(layout));
  return layouts;
}

std::vector<std::pair<double, ModelSharding>> LayerCosts::best(double cap, size_t most, Gradients stored,
                                                               AxisSet experts) {
  LayerSearch& choices = layer_search(stored, experts);
  SearchProblem& problem = choices.problem;
  for (const std::vector<double>& costs : problem.nodes)
    if (costs.empty()) return {};
  // The memory of the tables is not known yet, so the smallest possible one is assumed.
  problem.cap = (cap - tables() * matrix_bytes(axes_.all() & ~axes_.data(), width_, vocab_, tables_, stored)) /
                (share_ * static_cast<double>(config_.model.n_layer));
  std::vector<Assignment> all = {search(problem, kStream, &choices.free)};
  if (!all.front().found() || all.front().memory > problem.cap) return {};
  if (most > 1 && choices.by_spreads.empty()) choices.by_spreads = by_spreads(problem, most);
  for (const std::vector<int>& other : choices.by_spreads) {
    if (other == all.front().choices || all.size() >= most) continue;
    Assignment one = evaluate(problem, other);
    if (one.found() && one.memory <= problem.cap) all.push_back(std::move(one));
  }
  std::vector<std::pair<double, ModelSharding>> layouts;
  for (const Assignment& one : all) {
    const auto at = [&](Variable variable) { return static_cast<size_t>(one.choices[variable]); };
    ModelSharding layout = axes_;
    layout.layers = {{choices.stream[at(kStream)],
                      choices.attention[at(kAttention)],
                      choices.hidden[at(kHidden)],
                      {},
                      config_.model.n_layer,
                      experts}};
    for (const auto& [site, linears] : choices.linears) layout.layers.front().at(site) = linears[at(variable_of(site))];
    layout.head = layout.layers.front().stream;
    double seconds = 0;
    std::tie(layout.table, seconds) = best_table(layout, cap);
    if (seconds < kInfinity) layouts.emplace_back(one.cost, std::move(layout));
  }
  return layouts;
}

}  // namespace trainer::plan
