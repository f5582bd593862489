#include "offload/schedule.h"

#include <algorithm>
#include <utility>

namespace trainer::offload {
namespace {

/// Computes the list of a step.
class Writer {
 public:
  explicit Writer(const Situation& s) : s_(s), drained_(static_cast<size_t>(s.slots), -1), bounces_(kBounces, -1) {
    for (int i = 0; i < count(); ++i)
      if (place(i) == Residency::streamed) streamed_.push_back(i);
    // Gradients arrive from the last group to the first.
    for (int i = count() - 1; i >= 0; --i)
      if (place(i) == Residency::host) flushed_ = add({.kind = OperationKind::flush, .subgroup = i});
    load_ahead();
    for (int i = 0; i < count(); ++i) {
      if (place(i) == Residency::host) update_host(i);
      if (place(i) == Residency::resident) update_resident(i);
      if (place(i) == Residency::streamed) update_streamed(i);
    }
  }

  Schedule finish() { return std::move(out_); }

 private:
  int count() const { return static_cast<int>(s_.residencies.size()); }
  Residency place(int i) const { return s_.residencies[static_cast<size_t>(i)]; }

  int add(Operation operation) {
    const auto place = static_cast<int>(out_.size());
    std::erase(operation.after, -1);
    if (s_.blocking) {
      operation.after.clear();
      if (place > 0 && out_.back().stream() != operation.stream()) operation.after = {place - 1};
    }
    out_.push_back(std::move(operation));
    return place;
  }
  int load(int i, int slot, int drained) {
    return add({.kind = OperationKind::load, .subgroup = i, .slot = slot, .after = {drained}});
  }
  int update_in(int i, int slot, int loaded) {
    // An earlier update has waited for this load or a later one.
    if (loaded <= std::exchange(loaded_, std::max(loaded, loaded_))) loaded = -1;
    return add({.kind = OperationKind::update_device, .subgroup = i, .slot = slot, .after = {loaded}});
  }

  /// Adds loads into every slot that is free, or that a drain in the list will free.
  void load_ahead() {
    while (loads_.size() < std::min(streamed_.size(), updated_ + drained_.size())) {
      const size_t slot = loads_.size() % drained_.size();
      loads_.push_back(load(streamed_[loads_.size()], static_cast<int>(slot), drained_[slot]));
    }
  }
  void update_streamed(int i) {
    const size_t slot = updated_ % drained_.size();
    const int updated = update_in(i, static_cast<int>(slot), loads_[updated_++]);
    drained_[slot] =
        add({.kind = OperationKind::drain, .subgroup = i, .slot = static_cast<int>(slot), .after = {updated}});
    load_ahead();
  }
  void update_resident(int i) {
    const int slot = s_.slots + i;
    update_in(i, slot, s_.loaded ? -1 : load(i, slot, -1));
  }
  void update_host(int i) {
    const int bounce = s_.bounce ? next_bounce_++ % kBounces : -1;
    const int sent_before = bounce < 0 ? -1 : bounces_[static_cast<size_t>(bounce)];
    const int flushed = std::exchange(flushed_, -1);  // the first update waits for all flushes, so later ones need not
    const int updated =
        add({.kind = OperationKind::update_host, .subgroup = i, .bounce = bounce, .after = {flushed, sent_before}});
    const int sent = add({.kind = OperationKind::refresh, .subgroup = i, .bounce = bounce, .after = {updated}});
    if (bounce >= 0) bounces_[static_cast<size_t>(bounce)] = sent;
  }

  const Situation& s_;
  Schedule out_;
  int flushed_ = -1;           // the last flush
  std::vector<int> streamed_;  // subgroups
  std::vector<int> loads_;     // loads of the streamed subgroups
  int loaded_ = -1;            // the last load that an update waits for
  size_t updated_ = 0;         // number of streamed subgroups updated
  std::vector<int> drained_;   // by slot: its last drain
  std::vector<int> bounces_;   // by bounce buffer: the last refresh from it
  int next_bounce_ = 0;
};

}  // namespace

std::string_view name_of(OperationKind kind) {
  static constexpr std::string_view names[] = {"gradient",           "load",   "update on the device", "drain",
                                               "update on the host", "refresh"};
  return names[static_cast<size_t>(kind)];
}

std::string_view name_of(Stream stream) {
  static constexpr std::string_view names[] = {"to_host", "to_device", "refresh", "device", "host"};
  return names[static_cast<size_t>(stream)];
}

Stream stream_of(OperationKind kind) {
  static constexpr Stream streams[] = {Stream::to_host, Stream::to_device, Stream::device,
                                       Stream::to_host, Stream::host,      Stream::refresh};
  return streams[static_cast<size_t>(kind)];
}

Schedule schedule(const Situation& situation) { return Writer(situation).finish(); }

Schedule write_back(std::span<const Residency> residencies, int slots) {
  Schedule list;
  for (int i = 0; i < static_cast<int>(residencies.size()); ++i)
    if (residencies[static_cast<size_t>(i)] == Residency::resident)
      list.push_back({.kind = OperationKind::drain, .subgroup = i, .slot = slots + i, .after = {}});
  return list;
}

Sizes sizes_of(const params::ParamStore& store, const optim::Rule& rule, bool round_gradients) {
  return {.master = size_of(store.state_dtype()),
          .states = optim::state_bytes(rule),
          .compute = size_of(store.compute_dtype()),
          .gradient = size_of(round_gradients ? DType::bf16 : store.state_dtype())};
}

int64_t bytes_of(OperationKind kind, int64_t elements, const Sizes& sizes) {
  switch (kind) {
    case OperationKind::flush:
      return sizes.gradient * elements;
    case OperationKind::load:
    case OperationKind::drain:
      return sizes.kept() * elements;
    case OperationKind::refresh:
      return sizes.compute * elements;
    case OperationKind::update_device:
    case OperationKind::update_host:
      break;
  }
  return 0;
}

Bytes bytes_of(const Schedule& schedule, std::span<const Subgroup> subgroups, const Sizes& sizes) {
  Bytes bytes{};
  for (const Operation& op : schedule)
    bytes[static_cast<size_t>(op.kind)] +=
        bytes_of(op.kind, subgroups[static_cast<size_t>(op.subgroup)].part.count, sizes);
  return bytes;
}

}  // namespace trainer::offload
