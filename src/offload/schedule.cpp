#include "offload/schedule.h"

#include <algorithm>
#include <deque>
#include <numeric>

namespace trainer::offload {
namespace {

/// Writes the list. Slots wait in a queue: the one that was drained first is filled first.
class Writer {
 public:
  explicit Writer(const Situation& s)
      : s_(s),
        drained_(slots_in_all(), -1),
        loads_(slots_in_all(), -1),
        flushed_(s.places.size(), -1),
        bounces_(kBounces, -1) {
    out_.held = s.held.empty() ? Held(slots_in_all(), -1) : s.held;
    TRAINER_CHECK(out_.held.size() == slots_in_all(), "{} slots hold something, there are {}", out_.held.size(),
                  slots_in_all());
    order_.resize(s.places.size());
    std::iota(order_.begin(), order_.end(), 0);
    const bool backwards = s.order == config::OffloadOrder::arrival || s.early || s.backwards;
    if (backwards) std::ranges::reverse(order_);
  }

  void homecoming() {
    for (size_t slot = 0; slot < out_.held.size(); ++slot)
      if (out_.held[slot] >= 0) bring_home(static_cast<int>(slot));
  }

  void update() {
    for (size_t slot = 0; slot < streaming(); ++slot) {
      const int held = out_.held[slot];
      if (held >= 0 && !(due(held) && place(held) == Place::streamed)) bring_home(static_cast<int>(slot));
      if (out_.held[slot] < 0) free_.push_back(static_cast<int>(slot));
    }
    // Gradients arrive from the last group to the first.
    for (int i = static_cast<int>(s_.places.size()) - 1; i >= 0; --i)
      if (due(i) && place(i) == Place::host) flush(i);
    // What slots hold goes first: others wait for those slots.
    for (const int i : order_)
      if (due(i) && place(i) == Place::streamed && slot_of(i) >= 0) streamed_.push_back(i);
    for (const int i : order_)
      if (due(i) && place(i) == Place::streamed && slot_of(i) < 0) streamed_.push_back(i);
    load_ahead();
    for (const int i : order_) {
      if (!due(i)) continue;
      if (place(i) == Place::host) update_host(i);
      if (place(i) == Place::resident) update_resident(i);
      if (place(i) == Place::streamed) update_streamed();
    }
  }

  Schedule finish() { return std::move(out_); }

 private:
  size_t streaming() const { return static_cast<size_t>(s_.slots); }
  size_t slots_in_all() const {
    return streaming() + static_cast<size_t>(std::ranges::count(s_.places, Place::resident));
  }
  Place place(int i) const { return s_.places[static_cast<size_t>(i)]; }
  bool due(int i) const { return s_.done.empty() || s_.done[static_cast<size_t>(i)] == 0; }
  int slot_of(int i) const {
    const auto found = std::ranges::find(out_.held, i);
    return found == out_.held.end() ? -1 : static_cast<int>(found - out_.held.begin());
  }

  /// By lane: the last operation that is over when another one is.
  using Over = std::array<int, kLanes>;
  static Over nothing_over() {
    Over over;
    over.fill(-1);
    return over;
  }
  /// Whether `first` is over when `then` is; `then` < 0: never.
  bool is_over(int first, int then) const {
    if (then < 0) return false;
    const Lane lane = out_.operations[static_cast<size_t>(first)].lane();
    return over_[static_cast<size_t>(then)][static_cast<size_t>(lane)] >= first;
  }

  int add(Operation operation) {
    const auto place = static_cast<int>(out_.operations.size());
    std::erase(operation.after, -1);
    if (s_.blocking && place > 0) operation.after = {place - 1};
    int& last = last_of_lane_[static_cast<size_t>(operation.lane())];
    const std::vector<int> waits = operation.after;
    std::erase_if(operation.after, [&](int wait) {  // implied by another one, or by the lane
      return is_over(wait, last) ||
             std::ranges::any_of(waits, [&](int other) { return other != wait && is_over(wait, other); });
    });
    Over over = last < 0 ? nothing_over() : over_[static_cast<size_t>(last)];
    for (const int wait : operation.after)
      for (size_t lane = 0; lane < kLanes; ++lane)
        over[lane] = std::max(over[lane], over_[static_cast<size_t>(wait)][lane]);
    over[static_cast<size_t>(operation.lane())] = last = place;
    over_.push_back(over);
    out_.operations.push_back(std::move(operation));
    return place;
  }

  void flush(int i) { flushed_[static_cast<size_t>(i)] = add({.kind = Kind::flush, .subgroup = i, .gradient = true}); }
  void bring_home(int slot) {
    int& held = out_.held[static_cast<size_t>(slot)];
    drained_[static_cast<size_t>(slot)] = add({.kind = Kind::drain, .subgroup = held, .slot = slot});
    held = -1;
  }
  /// Fills every slot that is free, or will be after a drain that is in the list.
  void load_ahead() {
    while (next_load_ < streamed_.size()) {
      const int i = streamed_[next_load_];
      if (slot_of(i) < 0) {
        if (free_.empty()) return;
        load(i, free_.front());
        free_.pop_front();
      }
      ++next_load_;
    }
  }
  void load(int i, int slot) {
    loads_[static_cast<size_t>(slot)] = add({.kind = Kind::load,
                                             .subgroup = i,
                                             .slot = slot,
                                             .after = {drained_[static_cast<size_t>(slot)]},
                                             .room = s_.share && static_cast<size_t>(slot) < streaming()});
    out_.held[static_cast<size_t>(slot)] = i;
  }
  int update_in(int i, int slot) {
    const int load = loads_[static_cast<size_t>(slot)];
    return add({.kind = Kind::update_device,
                .subgroup = i,
                .slot = slot,
                .after = {load},
                .gradient = s_.early,
                .scalars = !s_.early});
  }
  void update_resident(int i) {
    const int slot = s_.slots + static_cast<int>(std::count(s_.places.begin(), s_.places.begin() + i, Place::resident));
    if (out_.held[static_cast<size_t>(slot)] != i) load(i, slot);
    update_in(i, slot);
  }
  void update_streamed() {
    const int i = streamed_[next_update_++], slot = slot_of(i);
    const int updated = update_in(i, slot);
    const bool last_of_its_slot = next_update_ + streaming() > streamed_.size();
    if (s_.order == config::OffloadOrder::zigzag && last_of_its_slot) return;  // the next step begins with it
    drained_[static_cast<size_t>(slot)] = add({.kind = Kind::drain, .subgroup = i, .slot = slot, .after = {updated}});
    out_.held[static_cast<size_t>(slot)] = -1;
    free_.push_back(slot);
    load_ahead();
  }
  void update_host(int i) {
    const int bounce = s_.bounce ? next_bounce_++ % kBounces : -1;
    const int before = bounce < 0 ? -1 : bounces_[static_cast<size_t>(bounce)];
    const int updated = add({.kind = Kind::update_host,
                             .subgroup = i,
                             .bounce = bounce,
                             .after = {flushed_[static_cast<size_t>(i)], before},
                             .scalars = !s_.early});
    const int sent = add({.kind = Kind::refresh, .subgroup = i, .bounce = bounce, .after = {updated}});
    if (bounce >= 0) bounces_[static_cast<size_t>(bounce)] = sent;
  }

  const Situation& s_;
  Schedule out_;
  std::vector<int> order_, streamed_;       // subgroups
  size_t next_load_ = 0, next_update_ = 0;  // in streamed_
  std::deque<int> free_;                    // slots
  std::vector<Over> over_;                  // by operation, itself included
  Over last_of_lane_ = nothing_over();
  std::vector<int> drained_, loads_;  // by slot: the last such operation
  std::vector<int> flushed_;          // by subgroup
  std::vector<int> bounces_;          // the last refresh from each
  int next_bounce_ = 0;
};

}  // namespace

std::string_view name_of(Kind kind) {
  static constexpr std::string_view names[] = {"gradient",           "load",   "update on the device", "drain",
                                               "update on the host", "refresh"};
  return names[static_cast<size_t>(kind)];
}

std::string_view name_of(Lane lane) {
  static constexpr std::string_view names[] = {"to_host", "to_device", "refresh", "device", "host"};
  return names[static_cast<size_t>(lane)];
}

Lane lane_of(Kind kind) {
  static constexpr Lane lanes[] = {Lane::to_host, Lane::to_device, Lane::device,
                                   Lane::to_host, Lane::host,      Lane::refresh};
  return lanes[static_cast<size_t>(kind)];
}

Schedule schedule(const Situation& situation) {
  Writer writer(situation);
  writer.update();
  return writer.finish();
}

Schedule homecoming(const Situation& situation) {
  Writer writer(situation);
  writer.homecoming();
  return writer.finish();
}

int64_t bytes_of(Kind kind, int64_t elements, const Sizes& sizes) {
  switch (kind) {
    case Kind::flush:
      return sizes.gradient * elements;
    case Kind::load:
    case Kind::drain:
      return 3 * sizes.state * elements;
    case Kind::refresh:
      return sizes.compute * elements;
    case Kind::update_device:
    case Kind::update_host:
      break;
  }
  return 0;
}

Bytes bytes_of(const Schedule& schedule, std::span<const Subgroup> subgroups, const Sizes& sizes) {
  Bytes bytes{};
  for (const Operation& op : schedule.operations)
    bytes[static_cast<size_t>(op.kind)] +=
        bytes_of(op.kind, subgroups[static_cast<size_t>(op.subgroup)].part.count, sizes);
  return bytes;
}

}  // namespace trainer::offload
