#include "verify/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/param_slices.h"
#include "tensor/host_copy.h"

namespace trainer::verify {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double norm_of(const std::vector<double>& x) {
  double squares = 0;
  for (const double each : x) squares += each * each;
  return std::sqrt(squares);
}

double distance_of(const std::vector<double>& a, const std::vector<double>& b) {
  TRAINER_CHECK(a.size() == b.size(), "tensors of {} and {} elements", a.size(), b.size());
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

double largest_of(const std::vector<double>& x) {
  double largest = 0;
  for (const double each : x) largest = std::max(largest, std::abs(each));
  return largest;
}

/// The errors of a tensor on one rank, and its bounds; the ranks exchange them.
struct Errors {
  double owned = 0, held = 0;  // sums of squares
  double largest = 0;
  double elements = 0, positions = 0;  // owned: their number, and the sum of position_of()
  Bound bound = {};
};
constexpr size_t kErrors = sizeof(Errors) / sizeof(double);

/// Sums of positions differ where numbers of owned elements do not. Positions are small, so that the sums are exact.
constexpr int64_t kPositions = 4093;
double position_of(int64_t at) { return static_cast<double>(at % kPositions + 1); }
double sum_of_positions(int64_t n) {
  const int64_t rest = n % kPositions;
  return static_cast<double>(n / kPositions * (kPositions * (kPositions + 1) / 2) + rest * (rest + 1) / 2);
}

void add(Errors& errors, const checkpoint::TensorSlice& slice, const std::vector<double>& whole, bool owned) {
  each_element(slice, [&](int64_t at, double value) {
    double error = std::abs(value - whole[static_cast<size_t>(at)]);
    if (!(error < kInfinity)) error = kInfinity;  // NaN, too
    (owned ? errors.owned : errors.held) += error * error;
    errors.elements += owned ? 1 : 0;
    errors.positions += owned ? position_of(at) : 0;
    errors.largest = std::max(errors.largest, error);
  });
}

/// Returns error / bound; infinite if there is an error where none is allowed, or if one of them is not finite.
double ratio_of(double error, double bound) {
  if (!std::isfinite(error) || !std::isfinite(bound)) return kInfinity;
  return error == 0 ? 0 : error / bound;
}

/// Returns max(a, b); NaN if one of them is.
double larger(double a, double b) { return std::isnan(b) ? b : std::max(a, b); }

}  // namespace

double element_of(const Tensor& tensor, int64_t at) {
  return tensor.dtype == DType::f64    ? tensor.as<double>()[at]
         : tensor.dtype == DType::bf16 ? static_cast<float>(tensor.as<bf16>()[at])
                                       : static_cast<double>(tensor.as<float>()[at]);
}

void set_element(const Tensor& tensor, int64_t at, double value) {
  if (tensor.dtype == DType::f64) tensor.as<double>()[at] = value;
  if (tensor.dtype == DType::f32) tensor.as<float>()[at] = static_cast<float>(value);
  if (tensor.dtype == DType::bf16) tensor.as<bf16>()[at] = bf16(static_cast<float>(value));
}

void each_element(const checkpoint::TensorSlice& slice, const std::function<void(int64_t, double)>& fn) {
  HostCopy copy;
  const Tensor local = slice.device == nullptr ? slice.local : copy.get(*slice.device, slice.local);
  for (const mesh::Run& run : slice.runs)
    for (int64_t i = 0; i < run.length; ++i) fn(run.global + i, element_of(local, run.local + i * run.stride));
}

Parts gradients_of(train::Trainer& trainer) {
  Parts parts;
  const params::ParamStore& store = trainer.store();
  for (const params::Param& param : store.params()) {
    const params::Group& group = store.groups()[static_cast<size_t>(param.group)];
    const auto slice = [&](comm::Chunk range) -> checkpoint::TensorSlice {
      return {param.name, param.shape, group.grad.range(range.begin, range.count),
              mesh::clip_runs(param.runs, range.begin, range.count), &trainer.device()};
    };
    if (param.primary) parts.owned.push_back(slice(group.owned));
    parts.held.push_back(slice(group.held));  // with ZeRO-1, other replicas have the sums of other elements
  }
  return parts;
}

void set_gradients(train::Trainer& trainer, const std::function<double(const std::string&, int64_t)>& value) {
  const params::ParamStore& store = trainer.store();
  for (const params::Group& group : store.groups()) {
    HostCopy copy(trainer.device(), group.grad);
    for (const int index : group.params) {
      const params::Param& param = store.params()[static_cast<size_t>(index)];
      for (const mesh::Run& run : param.runs)
        for (int64_t i = 0; i < run.length; ++i)
          set_element(copy.tensor(), run.local + i * run.stride, value(param.name, run.global + i));
    }
    copy.put();
  }
}

std::string wrong_norm_of_ones(train::Trainer& trainer) {
  const params::ParamStore& store = trainer.store();
  params::GradSink sink(trainer.store());
  sink.prepare(trainer.device());
  trainer.mesh().world().connect();
  sink.begin_step();
  for (const params::Group& group : store.groups()) trainer.device().clear(group.grad.data, group.grad.bytes());
  set_gradients(trainer, [](const std::string&, int64_t) { return 1; });
  Exec ex = trainer.exec();
  const double norm = sink.finish(ex).norm, count = static_cast<double>(trainer.parameter_count());
  if (norm == std::sqrt(count)) return {};
  return format("with all gradients 1 the squared norm is {:.17g}, but there are {} parameters", norm * norm, count);
}

Parts state_of(train::Trainer& trainer) {
  return {checkpoint::slices_to_save(trainer.store(), true), checkpoint::slices_held(trainer.store(), true)};
}

Tensors gather(const std::vector<checkpoint::TensorSlice>& slices) {
  Tensors all;
  for (const checkpoint::TensorSlice& slice : slices) {
    std::vector<double>& whole = all[slice.name];
    whole.resize(static_cast<size_t>(slice.shape.count()), std::numeric_limits<double>::quiet_NaN());
    each_element(slice, [&](int64_t at, double value) { whole[static_cast<size_t>(at)] = value; });
  }
  return all;
}

Parts parts_of(Tensors& tensors) {
  Parts parts;
  for (auto& [name, x] : tensors) {
    const auto n = std::ssize(x);
    parts.owned.push_back(
        {name, {n}, Tensor{reinterpret_cast<std::byte*>(x.data()), {n}, DType::f64}, {{0, 0, n}}, nullptr});
  }
  parts.held = parts.owned;
  return parts;
}

Bounds rounding_bounds(const Tensors& f64, const Tensors& f32, double u) {
  Bounds bounds;
  for (const auto& [name, x] : f64) {
    // 16 · C · u · ‖x64‖, also where ‖x64‖ is itself an effect of rounding
    const double norm = norm_of(x), bound = 16 * u * larger(norm, distance_of(f32.at(name), x) / 0x1p-24);
    const double root = std::sqrt(static_cast<double>(x.size()));
    bounds[name] = norm == 0 ? Bound() : Bound{bound, bound / norm * largest_of(x) * root};
  }
  return bounds;
}

double exact_bound(double f64, double f32) {
  return 16 * kRoundoffOfF64 * larger(std::abs(f64), std::abs(f32 - f64) / 0x1p-24);
}

Bounds typed_bounds(const Tensors& f64, const Tensors& one, double u) {
  Bounds bounds;
  for (const auto& [name, x] : f64) {
    const double bound = 2 * distance_of(one.at(name), x) + 4 * u * norm_of(x);
    bounds[name] = {bound, bound};
  }
  return bounds;
}

std::vector<std::vector<double>> gather_values(comm::World& world, std::span<const double> values) {
  std::vector<std::vector<double>> all;
  for (const std::string& bytes :
       world.control().gather(std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes()))) {
    std::vector<double>& rank = all.emplace_back(bytes.size() / sizeof(double));
    std::memcpy(rank.data(), bytes.data(), bytes.size());
  }
  return all;
}

Comparison compare(comm::World& world, const Parts& parts, const Tensors& whole, const Bounds& bounds) {
  std::map<std::string, Errors> own;
  for (const auto& [name, x] : whole) own[name].bound = bounds.at(name);
  for (const bool owned : {true, false})
    for (const checkpoint::TensorSlice& slice : owned ? parts.owned : parts.held) {
      TRAINER_CHECK(whole.contains(slice.name), "{}: not a tensor of one rank's model", slice.name);
      add(own[slice.name], slice, whole.at(slice.name), owned);
    }
  std::vector<double> values;
  for (const auto& [name, e] : own)
    values.insert(values.end(), {e.owned, e.held, e.largest, e.elements, e.positions, e.bound.norm, e.bound.element});
  const std::vector<std::vector<double>> all = gather_values(world, values);
  Comparison result{.tensors = std::ssize(whole)};
  size_t t = 0;
  for (const auto& [name, x] : whole) {
    double squares = 0, elements = 0, positions = 0, copies = 0;
    std::vector<Errors> errors;
    Bound bound{kInfinity, kInfinity};  // the smallest
    for (const std::vector<double>& rank : all) {
      const double* of = rank.data() + t * kErrors;
      const Errors& e = errors.emplace_back(Errors{of[0], of[1], of[2], of[3], of[4], {of[5], of[6]}});
      squares += e.owned;
      elements += e.elements;
      positions += e.positions;
      copies = std::max(copies, e.held);
      if (e.bound.norm < bound.norm) bound.norm = e.bound.norm;
      if (e.bound.element < bound.element) bound.element = e.bound.element;
    }
    ++t;
    std::vector<double> ratios;
    for (const Errors& e : errors)
      ratios.push_back(std::isfinite(e.bound.norm) && std::isfinite(e.bound.element)
                           ? std::max(ratio_of(std::sqrt(e.held), bound.norm), ratio_of(e.largest, bound.element))
                           : kInfinity);
    if ((elements != static_cast<double>(x.size()) || positions != sum_of_positions(std::ssize(x))) &&
        result.missing.empty())
      result.missing = name;
    const double largest = *std::ranges::max_element(ratios);
    const double ratio = std::max(largest, ratio_of(std::sqrt(squares), bound.norm));
    // A tensor that only rounding makes different from 0 is reported only if it fails: relative errors mean nothing.
    const double norm = norm_of(x);
    if (ratio <= 1 && bound.norm >= norm) continue;
    if (ratio < result.ratio || (ratio == result.ratio && !result.where.empty())) continue;
    result.ratio = ratio;
    result.worst = std::sqrt(std::max(squares, copies)) / std::max(norm, std::numeric_limits<double>::min());
    result.bound = bound.norm / std::max(norm, std::numeric_limits<double>::min());
    result.where = name;
    result.ranks.clear();
    for (size_t r = 0; r < all.size() && ratio > 1; ++r)
      if (ratios[r] >= largest / 2) result.ranks.push_back(static_cast<int>(r));
    result.on_all_ranks = world.size() > 1 && result.ranks.size() == all.size();
  }
  return result;
}

}  // namespace trainer::verify
