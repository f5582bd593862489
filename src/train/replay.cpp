#include "train/replay.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>
#include <tuple>

#include "base/checksum.h"
#include "base/join.h"
#include "comm/agreement.h"
#include "config/faults.h"
#include "parallel/loss.h"
#include "train/fingerprints.h"

namespace trainer::train {
namespace {

/// Flips the bits of debug.inject in the gradients that this rank holds.
void plant_faults(Trainer& trainer) {
  const params::ParamStore& store = trainer.store();
  for (const std::string& text : trainer.config().debug.inject) {
    const std::optional<config::Fault> fault = config::planted_fault(text);
    if (!fault || fault->kind != config::Fault::Kind::gradient || fault->rank != trainer.mesh().rank()) continue;
    for (const params::Param& param : store.params())
      for (const mesh::Run& run : param.runs) {
        if (param.name != fault->tensor || fault->at < run.global || fault->at >= run.global + run.length) continue;
        const Tensor& grad = store.groups()[static_cast<size_t>(param.group)].grad;
        HostCopy element(trainer.device(), grad.range(run.local + (fault->at - run.global) * run.stride, 1));
        const int64_t bit = fault->bit % (8 * element.tensor().bytes());
        element.tensor().data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        element.put();
      }
  }
}

constexpr int64_t kLoss = std::numeric_limits<int64_t>::max();  // the group of the terms of the loss: before all others

uint64_t hash_of(const std::vector<uint64_t>& values) { return hash64(std::as_bytes(std::span(values))); }

}  // namespace

std::vector<uint64_t> Trainer::replay(const StepWork& work, int64_t of, const BatchSource& batches) {
  Exec ex = exec();
  grads_->begin_step();
  store_.weights().forget_kept();
  StepWork moved = work;
  moved.first_sample += (of - replica()) * micro_batch();
  set_loss_scale(config_.train.global_batch * config_.model.seq_len);
  parallel::Batch batch = load(moved, 0, batches);
  batch.first_sample = of * micro_batch();
  std::vector<size_t> actions;  // the first micro-batch's, as the first of several
  std::vector<sharding::Action> list;
  for (size_t a = 0; a < actions_.size(); ++a)
    if (actions_[a].micro == 0) {
      actions.push_back(a);
      list.push_back(actions_[a]);
    }
  links_.begin_list(list);
  for (size_t i = 0; i < list.size(); ++i) {
    links_.begin(ex, i);
    launch(ex, {actions[i], sharding::kind_of(list[i], /*micro_batches=*/2)}, batch, nullptr);
  }
  links_.end_list(ex);
  std::vector<uint64_t> results;
  for (size_t t = 0; t < terms_.size(); ++t)
    results.push_back(std::bit_cast<uint64_t>(parallel::sum_of_losses(ex, losses(static_cast<int64_t>(t)))));
  if (work.step % std::max<int64_t>(1, config_.debug.replay_every) == 0) plant_faults(*this);  // not in the first one
  // The order of the batch's rows has been read; its memory serves as scratch, so that a replay allocates nothing.
  const std::vector<uint64_t> gradients = fingerprints(
      ex, store_, [](const params::Group& group) { return group.grad; }, sorted_);
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

Replay::Replay(Trainer& trainer, const std::string& hardware) : trainer_(trainer) {
  comm::Control& host = trainer.mesh().host();
  hosts_ = host.gather(comm::host_name());
  const std::vector<std::string> all = host.gather(hardware);
  for (size_t rank = 0; rank < all.size() && obstacle_.empty(); ++rank)
    for (size_t other = 0; other < rank; ++other)
      if (part_of(static_cast<int64_t>(rank)) == part_of(static_cast<int64_t>(other)) && all[rank] != all[other]) {
        obstacle_ = format("rank {} computes with {}, but rank {} with {}", rank, all[rank], other, all[other]);
        break;
      }
}

int64_t Replay::replica_of(int64_t rank) const {
  const mesh::MeshShape& mesh = trainer_.mesh().shape();
  return mesh.index(static_cast<int>(rank), mesh.set("data"));
}

int64_t Replay::part_of(int64_t rank) const {
  const mesh::MeshShape& mesh = trainer_.mesh().shape();
  return mesh.index(static_cast<int>(rank), mesh.all() & ~mesh.set("data"));
}

std::string Replay::check(const StepWork& work, const BatchSource& batches) {
  const int64_t replicas = trainer_.replicas(), replica = trainer_.replica(), next = (replica + 1) % replicas;
  const std::vector<uint64_t> own = trainer_.replay(work, replica, batches);
  const std::vector<uint64_t> other = trainer_.replay(work, next, batches);
  // While replicas agree, a hash of all fingerprints is enough.
  const uint64_t hashes[] = {hash_of(own), hash_of(other)};
  const std::vector<std::string> all =
      trainer_.mesh().host().gather(std::string(reinterpret_cast<const char*>(hashes), sizeof hashes));
  std::map<std::pair<int64_t, int64_t>, uint64_t> owned;  // by part and replica
  const auto hash = [&](int64_t rank, size_t which) {
    uint64_t value = 0;
    std::memcpy(&value, all[static_cast<size_t>(rank)].data() + which * sizeof value, sizeof value);
    return value;
  };
  for (int64_t rank = 0; rank < std::ssize(all); ++rank) owned[{part_of(rank), replica_of(rank)}] = hash(rank, 0);
  int64_t batch = replicas;
  for (int64_t rank = 0; rank < std::ssize(all); ++rank) {
    const int64_t of = (replica_of(rank) + 1) % replicas;
    if (owned[{part_of(rank), of}] != hash(rank, 1)) batch = std::min(batch, of);
  }
  if (batch == replicas) return {};
  const std::vector<uint64_t> again = trainer_.replay(work, batch, batches);
  const bool own_first = replica == batch && (replicas > 1 || own != again);
  return judge(gather(own_first ? own : next == batch ? other : again, again), batch);
}

std::vector<Replay::Result> Replay::gather(const std::vector<uint64_t>& first, const std::vector<uint64_t>& again) {
  const std::vector<params::Param>& params = trainer_.store().params();
  const size_t terms = first.size() - params.size();
  std::string lines;
  for (size_t i = 0; i < first.size(); ++i)
    lines += i < terms ? format("{} loss.{} {} {}\n", kLoss, i, first[i], again[i])
                       : format("{} {} {} {}\n", params[i - terms].group, params[i - terms].name, first[i], again[i]);
  std::vector<Result> results;
  const std::vector<std::string> all = trainer_.mesh().host().gather(lines);
  for (int64_t rank = 0; rank < std::ssize(all); ++rank) {
    std::istringstream in(all[static_cast<size_t>(rank)]);
    for (Result r{.replica = replica_of(rank), .rank = rank, .name = {}};
         in >> r.group >> r.name >> r.first >> r.again;)
      results.push_back(r);
  }
  std::ranges::stable_sort(results, [&](const Result& a, const Result& b) {
    return std::tuple(-a.group, a.name, part_of(a.rank)) < std::tuple(-b.group, b.name, part_of(b.rank));
  });
  return results;
}

std::string Replay::judge(std::vector<Result> results, int64_t batch) const {
  const auto replicas = static_cast<size_t>(trainer_.replicas());
  std::vector<Result*> differ;  // the results of the first group that has any
  bool decided = true;
  uint64_t expected = 0;
  size_t agree = 0;
  for (size_t begin = 0; begin < results.size(); begin += replicas) {
    const std::span<Result> same = std::span(results).subspan(begin, replicas);
    if (!differ.empty() && same.front().group != differ.front()->group) break;
    std::map<uint64_t, size_t> votes;
    for (const Result& r : same) ++votes[r.again];
    const auto most = std::ranges::max_element(votes, {}, &std::pair<const uint64_t, size_t>::second);
    const bool majority = 2 * most->second > replicas;
    const auto changed = [](const Result& r) { return r.first != r.again; };
    const bool any_changed = std::ranges::any_of(same, changed);
    const size_t before = differ.size();
    for (Result& r : same) {
      r.suspect = majority ? r.first != most->first || r.again != most->first : !any_changed || changed(r);
      if (r.suspect) differ.push_back(&r);
    }
    if (differ.size() == before) continue;
    decided &= majority || any_changed;
    if (before > 0) continue;
    const auto sound = std::ranges::find(same, false, &Result::suspect);
    expected = sound == same.end() ? most->first : sound->again;
    agree = votes[expected];
  }
  TRAINER_CHECK(!differ.empty(), "replicas disagree on the micro-batch of replica {}, but no result differs", batch);
  std::vector<int64_t> ranks;
  std::vector<std::string> hosts;
  for (const Result* r : differ) {
    if (std::ranges::count(ranks, r->rank) > 0) continue;
    ranks.push_back(r->rank);
    const std::string& host = hosts_[static_cast<size_t>(r->rank)];
    if (std::ranges::count(hosts, host) == 0) hosts.push_back(host);
  }
  std::ranges::sort(ranks);
  const Result& worst = *differ.front();
  const std::string what = worst.group == kLoss ? "a different loss" : format("different gradients of {}", worst.name);
  const std::string who =
      format("suspect rank{} {} (host{} {})", ranks.size() == 1 ? "" : "s", fmt::join(ranks, decided ? ", " : " or "),
             hosts.size() == 1 ? "" : "s", fmt::join(hosts, ", "));
  if (!decided)
    return format("replicas computed {} for the micro-batch of replica {}, and each repeats its result: {}", what,
                  batch, who);
  const uint64_t found = worst.first == expected ? worst.again : worst.first;
  return format(
      "replica {} computed {} for the micro-batch of replica {} (fingerprint {:016x}, expected {:016x}; {} of "
      "{} replicas agree): {}",
      worst.replica, what, batch, found, expected, agree, replicas, who);
}

}  // namespace trainer::train
