#include "params/weight_cache.h"

#include <algorithm>

#include "ops/gemm.h"
#include "params/param_store.h"

namespace trainer::params {

void WeightCache::keep(SlotId id) {
  TRAINER_CHECK(entries_.empty(), "keep() of slot {} must precede allocate()", id);
  if (store_.is_sharded(id)) keep_.push_back(id);
}

void WeightCache::allocate() {
  entries_ = std::vector<Entry>(static_cast<size_t>(store_.slots()));
  for (const SlotId id : keep_) {
    Entry& entry = entries_[static_cast<size_t>(id)];
    entry.keep = true;
    entry.kept = Buffer(store_.device(), "kept_weights", store_.box(id), store_.compute_dtype());
  }
}

void WeightCache::record(const std::string& program, const std::function<void()>& body) {
  TRAINER_CHECK(recording_ == nullptr && order_ == nullptr, "program {} cannot be recorded within another program",
                program);
  if (orders_.contains(program)) return;
  std::vector<SlotId> order;
  recording_ = &order;
  try {
    body();
  } catch (...) {
    recording_ = nullptr;
    throw;
  }
  recording_ = nullptr;
  orders_.emplace(program, std::move(order));
}

void WeightCache::begin(Exec& ex, const std::string& program) {
  TRAINER_CHECK(order_ == nullptr, "program {} cannot begin within another program", program);
  const auto found = orders_.find(program);
  if (found == orders_.end()) return;
  order_ = &found->second;
  next_ = 0;
  started_ = ahead_ && !order_->empty();
  if (started_) start(ex, order_->front());
}

void WeightCache::end() {
  if (order_ == nullptr) return;
  TRAINER_CHECK(next_ == order_->size(), "a program used {} weights, but {} were recorded", next_, order_->size());
  order_ = nullptr;
}

void WeightCache::start(Exec& ex, SlotId id) {
  Entry& entry = entries_[static_cast<size_t>(id)];
  if (entry.users++ > 0) return;
  if (entry.keep) {
    if (std::exchange(entry.version, version_) == version_) return;
  } else {
    entry.memory = ex.take("weights.gathered", store_.box(id), store_.compute_dtype());
  }
  const Tensor all = gathered(entry);
  entry.ticket = store_.mesh()
                     ->along(store_.flat_axes(id), comm::Purpose::weights)
                     .all_gather(ex, store_.stored_weight(id), all.reshape({all.count()}));
}

WeightCache::Held WeightCache::hold(Exec& ex, SlotId id, Next next) {
  if (!store_.is_sharded(id)) return {store_.stored_weight(id), nullptr, nullptr};
  if (recording_ != nullptr) recording_->push_back(id);
  TRAINER_CHECK(order_ == nullptr || (next_ < order_->size() && (*order_)[next_] == id),
                "use {} of a program: slot {} is not the recorded slot", next_, id);
  if (!std::exchange(started_, false)) start(ex, id);
  if (order_ != nullptr) ++next_;
  if (next == Next::now) prefetch(ex);  // overlaps with the use of this matrix
  Entry& entry = entries_[static_cast<size_t>(id)];
  if (entry.ticket.is_open()) entry.ticket.join(ex);
  return {gathered(entry), &entry.users, &entry.memory};
}

void WeightCache::prefetch(Exec& ex) {
  if (order_ == nullptr || started_ || next_ == order_->size()) return;
  // If the next use is of the same matrix, the matrix stays.
  started_ = ahead_ || (next_ > 0 && (*order_)[next_] == (*order_)[next_ - 1]);
  if (started_) start(ex, (*order_)[next_]);
}

bool WeightCache::stays_in_memory(SlotId id) const {
  return entries_[static_cast<size_t>(id)].keep || !store_.is_sharded(id);
}

bool WeightCache::prefers_packed(SlotId id, bool transposed, int64_t rows, int64_t uses) const {
  return stays_in_memory(id) && ops::prefers_packed(store_.device(), store_.compute_dtype(),
                                                    {.m = rows,
                                                     .k = store_.box(id)[transposed ? 1 : 0],
                                                     .transposed = transposed,
                                                     .uses = uses,
                                                     .constant = store_.is_constant()});
}

bool WeightCache::gains_from_packing(SlotId id, bool transposed, int64_t rows) const {
  return prefers_packed(id, transposed, rows, micro_batches_);
}

Tensor WeightCache::packed(Exec& ex, SlotId id, bool transposed, int64_t rows, int64_t gemms) {
  const int64_t uses = gemms * micro_batches_;
  if (saves_memory_ && micro_batches_ <= ops::kFewUses) return {};
  if (!prefers_packed(id, transposed, rows, uses)) return {};
  Entry& entry = entries_[static_cast<size_t>(id)];
  const int64_t bytes = packed_bytes(id, transposed);
  const auto pack = [&](const Tensor& to) {
    ops::run(ex, ops::PackB{entry.keep ? entry.kept.tensor() : store_.stored_weight(id), to, transposed});
  };
  if (!store_.is_constant() && uses <= ops::kFewUses) {
    const Tensor once = next_in_ring(bytes);
    if (once) pack(once);
    return once;
  }
  Packed& packed = entry.packed[transposed ? 1 : 0];
  // Every GEMM with a constant matrix that is not transposed reads the packed form only.
  const bool replaces = store_.is_constant() && !transposed && !entry.keep;
  const bool counts_only = ex.device.dry() && !store_.device().dry();  // the weights may not be filled yet
  if (!packed.buffer && !(store_.is_constant() && counts_only))
    packed.buffer = Buffer(store_.device(), replaces ? "weights" : "packed_weights", {bytes}, DType::u8);
  const Tensor result = packed.buffer ? packed.buffer.tensor() : Tensor{nullptr, {bytes}, DType::u8, 0};
  // A dry pass counts the cost of packing without packing.
  int64_t& version = ex.device.dry() ? packed.counted : packed.version;
  if (version == version_) return result;
  TRAINER_CHECK(!replaces || counts_only || packed.version < 0, "slot {} has changed, but it was released", id);
  pack(result);
  version = version_;
  if (replaces && !counts_only) store_.release(id);
  return result;
}

void WeightCache::pack_constant(Exec& ex) {
  for (SlotId id = 0; id < store_.slots(); ++id)
    if (entries_[static_cast<size_t>(id)].packed[0].counted >= 0 && !store_.is_sharded(id)) packed(ex, id, false, 1);
}

int64_t WeightCache::packed_bytes(SlotId id, bool transposed) const {
  const Shape box = store_.box(id);
  return ops::packed_bytes(store_.device(), store_.compute_dtype(), box[transposed ? 1 : 0], box[transposed ? 0 : 1]);
}

// This is a ring because memory that another core has just read takes longer to overwrite where cores have separate L3
// caches.
Tensor WeightCache::next_in_ring(int64_t bytes) {
  constexpr int64_t kBytes = int64_t{64} << 20, kMost = kBytes / 2, kAlign = 4096;
  if (bytes > kMost) return {};
  if (!ring_) {
    int64_t all = 0;
    for (SlotId id = 0; id < store_.slots(); ++id) {
      // Matrices [E, in, out] of experts are never packed.
      if (store_.box(id).dims() != 2 || store_.parts_of(id).front().layout.shape().dims() > 2 || !stays_in_memory(id))
        continue;
      for (const bool transposed : {false, true})
        if (const int64_t each = packed_bytes(id, transposed); each <= kMost) all += round_up(each, kAlign);
    }
    ring_ = Buffer(store_.device(), "packed_weights", {std::min(all, kBytes)}, DType::u8);
  }
  if (ring_at_ + bytes > ring_.tensor().bytes()) ring_at_ = 0;
  const Tensor part = ring_.tensor().range(ring_at_, bytes);
  ring_at_ += round_up(bytes, kAlign);
  return part;
}

void WeightCache::forget_kept() {
  for (const SlotId id : keep_) entries_[static_cast<size_t>(id)].version = -1;
}

}  // namespace trainer::params
