#include "ops/update.h"

#include <bit>

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

/// The operations of a rule, each rounded once. This file is compiled without contraction (-fmad=false), so that no
/// product is fused with an addition.
struct Canonical {
  __device__ static float fused(float a, float b, float c) { return fmaf(a, b, c); }
  __device__ static float square_root(float x) { return sqrtf(x); }
  __device__ static float where_at_least(float x, float floor, float y) { return x < floor ? 0.0f : y; }
};

__device__ inline uint32_t mixed(uint32_t h) {
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  return h ^ (h >> 16);
}

/// p, states, g and the copy of an element. S: the type in which the states are stored.
template <typename Rule, typename S>
struct UpdateFormula {
  static constexpr size_t kStates = Rule::states.size();
  float k[Rule::scalars];
  float scale;
  bool rounds;    // rounds the gradient to bf16
  uint32_t salt;  // for stochastic rounding
  template <size_t... kState>
  __device__ void narrow(float* states, uint32_t old, std::index_sequence<kState...>) const {
    const auto one = [&](float& s) {
      const uint32_t bits = std::bit_cast<uint32_t>(s), hash = mixed(bits ^ mixed(old + salt));
      s = std::bit_cast<float>((bits + (hash & 0xffffu)) & 0xffff0000u);
    };
    ((Rule::states[kState].narrow == rules::Narrow::stochastic ? one(states[kState]) : void()), ...);
  }
  __device__ void operator()(float (&x)[kStates + 3]) const {
    float &p = x[0], *const states = x + 1, &g = x[kStates + 1], &compute = x[kStates + 2];
    const uint32_t old = std::bit_cast<uint32_t>(p);
    const float gradient = (rounds ? static_cast<float>(bf16(g)) : g) * scale;
    compute = p = Rule::template element<Canonical>(k, p, states, gradient);
    if constexpr (sizeof(S) < 4) narrow(states, old, std::make_index_sequence<kStates>());
  }
};

template <typename Rule, typename S, typename G, size_t... kState>
void update(Exec& ex, const Update& op, std::index_sequence<kState...>) {
  UpdateFormula<Rule, S> formula;
  for (size_t i = 0; i < Rule::scalars; ++i) formula.k[i] = static_cast<float>(op.scalars[i]);
  formula.scale = static_cast<float>(op.gradient_scale);
  formula.rounds = op.round_gradient;
  formula.salt = op.salt;
  map_elements<4>(ex, formula, InOut<float>{op.p}, InOut<S>{op.states[kState]}..., In<G>{op.g}, Out<bf16>{op.compute});
}

template <typename Rule>
void update(Exec& ex, const Update& op) {
  constexpr auto kStates = std::make_index_sequence<Rule::states.size()>();
  for_compute_type(op.g.dtype, "update g", [&]<typename G>(G) {
    if constexpr (Rule::states.size() == 0) {
      update<Rule, float, G>(ex, op, kStates);
    } else {
      for_compute_type(op.states[0].dtype, "update state", [&]<typename S>(S) { update<Rule, S, G>(ex, op, kStates); });
    }
  });
}

}  // namespace

void run(Exec& ex, const Update& op) {
  TRAINER_CHECK(op.p.dtype == DType::f32, "weights are {}, expected fp32 on a CUDA device", name_of(op.p.dtype));
  if (ex.device.dry()) return;
  switch (op.rule) {
#define TRAINER_CASE(Rule) \
  case RuleId::Rule:       \
    return update<rules::Rule>(ex, op);
    TRAINER_RULES(TRAINER_CASE)
#undef TRAINER_CASE
  }
}

}  // namespace trainer::ops::cuda
