#pragma once
// Context: what the checks share: the small model, the machine, and the runs that several checks read.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "data/mixture.h"
#include "setup/machine.h"
#include "verify/compare.h"
#include "verify/small_run.h"
#include "verify/verify.h"

namespace trainer::verify {

/// The results of steps on one rank.
struct OneRank {
  std::vector<double> losses, norms;  // by step; kLosses of each
  std::vector<double> chosen;         // by layer with experts: how often each expert was, in the last step
  Tensors gradients;                  // after the first step
  Tensors state;                      // after the last step
};
inline constexpr const char* kLosses[] = {"loss", "z-loss", "balance loss", "router z-loss"};

/// The results of steps of the layout in f64 on CPUs, compared with one rank.
struct Exact {
  std::vector<double> losses, norms;      // as OneRank's; this rank's
  std::vector<double> chosen;             // as OneRank's, of all ranks
  Comparison gradients;                   // after the first step
  Comparison state;                       // after the last step
  CommBytes counted, predicted, planned;  // by the meter, by the trainer's plan of the steps, by a dry world
  std::vector<int64_t> samples;           // that this rank's replica drew
  std::string padding;                    // padding that was written on this rank; empty: none
};

/// The gradient's norm is clipped in all steps or in none.
enum class Clip { never, always };

class Context {
 public:
  Context(comm::World& world, const config::Config& config, const Options& options);

  /// Returns the steps of one rank on this rank's CPU: one step that is not clipped, or kSteps that are. Collective:
  /// all ranks throw if one fails. `given_choices`: of experts, if the model has any; runs in types that round
  /// differently can be compared then, since the choice of an expert is not continuous.
  const OneRank& one_rank(DType type, Clip clip, bool given_choices = false);
  /// Returns the same steps of the layout in f64, compared with one rank. Collective.
  const Exact& exact(Clip clip);
  /// Returns the model of `type` for these steps.
  Small model(DType type, Clip clip);

  /// Creates this rank's device of the run, or a CPU with `threads` threads (0: those of the run).
  std::unique_ptr<device::Device> make_device() const { return setup::make_device(machine); }
  std::unique_ptr<device::Device> make_cpu(int threads = 0) const;
  /// Returns "rank 5 (host b)", "ranks 0 and 5 (hosts a, b)".
  std::string name(const std::vector<int>& ranks) const;

  comm::World& world;
  const Options options;
  setup::Machine machine;
  comm::GpuTransport between_gpus;
  config::Config config;  // the run's
  int64_t vocab;          // the run's
  Small small;
  std::vector<std::string> hosts;      // by rank
  std::vector<config::Fault> faults;   // to plant, of all ranks
  std::atomic<double>* message_delay;  // seconds; the longest random delay of this rank's messages
  int64_t round = 0;                   // with --minutes: selects the data

 private:
  std::shared_ptr<std::atomic<double>> delay_;
  std::map<std::tuple<DType, Clip, bool>, OneRank> one_rank_;
  std::map<Clip, Exact> exact_;
};

/// Returns the number of steps of a run.
constexpr int64_t steps_of(Clip clip) { return clip == Clip::always ? kSteps : 1; }
/// Returns a finding of a check that cannot run.
inline std::vector<Finding> skipped(std::string why) { return {{.result = Result::skipped, .text = std::move(why)}}; }
/// Returns a finding that requires a fact to be equal on all ranks or equal to this rank's own expectation: `problem`
/// says what differs on this rank, empty if nothing does. Collective.
Finding finding_of(Context& c, std::string checked, const std::string& problem);

/// Returns what is wrong with the bytes of a run: those that were sent, those that the trainers' plan predicts, and
/// those of a plan without other ranks. Empty if nothing is.
std::string wrong_bytes(const CommBytes& counted, const CommBytes& predicted, const CommBytes& planned);
/// Returns what is wrong with the samples that the ranks drew in steps over `samples` samples; empty if each was drawn
/// by one replica, and the replicas drew different ones.
std::string wrong_samples(const std::vector<std::vector<double>>& by_rank, int64_t samples, int64_t replicas);
/// Returns which source of a mixture has another number of samples than its share; empty if none has.
std::string wrong_shares(const data::SlotsByName& drawn, const data::WeightsByName& weights);

/// A pair of hosts by their order, and the GB/s that each sends to the other.
struct HostPair {
  int a, b;
  double rate;
};
/// Returns the host's partner in a round, a different one in each; `hosts`: none, since their number is odd.
int partner_of(int host, int round, int hosts);
/// Returns the median over hosts of the rate with their fastest partner.
double usual_rate(const std::vector<HostPair>& pairs);
/// Returns the hosts all of whose pairs are slower than the bound.
std::vector<int> slow_hosts(const std::vector<HostPair>& pairs, double bound);

// The checks, in the order of the table.
std::vector<Finding> check_environment(Context& c);
std::vector<Finding> check_links(Context& c);
std::vector<Finding> check_device(Context& c);
std::vector<Finding> check_gradients(Context& c);
std::vector<Finding> check_norm(Context& c);
std::vector<Finding> check_update(Context& c);
std::vector<Finding> check_bytes(Context& c);
std::vector<Finding> check_repeat(Context& c);
std::vector<Finding> check_transport(Context& c);
std::vector<Finding> check_resume(Context& c);
std::vector<Finding> check_data(Context& c);
std::vector<Finding> check_derivative(Context& c);

}  // namespace trainer::verify
