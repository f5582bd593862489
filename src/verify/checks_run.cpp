// Checks of bytes, repeated steps, transports, checkpoints and data.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <set>

#include "base/checksum.h"
#include "base/files.h"
#include "base/log.h"
#include "base/philox.h"
#include "checkpoint/param_slices.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "config/resolve.h"
#include "data/source.h"
#include "verify/context.h"

namespace trainer::verify {
namespace {

namespace fs = std::filesystem;

/// The results of a rank's steps: losses, norms, and a hash of weights and states.
struct Bits {
  std::vector<double> numbers;
  uint64_t state = 0;
  bool operator==(const Bits&) const = default;
};

Bits bits_of(SmallRun& run, int64_t first = 1, int64_t last = 2) {
  Bits bits;
  for (int64_t n = first; n <= last; ++n) {
    const train::Trainer::Outcome outcome = run.step(n);
    bits.numbers.insert(bits.numbers.end(), {outcome.loss, outcome.norm.norm});
  }
  bits.state = run.fingerprint();
  return bits;
}

/// Returns how `other` differs from the expected bits; empty if it does not.
std::string difference_of(const Bits& a, const Bits& b) {
  if (a == b) return {};
  for (size_t i = 0; i < a.numbers.size(); ++i)
    if (a.numbers[i] != b.numbers[i])
      return format("{} of step {} is {:.17g}, expected {:.17g}", i % 2 == 0 ? "loss" : "gradient norm", i / 2 + 1,
                    b.numbers[i], a.numbers[i]);
  return "weights or optimizer states differ";
}

}  // namespace

std::string wrong_bytes(const CommBytes& counted, const CommBytes& predicted, const CommBytes& planned) {
  if (counted != predicted)
    return format("sent {} in {} steps, but {} were predicted", comm_text(counted), kSteps, comm_text(predicted));
  if (planned != predicted)
    return format("a dry run predicts {}, but this rank's plan {}", comm_text(planned), comm_text(predicted));
  return {};
}

std::vector<Finding> check_bytes(Context& c) {
  if (c.world.size() == 1) return skipped("one rank");
  const Exact& steps = c.exact(Clip::always);
  double pairs = 0;
  for (const auto& [axis, operations] : steps.counted) pairs += static_cast<double>(operations.size());
  double most = 0;  // stages differ
  for (const std::vector<double>& rank : gather_values(c.world, {&pairs, 1})) most = std::max(most, rank.front());
  return {finding_of(c, format("predicted = counted, {} pairs of axis and operation, fp64", most),
                     pairs == 0 ? "no bytes were sent" : wrong_bytes(steps.counted, steps.predicted, steps.planned))};
}

std::vector<Finding> check_repeat(Context& c) {
  Small model = c.small;
  model.config.run.seed += c.round;
  const DType type = c.machine.compute;
  const auto run_with = [&](std::unique_ptr<device::Device> device, const Small& small) {
    SmallRun run(c.world, std::move(device), c.between_gpus, small, type);
    return bits_of(run);
  };
  const Bits first = run_with(c.make_device(), model);
  std::vector<std::string> variants;
  std::string problem;
  const auto compare = [&](std::string name, const Bits& other) {
    variants.push_back(name);
    if (const std::string differs = difference_of(first, other); !differs.empty() && problem.empty())
      problem = format("{}: {}", name, differs);
  };
  {
    SmallRun run(c.world, c.make_device(), c.between_gpus, model, type);
    run.plant(c.faults, config::Fault::Kind::weight);
    compare("twice", bits_of(run));
  }
  if (!c.machine.gpu) {
    double most = c.machine.threads;
    for (const std::vector<double>& rank : gather_values(c.world, {&most, 1})) most = std::max(most, rank.front());
    if (most > 1) compare("one thread", run_with(c.make_cpu(1), model));
  }
  Small blocking = model;
  blocking.config.debug.overlap = false;
  compare("without overlap", run_with(c.make_device(), blocking));
  if (c.world.size() > 1 && !c.between_gpus.nccl) {
    constexpr double kDelay = 1e-3;  // seconds
    const double before = c.message_delay->exchange(kDelay);
    compare("delayed messages", run_with(c.make_device(), model));
    *c.message_delay = before;
  }
  if (c.machine.gpu) {
    Small graphs = model;
    graphs.config.train.cuda_graph = !graphs.config.train.cuda_graph;
    compare("with and without graphs", run_with(c.make_device(), graphs));
  }
  std::string checked = "the same steps: ";
  for (const std::string& name : variants) checked += (checked.ends_with(": ") ? "" : ", ") + name;
  return {finding_of(c, checked, problem)};
}

std::vector<Finding> check_transport(Context& c) {
  if (c.world.size() == 1) return skipped("one rank");
  if (c.world.transport() == "threads") return skipped("the ranks are threads; start them with mpirun for MPI");
  if (c.options.full) return skipped("all ranks of the configured model would be in one process (--full)");
  if (c.world.size() > kMostThreads) return skipped(format("more than {} ranks", kMostThreads));
  const Small model = c.model(DType::f64, Clip::never);
  SmallRun run(c.world, c.make_cpu(1), {}, model, DType::f64);
  run.plant(c.faults, config::Fault::Kind::weight);
  const Bits own = bits_of(run, 1, 1);
  std::vector<double> others(static_cast<size_t>(2 * c.world.size()), 0), states;
  std::string bytes(sizeof(uint64_t) * static_cast<size_t>(c.world.size()), '\0');
  c.world.control().run_on_all_ranks([&] {
    if (!c.world.first()) return;
    std::mutex mutex;
    comm::run_on_threads(c.world.size(), {.timeout_s = c.config.parallel.timeout}, [&](comm::World& threads) {
      SmallRun thread(threads, c.make_cpu(1), {}, model, DType::f64);
      const Bits bits = bits_of(thread, 1, 1);
      const std::lock_guard lock(mutex);
      const auto rank = static_cast<size_t>(threads.rank());
      std::ranges::copy(bits.numbers, others.begin() + static_cast<std::ptrdiff_t>(2 * rank));
      std::memcpy(bytes.data() + rank * sizeof bits.state, &bits.state, sizeof bits.state);
    });
  });
  c.world.control().sum(others);
  c.world.control().broadcast(bytes);
  Bits threads;
  const auto rank = static_cast<size_t>(c.world.rank());
  threads.numbers = {others[2 * rank], others[2 * rank + 1]};
  std::memcpy(&threads.state, bytes.data() + rank * sizeof threads.state, sizeof threads.state);
  return {finding_of(c, format("{} against threads, fp64", c.world.transport()), difference_of(threads, own))};
}

namespace {

/// A folder in the run's checkpoints folder that exists as long as this object. Collective.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(Context& c) : c_(c) {
    const fs::path checkpoints = fs::absolute(config::checkpoint_folder(c.config));
    std::string name;
    c.world.control().run_on_all_ranks([&] {
      if (!c.world.first()) return;
      for (fs::path each = checkpoints; !fs::exists(each); each = each.parent_path()) created_.push_back(each);
      fs::create_directories(checkpoints);
      name = (checkpoints / ".verify-XXXXXX").string();  // several may share the folder
      if (::mkdtemp(name.data()) != nullptr) return;
      const std::string reason = system_reason(errno);
      remove();
      throw Error(Code::io, format("{}: cannot create a temporary folder: {}", name, reason));
    });
    c.world.control().broadcast(name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code failed;
    if (!c_.world.first()) return;
    fs::remove_all(path_, failed);
    remove();
  }
  const fs::path& path() const { return path_; }

 private:
  /// Removes the folders around it that this object has created and that are empty.
  void remove() {
    std::error_code failed;
    for (const fs::path& each : created_) fs::remove(each, failed);  // the inner ones first
  }

  Context& c_;
  fs::path path_;
  std::vector<fs::path> created_;
};

/// Returns the first tensor whose held elements differ from the whole one; empty if none does.
std::string differing(const Parts& parts, const Tensors& whole) {
  std::string name;
  for (const checkpoint::TensorSlice& slice : parts.held)
    each_element(slice, [&](int64_t at, double value) {
      const double expected = whole.at(slice.name)[static_cast<size_t>(at)];
      if (std::memcmp(&value, &expected, sizeof value) != 0) name = slice.name;  // 0 differs from −0, NaN not from NaN
    });
  return name;
}

void save(const fs::path& folder, const params::ParamStore& store, comm::World& world) {
  checkpoint::CheckpointStore files(folder, {}, system_calls(), &world);
  checkpoint::Snapshot snapshot;
  snapshot.tensors = checkpoint::slices_to_save(store, true);
  files.save(snapshot);
}

void load(const fs::path& folder, train::Trainer& trainer) {
  checkpoint::Reader(folder).load(checkpoint::slices_to_fill(trainer.store(), true),
                                  {.elsewhere = trainer.names_elsewhere()});
}

/// Flips a bit of the rank's file.
void damage(const fs::path& folder, const config::Fault& fault) {
  std::vector<fs::path> shards;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".shard") shards.push_back(entry.path());
  std::ranges::sort(shards);
  if (fault.rank >= std::ssize(shards)) return;
  std::fstream file(shards[static_cast<size_t>(fault.rank)], std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(fault.at);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(fault.at);
  file.put(byte);
}

}  // namespace

std::vector<Finding> check_resume(Context& c) {
  const TemporaryFolder folder(c);
  const DType type = c.machine.compute;
  const auto fresh = [&] {
    return std::make_unique<SmallRun>(c.world, c.make_device(), c.between_gpus, c.small, type);
  };
  const std::unique_ptr<SmallRun> run = fresh();
  bits_of(*run);
  const fs::path many = folder.path() / "layout", few = folder.path() / "one";
  save(many, run->trainer().store(), c.world);
  for (const config::Fault& fault : c.faults)
    if (fault.kind == config::Fault::Kind::file && c.world.first()) damage(many, fault);
  c.world.control().barrier();
  const Parts before = state_of(run->trainer());
  std::string problem;
  const auto attempt = [&](const auto& part) {  // reading only; other ranks need not wait
    if (problem.empty()) try {
        part();
      } catch (const Error& error) {
        if (error.code() != Code::checkpoint && error.code() != Code::io) throw;
        problem = error.what();
      }
  };
  // Every rank reads the files of all ranks.
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  Small one = c.small;
  one.config = on_one_rank(one.config);
  SmallRun whole(*solo, c.make_device(), {}, one, type);
  attempt([&] {
    load(many, whole.trainer());
    whole.trainer().store().refresh_compute();
    const std::string name = differing(before, gather(checkpoint::slices_to_save(whole.trainer().store(), true)));
    if (!name.empty()) problem = format("{}: one rank reads other values than this rank saved", name);
  });
  Finding into_one = finding_of(c, "saved by the layout, read by one rank", problem);
  if (into_one.result == Result::failure) return {into_one};
  const std::unique_ptr<SmallRun> resumed = fresh();
  attempt([&] { load(many, resumed->trainer()); });
  resumed->trainer().store().refresh_compute();
  const Bits expected = bits_of(*run, kSteps, kSteps);
  if (const std::string differs = difference_of(expected, bits_of(*resumed, kSteps, kSteps)); problem.empty())
    problem = differs;
  Finding same = finding_of(c, "saved and resumed: the bits of the next step", problem);
  problem.clear();
  c.world.control().run_on_all_ranks([&] {
    if (c.world.first()) save(few, whole.trainer().store(), *solo);
  });
  const std::unique_ptr<SmallRun> spread = fresh();
  attempt([&] { load(few, spread->trainer()); });
  spread->trainer().store().refresh_compute();
  if (problem.empty()) {
    const std::string name =
        differing(state_of(spread->trainer()), gather(checkpoint::slices_to_save(whole.trainer().store(), true)));
    if (!name.empty()) problem = format("{}: this rank reads other values than one rank saved", name);
  }
  return {into_one, same, finding_of(c, "saved by one rank, read by the layout", problem)};
}

std::string wrong_samples(const std::vector<std::vector<double>>& by_rank, int64_t samples, int64_t replicas) {
  std::vector<int64_t> times(static_cast<size_t>(samples), 0);
  const std::set lists(by_rank.begin(), by_rank.end());  // a replica's ranks draw the same
  if (std::ssize(lists) != replicas)
    return format("{} replicas drew {} different lists of samples", replicas, std::ssize(lists));
  for (const std::vector<double>& list : lists)
    for (const double sample : list) {
      if (!(sample >= 0 && sample < static_cast<double>(samples)))
        return format("sample {} is not of these steps", sample);
      ++times[static_cast<size_t>(sample)];
    }
  for (int64_t sample = 0; sample < samples; ++sample)
    if (const int64_t drawn = times[static_cast<size_t>(sample)]; drawn != 1)
      return format("sample {} was drawn by {} replicas", sample, drawn);
  return {};
}

std::string wrong_shares(const data::SlotsByName& drawn, const data::WeightsByName& weights) {
  double all = 0, samples = 0;
  for (const auto& [name, weight] : weights) all += weight;
  for (const auto& [name, count] : drawn) samples += static_cast<double>(count);
  const double rounding = samples * static_cast<double>(weights.size()) / data::kMixtureSlots;
  for (const auto& [name, weight] : weights) {
    const auto found = drawn.find(name);
    const double count = found == drawn.end() ? 0 : static_cast<double>(found->second), share = samples * weight / all;
    if (std::abs(count - share) < 1 + rounding) continue;
    return format("{} of {} samples are from \"{}\", whose share is {:.1f}", count, samples, name, share);
  }
  return {};
}

std::vector<Finding> check_data(Context& c) {
  // The samples that the ranks drew: those of a step, each by one replica.
  std::vector<Finding> findings = skipped("one replica");
  std::string problem;
  if (const int64_t replicas = c.small.config.parallel.data; replicas > 1) {
    const Exact& steps = c.exact(Clip::always);
    const int64_t samples = kSteps * c.small.config.train.global_batch;
    const std::vector<double> own(steps.samples.begin(), steps.samples.end());
    findings = {finding_of(c, format("{} samples of {} steps, each on one replica", samples, kSteps),
                           wrong_samples(gather_values(c.world, own), samples, replicas))};
  }
  // The configured data.
  std::string missing;
  std::optional<data::TrainingData> train;
  std::vector<data::WeightChange> changes;
  try {
    train = data::open_trained_data(c.config, data::token_cache(c.config));
    changes = data::weight_changes(c.config, *train);
    if (train->is_mixed()) train->set_mixture({{}, 0, changes});
  } catch (const Error& error) {
    missing = error.what();
  }
  const std::vector<std::string> obstacles = c.world.control().gather(missing);
  if (std::ranges::all_of(obstacles, [](const std::string& each) { return !each.empty(); })) {
    constexpr std::string_view kGone = " not found";
    const size_t gone = obstacles[0].find(kGone);
    const size_t length = gone == std::string::npos ? obstacles[0].find(';') : gone + kGone.size();
    findings.push_back(
        skipped("the run's tokens, which it writes when it starts, cannot be read: " + obstacles[0].substr(0, length))
            .front());
    return findings;
  }
  if (Finding some = finding_of(c, "the run's data, on all ranks", missing); some.result == Result::failure) {
    findings.push_back(some);
    return findings;
  }
  constexpr int64_t kDrawn = 1024;
  std::string hashes;
  data::TokenBatch batch;
  const uint64_t last =
      static_cast<uint64_t>(config::total_steps(c.config)) * static_cast<uint64_t>(c.config.train.global_batch);
  const PhiloxKey key = philox_key(static_cast<uint64_t>(c.config.run.seed + c.round), "verify.samples");
  for (int64_t i = 0; i < kDrawn; ++i) {
    const uint64_t sample = i < std::min(c.config.train.global_batch, kDrawn / 2)
                                ? static_cast<uint64_t>(i)
                                : philox_at(key, static_cast<uint64_t>(i)) % last;
    train->train_batch(static_cast<int64_t>(sample), 1, batch);
    const uint64_t hash =
        hash64(std::as_bytes(std::span(batch.ids))) ^ 3 * hash64(std::as_bytes(std::span(batch.targets))) ^
        5 * hash64(std::as_bytes(std::span(batch.starts))) ^ 7 * hash64(std::as_bytes(std::span(batch.weights)));
    hashes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  }
  std::string first = hashes;
  c.world.control().broadcast(first);
  if (hashes != first) problem = "its copy of the data has other tokens than rank 0's; copy the files again";
  findings.push_back(finding_of(c, format("{} samples of the run's data, equal on all ranks", kDrawn), problem));
  if (!train->is_mixed()) return findings;
  const data::Mixture& mixture = *train->mixture();
  const int64_t samples = changes.size() > 1 ? std::min(kDrawn, changes[1].first_sample) : kDrawn;
  data::SlotsByName drawn;
  for (int64_t sample = 0; sample < samples; ++sample) ++drawn[mixture.names()[mixture.at(sample).source]];
  findings.push_back(finding_of(c, format("shares of {} sources in {} samples", changes[0].weights.size(), samples),
                                wrong_shares(drawn, changes[0].weights)));
  return findings;
}

}  // namespace trainer::verify
