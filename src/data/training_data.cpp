#include "data/training_data.h"

#include <algorithm>

#include "base/error.h"

namespace trainer::data {

TrainingData::TrainingData(std::vector<NamedDataset> sources) : sources_(std::move(sources)) {
  TRAINER_CHECK(!sources_.empty() && (sources_.size() == 1 || is_mixed()), "{} sources", sources_.size());
}

int64_t TrainingData::tokens() const {
  int64_t sum = 0;
  for (const NamedDataset& source : sources_) sum += source.dataset.tokens();
  return sum;
}

int64_t TrainingData::windows() const {
  int64_t sum = 0;
  for (const NamedDataset& source : sources_) sum += source.dataset.windows();
  return sum;
}

void TrainingData::set_mixture(Mixture mixture) {
  mixture_ = std::move(mixture);
  by_place_.clear();
  for (const std::string& name : mixture_->names()) {
    const auto found = std::ranges::find(sources_, name, &NamedDataset::name);
    by_place_.push_back(found == sources_.end() ? nullptr : &found->dataset);
  }
}

TrainingData::Place TrainingData::place_of(int64_t sample) const {
  if (!is_mixed()) return {sources_.front().dataset, sample};
  const Mixture::Place place = mixture_->at(sample);
  const TokenDataset* dataset = by_place_[place.source];
  TRAINER_CHECK(dataset != nullptr, "the source of sample {} is open", sample);
  return {*dataset, place.index};
}

int64_t TrainingData::counted(int64_t sample, int64_t sequences) const {
  int64_t sum = 0;
  for (int64_t n = sample; n < sample + sequences; ++n) {
    const Place place = place_of(n);
    sum += place.dataset.counted(place.dataset.window_of(place.sample));
  }
  return sum;
}

void TrainingData::train_batch(int64_t sample, int64_t sequences, TokenBatch& out) const {
  out.resize(sequences, sources_.front().dataset.seq_len());
  for (int64_t row = 0; row < sequences; ++row) {
    const Place place = place_of(sample + row);
    place.dataset.fill_sample(place.sample, row, out);
  }
}

void TrainingData::prefetch(int64_t sample, int64_t sequences) const {
  if (!is_mixed()) return sources_.front().dataset.prefetch(sample, sequences);
  for (int64_t n = sample; n < sample + sequences; ++n) {
    const Mixture::Place place = mixture_->at(n);
    if (by_place_[place.source] != nullptr) by_place_[place.source]->prefetch(place.index, 1);
  }
}

}  // namespace trainer::data
