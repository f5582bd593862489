// Checks of hosts and devices.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/units.h"
#include "comm/agreement.h"
#include "config/layouts.h"
#include "config/resolve.h"
#include "ops/gemm.h"
#include "optim/make.h"
#include "verify/context.h"

namespace trainer::verify {

namespace {

/// Each rank must have space for the checkpoints that the run keeps, and the one that it writes.
Finding check_space(Context& c) {
  const std::unique_ptr<comm::World> dry = comm::dry_world(c.world.size(), c.world.rank());
  const std::unique_ptr<device::Device> device = setup::make_dry_device(c.machine);
  train::Trainer trainer(*device, *dry, c.config, c.vocab, c.machine.compute);
  const int64_t element =
      size_of(accumulator_of(c.machine.compute)) + optim::state_bytes(*optim::named_rule(c.config, c.machine.compute));
  const auto needed = static_cast<double>((c.config.checkpoint.keep + 1) * element * trainer.parameter_count());
  std::error_code unknown;
  std::filesystem::path folder = std::filesystem::absolute(config::checkpoint_folder(c.config), unknown);
  double kept = 0;  // by checkpoints of before, which the new ones replace
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, unknown))
    if (entry.is_regular_file(unknown)) kept += static_cast<double>(entry.file_size(unknown));
  while (!std::filesystem::exists(folder, unknown) && folder.has_relative_path()) folder = folder.parent_path();
  const double available = kept + static_cast<double>(std::filesystem::space(folder, unknown).available);
  Finding space{.checked = "space in checkpoint.dir"};
  const std::vector<std::vector<double>> all = gather_values(c.world, {&available, 1});
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].front() < needed) space.ranks.push_back(static_cast<int>(rank));
  if (space.ranks.empty()) return space;
  space.result = Result::warning;
  space.text = format("{}: {} is free in {}, but {} of checkpoints may be kept", c.name(space.ranks),
                      format_bytes(all[static_cast<size_t>(space.ranks.front())].front()), folder.string(),
                      format_bytes(needed));
  return space;
}

}  // namespace

std::vector<Finding> check_environment(Context& c) {
  const Finding space = check_space(c);
  if (c.world.size() == 1) return {space};
  const std::string facts = format("{}, {}, MPI {}, NCCL {}", setup::device_text(c.machine),
                                   ops::product_path(*setup::make_dry_device(c.machine), c.machine.compute),
                                   comm::mpi_version().value_or("none"), comm::nccl_version().value_or("none"));
  Finding same{.checked = format("{}: devices, kernels, MPI and NCCL", counted(c.world.size(), "rank"))};
  const std::vector<std::string> all = c.world.control().gather(facts);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all.front()) same.ranks.push_back(static_cast<int>(rank));
  if (!same.ranks.empty()) {
    same.result = Result::warning;
    same.text = format("{}: {}; rank 0: {}. Results may depend on which rank computes", c.name(same.ranks),
                       all[static_cast<size_t>(same.ranks.front())], all.front());
  }
  // The clocks, at about the same time.
  c.world.control().barrier();
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Finding clocks{.checked = "clocks of the hosts", .worst = 0, .bound = 1};
  const std::vector<std::vector<double>> times = gather_values(c.world, {&now, 1});
  for (size_t rank = 0; rank < times.size(); ++rank) {
    const double apart = std::abs(times[rank].front() - times.front().front());
    clocks.worst = std::max(clocks.worst, apart);
    if (apart > clocks.bound) clocks.ranks.push_back(static_cast<int>(rank));
  }
  if (!clocks.ranks.empty()) {
    clocks.result = Result::warning;
    clocks.text = format("{}: up to {:.1f} s apart from rank 0's", c.name(clocks.ranks), clocks.worst);
  }
  return {same, clocks, space};
}

namespace {

/// One layer of the run with at most this many features, for a test of a device on its own.
Small device_model(const Context& c) {
  constexpr int64_t kMostFeatures = 512, kMostTokens = 128, kMostVocab = 2048, kMostExperts = 8;
  Small model{on_one_rank(c.config), std::min(c.vocab, kMostVocab)};
  config::Config& m = model.config;
  m.model.n_layer = 1;
  m.model.init_from.clear();
  m.model.seq_len = std::min(m.model.seq_len, kMostTokens);
  m.model.max_positions = std::min(m.model.max_positions, m.model.seq_len);
  m.train.micro_batch = m.train.global_batch = 1;
  m.train.skip_sigma = 0;
  m.optim.warmup_steps = 0;
  const int64_t head = config::head_size(m.model), per_kv = m.model.n_head / m.model.n_kv_head;
  const double part = std::min(1.0, static_cast<double>(kMostFeatures) / static_cast<double>(m.model.d_model));
  const auto share = [&](int64_t n, int64_t unit) {
    return std::max<int64_t>(1, static_cast<int64_t>(part * static_cast<double>(n)) / unit) * unit;
  };
  if (m.model.head_dim == 0 && part < 1) m.model.head_dim = head;
  m.model.n_head = share(m.model.n_head, per_kv);
  m.model.n_kv_head = m.model.n_head / per_kv;
  m.model.d_model = part < 1 ? share(m.model.d_model, head) : m.model.d_model;
  for (int64_t config::Model::*width : {&config::Model::d_ff, &config::Model::d_expert, &config::Model::d_shared})
    if (m.model.*width > 0) m.model.*width = share(m.model.*width, 1);
  m.model.moe_every = 1;
  m.model.n_expert = std::min(m.model.n_expert, kMostExperts);
  m.model.experts_per_token = std::min(m.model.experts_per_token, m.model.n_expert);
  return model;
}

}  // namespace

std::vector<Finding> check_device(Context& c) {
  constexpr int64_t kRepeats = 20;
  Small model = device_model(c);
  model.config.run.seed += c.round;
  std::vector<uint64_t> prints;
  std::string problem;
  c.world.control().run_on_all_ranks([&] {
    const std::unique_ptr<comm::World> solo = comm::solo_world();
    SmallRun run(*solo, c.make_device(), {}, model, c.machine.compute);
    params::ParamStore& store = run.trainer().store();
    for (int64_t repeat = 1; repeat <= kRepeats; ++repeat) {
      store.settle();
      store.forget();
      for (params::Group& group : store.groups())
        for (params::State& state : group.states)
          store.home().clear(state.memory.tensor().data, state.memory.tensor().bytes());
      store.initialize(static_cast<uint64_t>(model.config.run.seed));
      if (repeat == kRepeats) run.plant(c.faults, config::Fault::Kind::weight, c.world.rank());
      run.step(1);
      prints.push_back(run.fingerprint());
      if (prints.back() != prints.front() && problem.empty())
        problem = format("repetition {} of a training step on the same data differs from the first one", repeat);
    }
  });
  // Bits depend on the device and on the version of its kernels.
  const std::string kind = format("{}, {}", setup::device_text(c.machine),
                                  ops::product_path(*setup::make_dry_device(c.machine), c.machine.compute));
  std::vector<Finding> findings = {finding_of(
      c, format("a step of one layer x {}, {} times, {} on each rank", model.config.model.d_model, kRepeats, kind),
      problem)};
  // Equal devices compute equal bits: the minority is wrong.
  const std::vector<std::string> all = c.world.control().gather(format("{} {}", prints.front(), kind));
  const auto kind_of = [](const std::string& print) { return print.substr(print.find(' ')); };
  std::map<std::string, std::vector<int>> by_print;
  for (size_t rank = 0; rank < all.size(); ++rank) by_print[all[rank]].push_back(static_cast<int>(rank));
  Finding equal = skipped("no two ranks have equal devices").front();
  equal.checked = "the same bits on equal devices";
  for (const std::string& one : all)
    if (std::ranges::count_if(all, [&](const std::string& other) { return kind_of(one) == kind_of(other); }) > 1)
      equal = {.checked = equal.checked};
  for (const auto& [print, ranks] : by_print)
    for (const auto& [other, others] : by_print)
      if (kind_of(print) == kind_of(other) &&
          (others.size() > ranks.size() || (others.size() == ranks.size() && other < print)) &&
          equal.ranks.size() < all.size()) {
        equal.result = Result::failure;
        equal.ranks = ranks;
        equal.text = format("{} computed other bits than {}: suspect {}", c.name(ranks), c.name(others),
                            others.size() > ranks.size() ? c.name(ranks) : "either");
      }
  findings.push_back(equal);
  return findings;
}

}  // namespace trainer::verify
