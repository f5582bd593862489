#pragma once
// Elementwise updates of weights by a rule (ops/rules/) in canonical arithmetic: every device performs the same
// operations in the same order with the same rounding, so results are bitwise identical wherever a parameter is
// updated.
#include <span>

#include "ops/rules/list.h"
#include "tensor/exec.h"

namespace trainer::ops {

#define TRAINER_RULE_ID(Rule) Rule,
enum class RuleId : uint8_t { TRAINER_RULES(TRAINER_RULE_ID) };
#undef TRAINER_RULE_ID
#define TRAINER_COUNT(Rule) +1
inline constexpr size_t kRules = TRAINER_RULES(TRAINER_COUNT);
#undef TRAINER_COUNT

struct RuleFacts {
  const char* name;
  double flops;  // per element
  std::span<const rules::StateRule> states;
  size_t scalars;
};
const RuleFacts& facts_of(RuleId rule);

/// No rule has more.
inline constexpr size_t kMostStates = 4, kMostScalars = 12;

/// Per element, rn = rounded to the type of the weights (f32 or f64):
///   p, states = the rule's element() of rn(scalars), p, states and rn(g·rn(gradient_scale)); compute = bf16(p)
/// States may be stored in bf16, half of f32; this update uses them before they are rounded to the nearest bf16, or
/// stochastically (rules::Narrow): with
///   mix(h): h ^= h >> 16; h *= 0x7feb352d; h ^= h >> 15; h *= 0x846ca68b; h ^= h >> 16 (32-bit integers)
///   h = mix(bits(s) ^ mix(bits(p) + salt)) with p before the update
/// the stored bits are (bits(s) + (h & 0xffff)) & 0xffff0000. They depend only on values, not on where an element is.
/// p, states, g flat [n] of one dtype (f32, f64), or all states bf16 with f32 p and g; compute: flat [n] bf16 copy to
/// refresh, or empty. With f32 weights g may be bf16, and is widened first. `round_gradient`: rounds an f32 g to bf16
/// first; the result is bitwise identical to that with a bf16 g. The copy bypasses the caches if the whole update is
/// larger than they are. CUDA devices have kernels for f32 weights.
struct Update {
  RuleId rule{};
  Tensor p;
  std::span<const Tensor> states;
  Tensor g, compute;
  std::span<const double> scalars;  // by the rule's enumeration
  double gradient_scale = 1;        // loss scale and clipping: a single factor
  bool round_gradient = false;
  uint32_t salt = 0;  // salt_of(number of the update)
  int64_t whole = 0;  // elements of the update that this one is a part of, if it is more than this one
};
/// `t` is 1-based.
constexpr uint32_t salt_of(int64_t t) { return static_cast<uint32_t>(t) * 0x9e3779b9u; }
void run(Exec& ex, const Update& op);

}  // namespace trainer::ops
