#include "plan/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "config/layouts.h"

namespace trainer::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
enum Variable : size_t { kStream, kQkv, kAttention, kOut, kUp, kHidden, kDown, kVariables };
constexpr size_t kSites[] = {kQkv, kOut, kUp, kDown};
constexpr bool is_site(size_t variable) { return std::ranges::count(kSites, variable) > 0; }
/// Variables that exchange a tensor, the one that makes it first.
constexpr std::pair<size_t, size_t> kEdges[] = {{kStream, kQkv},  {kQkv, kAttention}, {kAttention, kOut},
                                                {kOut, kStream},  {kStream, kUp},     {kUp, kHidden},
                                                {kHidden, kDown}, {kDown, kStream}};
std::string config::LayerTags::*const kTagsOf[] = {
    &config::LayerTags::stream, &config::LayerTags::qkv,    &config::LayerTags::attention, &config::LayerTags::out,
    &config::LayerTags::up,     &config::LayerTags::hidden, &config::LayerTags::down};

/// Returns all words of `length` of these letters.
std::vector<std::string> words(std::string_view letters, size_t length) {
  std::vector<std::string> all = {""};
  for (size_t i = 0; i < length; ++i) {
    std::vector<std::string> longer;
    for (const std::string& word : all)
      for (const char letter : letters) longer.push_back(word + letter);
    all = std::move(longer);
  }
  return all;
}

/// What a linear's tags make of its input, of the gradient of that before it is summed, and of its output: by axis r,
/// c, p (partial sums) or -.
std::string input_of(std::string grid, char of_c = '-') {
  for (char& tag : grid) tag = tag == 'f' ? 'r' : tag == 'k' ? 'c' : tag == 'c' ? of_c : tag;
  return grid;
}
std::string input_gradient_of(const std::string& grid) { return input_of(grid, 'p'); }
std::string output_of(std::string grid, bool sums) {
  for (char& tag : grid) tag = tag == 'f' ? 'r' : tag == 'k' ? (sums ? 'p' : '-') : tag;
  return grid;
}
/// Axes of the mesh along which two placements differ.
mesh::AxisSet moved(const std::string& from, const std::string& to) {
  mesh::AxisSet axes = 0;
  for (size_t a = 0; a < from.size(); ++a)
    if (from[a] != to[a]) axes |= mesh::AxisSet{2} << a;
  return axes;
}

}  // namespace

LayerCosts::LayerCosts(const Cluster& cluster, const config::Config& config, int64_t vocab, DType compute,
                       std::vector<config::TagAxis> axes, RouteShares& routes)
    : cluster_(cluster), config_(config), compute_(compute), axes_(std::move(axes)), routes_(routes) {
  const int64_t depth = config::depth_of_replica(config);
  std::vector<mesh::MeshAxis> all = {{"data", static_cast<int>(std::max<int64_t>(config.parallel.data, 1) * depth)}};
  for (const config::TagAxis& axis : axes_) all.push_back({axis.name, static_cast<int>(axis.size)});
  mesh_ = mesh::MeshShape(all);
  const config::Model& m = config.model;
  rows_ = static_cast<double>(config.train.micro_batch * m.seq_len) / static_cast<double>(depth);
  width_ = static_cast<double>(m.d_model);
  wide_ = static_cast<double>(m.d_ff);
  heads_ = static_cast<double>(m.n_head);
  kv_width_ = width_ / heads_ * static_cast<double>(m.n_kv_head);
  vocab_ = static_cast<double>(round_up(vocab, int64_t{128}));
  element_ = static_cast<double>(size_of(compute));
  accumulation_ = static_cast<double>(config.train.global_batch) /
                  static_cast<double>(config.train.micro_batch * std::max<int64_t>(config.parallel.data, 1));
  gated_ = m.arch == config::Arch::llama;
  splits_state_ = config.parallel.zero_stage == 1 || !config::is_given(config, "parallel.zero_stage");
}

int64_t LayerCosts::ranks(Set axes) const {
  int64_t product = 1;
  for (size_t a = 0; a < axes_.size(); ++a)
    if ((axes >> a & 1) != 0) product *= axes_[a].size;
  return product;
}

GroupShape LayerCosts::group(Set axes) {
  const auto found = groups_.find(axes);
  if (found != groups_.end()) return found->second;
  return groups_.emplace(axes, group_shape(cluster_, mesh_, axes)).first->second;
}

double LayerCosts::collective(Set axes, CommOp op, DType dtype, double elements) {
  if (elements <= 0) return 0;
  return collective_time(cluster_, group(axes), op, dtype, static_cast<int64_t>(elements)).total();
}

double LayerCosts::move(const std::string& from, const std::string& to, double elements) {
  if (from == to) return 0;
  const std::string key = format("{}{}{}", from, to, elements);
  const auto found = moves_.find(key);
  if (found != moves_.end()) return found->second;
  double seconds = 0;
  for (const RouteShares::Leg& leg : routes_.of(axes_, from, to))
    seconds += collective(leg.axes, leg.op, compute_, leg.payload * elements);
  moves_.emplace(key, seconds);
  return seconds;
}

double LayerCosts::added(Set axes, double communication, double compute) {
  return added_beside(group(axes).spans_nodes() ? cluster_.inter : cluster_.intra, communication, compute);
}

LayerCosts::Matrix LayerCosts::matrix_of(size_t site) const {
  switch (site) {
    case kQkv:
      return {width_, width_ + 2 * kv_width_};
    case kOut:
      return {width_, width_};
    case kUp:
      return {width_, gated_ ? 2 * wide_ : wide_};
    default:
      return {wide_, width_};
  }
}

const LayerCosts::Products& LayerCosts::products(size_t site, const std::string& grid) {
  const std::string key = std::to_string(site) + grid;
  const auto found = products_.find(key);
  if (found != products_.end()) return found->second;
  const Matrix matrix = matrix_of(site);
  const auto cut = [&](double extent, std::string_view letters) {
    return std::max<int64_t>(1, static_cast<int64_t>(extent / static_cast<double>(ranks(with(grid, letters)))));
  };
  const int64_t m = cut(rows_, "rf"), k = cut(matrix.in, "k"), n = cut(matrix.out, "c");
  const double bytes = element_ * static_cast<double>(m * k + k * n + m * n);
  const auto seconds = [&](const ProductShape& shape) { return cluster_.product_seconds(compute_, shape, bytes); };
  const Products times{seconds({.m = m, .k = k, .n = n}), seconds({.m = m, .k = n, .n = k, .trans_b = true}),
                       seconds({.m = k, .k = m, .n = n, .trans_a = true})};
  return products_.emplace(key, times).first->second;
}

double LayerCosts::linear(size_t site, const std::string& grid) {
  const Matrix matrix = matrix_of(site);
  const Products& time = products(site, grid);
  double seconds = time.forward + time.dx + time.dw;
  if (config_.train.recompute == config::Recompute::full) seconds += time.forward;
  const DType sums = accumulator_of(compute_);
  const Set flat = with(grid, "f"), rows = with(grid, "r");
  const double block = matrix.in * matrix.out / static_cast<double>(ranks(with(grid, "kc")));
  if (ranks(flat) > 1) {
    const double gather = collective(flat << 1, CommOp::all_gather, compute_, block);
    const double scatter = collective(flat << 1, CommOp::reduce_scatter, sums, block);
    // Each is under a product of the linear before or after, which is about as long as this one's.
    const bool kept = config_.parallel.cache_layers >= config_.model.n_layer;  // gathered once a step
    seconds += added(flat << 1, gather, time.forward) / (kept ? accumulation_ : 1) +
               (kept ? 0 : added(flat << 1, gather, time.dx)) + added(flat << 1, scatter, time.dx + time.dw);
  }
  const double piece = block / static_cast<double>(ranks(flat));
  double once = 0;
  if (ranks(rows) > 1) once += collective(rows << 1, CommOp::all_reduce, sums, piece);
  if (mesh_.size(0) > 1) once += collective(Set{1}, CommOp::all_reduce, sums, piece);
  once += traffic(OpKind::optimizer, 28 * piece);
  return seconds + once / accumulation_;
}

double LayerCosts::read(size_t site, const std::string& spread, const std::string& grid) {
  const double elements = rows_ * matrix_of(site).in;
  const Products& time = products(site, grid);
  const double again = config_.train.recompute == config::Recompute::full ? 1 : 0;
  const double arriving = move(spread, input_of(grid), elements),
               leaving = move(input_gradient_of(grid), spread, elements);
  const Set in = moved(spread, input_of(grid)), out = moved(input_gradient_of(grid), spread);
  return arriving * (1 + again) + added(in, arriving, time.dx) + added(out, leaving, time.dw);
}

double LayerCosts::write(size_t site, const std::string& grid, const std::string& spread) {
  const double elements = rows_ * matrix_of(site).out;
  // Recomputation stops before the last sum of a block.
  const double again = config_.train.recompute == config::Recompute::full && site != kDown ? 1 : 0;
  return move(output_of(grid, true), spread, elements) * (1 + again) + move(spread, output_of(grid, false), elements);
}

double LayerCosts::stream(const std::string& spread) {
  const double rows = rows_ / static_cast<double>(ranks(with(spread, "r")));
  const Set cols = with(spread, "c");
  const double part = rows * width_ / static_cast<double>(ranks(cols)) * element_;
  double seconds = 2 * (traffic(OpKind::norm, 2 * part) + traffic(OpKind::norm, 5 * part)) +
                   2 * traffic(OpKind::elementwise, 3 * part);
  if (ranks(cols) > 1) {
    const DType sums = accumulator_of(compute_);
    const double planes = gated_ ? 1 : 2;
    seconds += 2 * (collective(cols << 1, CommOp::all_gather, sums, planes * rows * static_cast<double>(ranks(cols))) +
                    collective(cols << 1, CommOp::all_reduce, sums, planes * rows));
  }
  return seconds;
}

double LayerCosts::attention(const std::string& spread) {
  const double shares = static_cast<double>(ranks(with(spread, "rc")));
  const double s = static_cast<double>(config_.model.seq_len);
  const double forward = 2 * rows_ * s * width_ / shares;  // causal: half of 4 s² h
  const double times = config_.train.recompute == config::Recompute::full ? 2 : 1;
  const auto seconds = [&](double flops, bool backward) {
    return cluster_.seconds_of(compute_, {.kind = OpKind::attention,
                                          .cost = {flops, 0},
                                          .product = {},
                                          .attention = {.length = config_.model.seq_len,
                                                        .head_dim = config_.model.d_model / config_.model.n_head,
                                                        .backward = backward}});
  };
  return seconds(times * forward, false) + seconds(2.5 * forward, true);
}

double LayerCosts::hidden(const std::string& spread) {
  return traffic(OpKind::activation, 4 * rows_ * wide_ / static_cast<double>(ranks(with(spread, "rc"))) * element_);
}

double LayerCosts::vocabulary(const std::string& stream, const std::string& table) {
  const Set v = with(table, "v"), h = with(table, "h"), f = with(table, "f");
  std::string near, partial;  // spread of the activations at the table; of partial sums over the vocabulary
  for (size_t a = 0; a < table.size(); ++a) {
    const bool cut = table[a] == 'v' || table[a] == 'h';
    const char spread = table[a] == 'h' ? 'c' : !cut && (stream[a] == 'r' || table[a] == 'f') ? 'r' : '-';
    near += spread;
    partial += table[a] == 'v' ? 'p' : spread;
  }
  const int64_t m = std::max<int64_t>(1, static_cast<int64_t>(rows_ / static_cast<double>(ranks(with(near, "r"))))),
                k = static_cast<int64_t>(width_ / static_cast<double>(ranks(h))),
                n = static_cast<int64_t>(vocab_ / static_cast<double>(ranks(v)));
  const double bytes = element_ * static_cast<double>(m * k + k * n + m * n), elements = rows_ * width_;
  const auto product = [&](const ProductShape& shape) { return cluster_.product_seconds(compute_, shape, bytes); };
  const DType sums = accumulator_of(compute_);
  double seconds = product({.m = m, .k = k, .n = n, .trans_b = true}) + product({.m = m, .k = n, .n = k}) +
                   product({.m = n, .k = m, .n = k, .trans_a = true});
  seconds += traffic(OpKind::loss, 3.0 * static_cast<double>(m * n) * static_cast<double>(size_of(sums)));
  seconds += 2 * (move(stream, near, elements) + move(partial, stream, elements));  // head and embedding
  if (ranks(h) > 1) seconds += collective(h << 1, CommOp::all_reduce, sums, static_cast<double>(m * n));
  if (ranks(v) > 1) seconds += collective(v << 1, CommOp::all_reduce, DType::f64, static_cast<double>(3 * m));
  const double block = static_cast<double>(k * n), tables = config_.model.tie_embeddings.value_or(true) ? 1 : 2;
  if (ranks(f) > 1)
    seconds += 2 * collective(f << 1, CommOp::all_gather, compute_, block) +
               tables * collective(f << 1, CommOp::reduce_scatter, sums, block);
  const double piece = block / static_cast<double>(ranks(f));
  double once = 0;
  const Set rows = with(near, "r") & ~f;
  if (ranks(rows) > 1) once += collective(rows << 1, CommOp::all_reduce, sums, piece);
  if (mesh_.size(0) > 1) once += collective(Set{1}, CommOp::all_reduce, sums, piece);
  return seconds + tables * (once + traffic(OpKind::optimizer, 28 * piece)) / accumulation_;
}

double LayerCosts::matrix_bytes(const std::string& grid, double in, double out) const {
  const double elements = in * out / static_cast<double>(ranks(with(grid, "kcf")));
  const double state = splits_state_ ? 12.0 / mesh_.size(0) : 12.0;
  return elements * (compute_ == DType::bf16 ? 2 + 4 + state : 4 + state);
}

double LayerCosts::least_bytes(const TagLayout& layout) const {
  const config::LayerTags& t = layout.layer;
  double state = 0;
  for (const size_t site : kSites) state += matrix_bytes(t.*kTagsOf[site], matrix_of(site).in, matrix_of(site).out);
  std::string table = layout.table;  // as a linear that cuts one of its extents
  for (char& tag : table) tag = tag == 'v' ? 'c' : tag == 'h' ? 'k' : tag;
  const auto share = [&](const std::string& spread) { return static_cast<double>(ranks(with(spread, "rc"))); };
  const auto layers = static_cast<double>(config_.model.n_layer);
  const bool recomputes =
      config_.train.recompute == config::Recompute::full || !config::is_given(config_, "train.recompute");
  const double input = rows_ * width_ / share(t.stream), widest = rows_ * wide_ / share(t.hidden),
               qkv = rows_ * (width_ + 2 * kv_width_) / share(t.attention);
  const double kept = recomputes ? input : 2 * input + qkv + (gated_ ? 2 : 1) * widest;
  return layers * state + matrix_bytes(table, width_, vocab_) + (layers * kept + qkv + 2 * widest) * element_;
}

double LayerCosts::node(size_t variable, const std::string& tags) {
  return variable == kStream      ? stream(tags)
         : variable == kAttention ? attention(tags)
         : variable == kHidden    ? hidden(tags)
                                  : linear(variable, tags);
}

double LayerCosts::edge(size_t a, size_t b, const std::string& tags_of_a, const std::string& tags_of_b) {
  return is_site(b) ? read(b, tags_of_a, tags_of_b) : write(a, tags_of_a, tags_of_b);
}

double LayerCosts::step_seconds(const TagLayout& layout) {
  const auto tags = [&](size_t variable) -> const std::string& { return layout.layer.*kTagsOf[variable]; };
  double layer = 0;
  for (size_t v = 0; v < kVariables; ++v) layer += node(v, tags(v));
  for (const auto& [a, b] : kEdges) layer += edge(a, b, tags(a), tags(b));
  return accumulation_ * (static_cast<double>(config_.model.n_layer) * layer + vocabulary(layout.last, layout.table));
}

bool LayerCosts::divides(const std::string& spread, double rows, double cols) const {
  const auto r = static_cast<double>(ranks(with(spread, "r"))), c = static_cast<double>(ranks(with(spread, "c")));
  return std::fmod(rows, r) == 0 && std::fmod(cols, c) == 0;
}

SearchProblem LayerCosts::problem(std::vector<std::vector<std::string>>& choices) {
  const std::vector<std::string> spreads = words("rc-", axes_.size()), grids = words("fckr", axes_.size());
  const double sequences = rows_ / static_cast<double>(config_.model.seq_len);
  const double kv = kv_width_ / (width_ / heads_);
  choices.assign(kVariables, {});
  for (const std::string& spread : spreads) {
    if (divides(spread, rows_, width_)) choices[kStream].push_back(spread);
    if (divides(spread, sequences, heads_) && divides(spread, sequences, kv)) choices[kAttention].push_back(spread);
    if (divides(spread, rows_, wide_)) choices[kHidden].push_back(spread);
  }
  for (const size_t site : kSites) {
    const Matrix matrix = matrix_of(site);
    for (const std::string& grid : grids) {
      const auto over = [&](double extent, std::string_view letters) {
        return std::fmod(extent, static_cast<double>(ranks(with(grid, letters)))) == 0;
      };
      const bool parts = site != kQkv || over(kv_width_, "c");
      if (over(rows_, "rf") && over(matrix.in, "k") && over(site == kUp ? wide_ : matrix.out, "c") && parts)
        choices[site].push_back(grid);
    }
  }
  SearchProblem problem;
  problem.nodes.resize(kVariables);
  problem.memory.resize(kVariables);
  for (size_t v = 0; v < kVariables; ++v)
    for (const std::string& tags : choices[v]) {
      problem.nodes[v].push_back(node(v, tags));
      problem.memory[v].push_back(is_site(v) ? matrix_bytes(tags, matrix_of(v).in, matrix_of(v).out) : 0);
    }
  for (const auto& [a, b] : kEdges) {
    SearchProblem::Edge& costs = problem.edges.emplace_back(static_cast<int>(a), static_cast<int>(b));
    costs.costs.reserve(choices[a].size() * choices[b].size());
    for (const std::string& first : choices[a])
      for (const std::string& second : choices[b]) costs.costs.push_back(edge(a, b, first, second));
  }
  return problem;
}

std::optional<TagLayout> LayerCosts::best(double cap) {
  std::vector<std::vector<std::string>> choices;
  SearchProblem problem = this->problem(choices);
  for (const std::vector<std::string>& each : choices)
    if (each.empty()) return std::nullopt;
  problem.cap = cap / static_cast<double>(config_.model.n_layer);
  const Assignment found = search(problem, kStream);
  if (!found.found() || found.memory > problem.cap) return std::nullopt;
  TagLayout layout{axes_, {}, {}, {}};
  for (size_t v = 0; v < kVariables; ++v) layout.layer.*kTagsOf[v] = choices[v][static_cast<size_t>(found.choices[v])];
  layout.last = layout.layer.stream;
  double least = kInfinity;
  for (const std::string& table : words("vfh-", axes_.size())) {
    config::TagTable tags{std::vector<config::LayerTags>(static_cast<size_t>(config_.model.n_layer), layout.layer),
                          layout.last, table};
    const double seconds = vocabulary(layout.last, table);
    if (seconds >= least) continue;
    const std::vector<config::LayoutRule> rules = config::tag_rules(axes_, tags, config_);
    if (!std::ranges::all_of(rules, [](const config::LayoutRule& rule) { return rule.holds; })) continue;
    least = seconds;
    layout.table = table;
  }
  if (layout.table.empty()) return std::nullopt;
  return layout;
}

}  // namespace trainer::plan
