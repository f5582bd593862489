// The part of Trainer that concerns mixtures of experts.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <string>

#include "base/checksum.h"
#include "train/trainer.h"

namespace trainer::train {

void Trainer::begin_routing(int64_t step, int64_t rows) {
  if (!routing_) return;
  const double terms = static_cast<double>(moe_layers(config_.model) * rows);
  routing_->balance = config_.train.balance_loss * static_cast<double>(config_.model.n_expert) / terms;
  routing_->z_loss = 2 * config_.train.router_z_loss / terms;
  routing_->begin_step();
  const int64_t every = config_.debug.check_replicas_every;
  hashes_choices_ = every > 0 && step % every == 0;
  std::ranges::fill(choice_hashes_, ChoiceHash{});
}

void Trainer::hash_choices() {
  choice_hashes_.resize(static_cast<size_t>(moe_layers(config_.model)));
  routing_->on_choice = [this](int64_t layer, int64_t first_row, const Tensor&, const Tensor& choices) {
    if (!hashes_choices_) return;
    ChoiceHash& hash = choice_hashes_[static_cast<size_t>(layer)];
    const Tensor& chosen = choices_on_host_.get(device_, choices);
    const uint64_t both[] = {hash.choices, hash64({chosen.data, static_cast<size_t>(chosen.bytes())})};
    hash = {first_row, hash64(std::as_bytes(std::span(both)))};
  };
}

void Trainer::end_routing(int64_t rows, Outcome& outcome) {
  if (!routing_) return;
  const parallel::RouterTerms terms = routing_->terms();
  double sums[] = {terms.balance, terms.z_loss};
  scalars_->sum_over_ranks(sums);
  const auto all = static_cast<double>(moe_layers(config_.model) * rows);
  outcome.balance_loss = sums[0] / all;
  outcome.router_z_loss = sums[1] / all;
}

ExpertStatistics Trainer::expert_statistics() {
  std::vector<double> sums(routing_->counts().begin(), routing_->counts().end());
  sums.push_back(routing_->terms().entropy);
  mesh_.host().sum(sums);

  const config::Model& model = config_.model;
  const auto experts = static_cast<size_t>(model.n_expert), layers = sums.size() / experts;
  ExpertStatistics result;
  double pairs = 0;
  for (size_t layer = 0; layer < layers; ++layer) {
    const std::span counts = std::span(sums).subspan(layer * experts, experts);
    const double of_layer = std::accumulate(counts.begin(), counts.end(), 0.0),
                 mean = of_layer / static_cast<double>(experts);
    const double load = mean > 0 ? std::ranges::max(counts) / mean : 0;
    if (load > result.load_max) result.load_layer = static_cast<int64_t>(layer + 1) * model.moe_every - 1;
    result.load_max = std::max(result.load_max, load);
    result.idle += std::ranges::count(counts, 0.0);
    result.counts.emplace_back(counts.begin(), counts.end());
    pairs += of_layer;
  }
  const std::span own = routing_->rounds();
  for (const std::string& rank : mesh_.host().gather({reinterpret_cast<const char*>(own.data()), own.size_bytes()}))
    for (size_t layer = 0; layer < own.size(); ++layer) {
      int64_t rounds = 0;
      std::memcpy(&rounds, rank.data() + layer * sizeof rounds, sizeof rounds);
      if (rounds > result.rounds) result.rounds_layer = static_cast<int64_t>(layer + 1) * model.moe_every - 1;
      result.rounds = std::max(result.rounds, rounds);
    }
  result.entropy = sums.back() * static_cast<double>(model.experts_per_token) / pairs;
  return result;
}

CommBytes Trainer::expected_comm_bytes(CommBytes planned) const {
  if (!routing_) return planned;
  for (const auto& [axes, bytes] : routing_->unplanned_bytes())
    planned[mesh_.shape().name_of(axes)][std::string(name_of(CommOp::all_to_all))] += bytes;
  return planned;
}

}  // namespace trainer::train
