#pragma once
// Mixture: which source of weighted training data a sample is from: a pure function of (weights, sample). It does not
// depend on the length of the run, and weights may change at any sample. The number of samples from each source since
// the last change always differs by less than one from its share, and the windows of a source are used in sequence.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainer::data {

/// Total number of slots that the weights of a mixture are rounded to.
inline constexpr int64_t kMixtureSlots = 100'000;

/// Values by source name. Ties are broken by the bytewise order of the names.
using SlotsByName = std::map<std::string, int64_t>;
using WeightsByName = std::map<std::string, double>;

/// Returns the slots of each source with a positive weight: at least one each, by the largest remainder method.
SlotsByName slots_of(const WeightsByName& weights);

/// The weights that apply from `first_sample` onwards.
struct WeightChange {
  int64_t first_sample = 0;
  WeightsByName weights;
};

/// The same in integers, as stored in checkpoints: the slots of each source, and its samples before the phase.
struct MixturePhase {
  int64_t first_sample = 0;
  SlotsByName slots, start;
  bool operator==(const MixturePhase&) const = default;
};

/// One period of a phase. Sample j of a source with m of B slots may take the slots from floor(j·B/m) to
/// ceil((j + 1)·B/m) − 1. Each slot goes to the permitted source with the earliest deadline (its last permitted slot).
class MixturePattern {
 public:
  /// `slots` is the number of slots of each source (possibly 0), in the order of names.
  explicit MixturePattern(std::vector<int64_t> slots);

  int64_t period() const { return static_cast<int64_t>(source_.size()); }
  size_t source(int64_t sample) const { return source_[static_cast<size_t>(sample % period())]; }
  /// Returns how many samples before this one, since the phase began, are from the same source.
  int64_t index(int64_t sample) const;
  /// Returns how many of the first `samples` are from each source.
  std::vector<int64_t> before(int64_t samples) const;

 private:
  std::vector<int64_t> count_;    // slots of a period by source
  std::vector<uint16_t> source_;  // by slot
  std::vector<uint32_t> rank_;    // by slot: number of earlier slots of the period with the same source
};

class Mixture {
 public:
  /// The phases of a run that has reached sample `from`: the phases of `past` that begin before `from`, then those of
  /// `changes`, which must be ascending and begin with sample 0.
  Mixture(std::vector<MixturePhase> past, int64_t from, const std::vector<WeightChange>& changes);

  /// All sources of all phases, in order.
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<MixturePhase>& phases() const { return phases_; }

  struct Place {
    size_t source;  // index in names()
    int64_t index;  // samples of this source before this one
  };
  Place at(int64_t sample) const;
  /// Returns how many samples before this one are from each source.
  SlotsByName samples_before(int64_t sample) const;

 private:
  void add(MixturePhase phase);
  /// Returns the index of the phase that a sample belongs to; 0 for samples before the first phase.
  size_t phase_of(int64_t sample) const;

  std::vector<std::string> names_;
  std::vector<MixturePhase> phases_;
  std::vector<MixturePattern> patterns_;     // by phase
  std::vector<std::vector<int64_t>> start_;  // by phase and source
};

}  // namespace trainer::data
