#include "offload/engine.h"

#include <algorithm>

#include "base/clock.h"

namespace trainer::offload {

Engine::Engine(params::ParamStore& store, const optim::ElementwiseRule& rule, const Placement& placement,
               const Options& options)
    : store_(store),
      rule_(rule),
      states_(rule.states()),
      placement_(placement),
      options_(options),
      selection_(store),
      subgroups_(cut(store.groups(), options.subgroup)),
      sizes_(sizes_of(store, rule, options.round_gradients)),
      versions_(subgroups_.size()),
      fresh_(store.groups().size(), 1) {
  placement_.slots = std::min(placement_.slots, static_cast<int>(subgroups_.size()));
  residencies_ = residencies(placement_, static_cast<int>(subgroups_.size()));
  make_slots();
  const DType sent = options_.round_gradients ? DType::bf16 : store.state_dtype();
  for (const params::Group& group : store.groups())
    gradients_.emplace_back(store.home(), "gradients", Shape{group.held.count}, sent);
  if (sent != store.state_dtype()) rounded_ = Buffer(store.device(), "gradients", {largest_of(subgroups_)}, sent);
  if (sizes_.bounces())
    for (int i = 0; i < kBounces; ++i)
      bounces_.emplace_back(store.home(), "bounce", Shape{largest_of(subgroups_)}, store.compute_dtype());
  if (store.replicas().split_state) gathers_.emplace(store);
  store_.set_state_owner(this);
  if (dry()) return;
  store.device().synchronize();  // the memory above must be zeroed before streams write to it
  for (size_t g = 0; g < store.groups().size(); ++g) events_.push_back(device::make_event(store.device()));
  host_memory_ = device::memory_of(store.device(), store.home());
  if (host_memory_ == device::HostMemory::pageable) {  // streaming would be slow: it copies the state twice per step
    placement_.device_share = {0, 1};
    residencies_ = residencies(placement_, static_cast<int>(subgroups_.size()));
  }
  make_lists();
  for (int stream = 0; stream < kStreams; ++stream)
    if (static_cast<Stream>(stream) != Stream::host)
      stream_devices_[static_cast<size_t>(stream)] = device::make_stream(store.device(), host_memory_);
  streams_ = std::make_unique<Streams>(
      Streams::Work{.prepare = [this](const Operation& op) { prepare(op); },
                    .perform = [this](const Operation& op, int64_t list) { perform(op, list); }},
      subgroups_, static_cast<int>(store.groups().size()));
}

Engine::~Engine() { store_.set_state_owner(nullptr); }

void Engine::make_slots() {
  const auto add = [&](int64_t elements) {
    slots_.push_back({.memory = Buffer(store_.device(), "optimizer_slots", {sizes_.kept() * elements}, DType::u8),
                      .elements = elements});
  };
  for (int slot = 0; slot < placement_.slots; ++slot) add(largest_of(subgroups_));
  for (size_t i = 0; i < residencies_.size(); ++i)
    if (residencies_[i] == Residency::resident) add(subgroups_[i].part.count);
}

void Engine::make_lists() {
  for (const bool loaded : {false, true}) {
    List& list = lists_[loaded];
    list.schedule = schedule({.residencies = residencies_,
                              .slots = placement_.slots,
                              .blocking = placement_.blocking,
                              .bounce = sizes_.bounces(),
                              .loaded = loaded});
    if (options_.emulated)
      list.emulated_s = play(list.schedule, subgroups_, *options_.rates, sizes_, /*hidden=*/!placement_.blocking);
  }
}

template <typename F>
void Engine::exposed(F&& waiting) {
  const double start = now_seconds();
  waiting();
  exposed_s_ += now_seconds() - start;
}

int64_t Engine::start(const Schedule& schedule, const Turn& turn) {
  turn_of(started_++) = turn;
  return streams_->start(schedule);
}

void Engine::begin_step() {
  exposed_s_ = 0;
  if (dry()) return;
  TRAINER_CHECK(open_ == nullptr, "a step must not begin before the previous step was updated or discarded");
  open_ = &lists_[loaded_];
  begun_ = start(open_->schedule, {{}, updates_ + 1});
}

void Engine::gradient_complete(Exec& ex, int group) {
  if (ex.device.dry()) return;
  events_[static_cast<size_t>(group)]->set();
  streams_->gradient_complete(group);
  if (placement_.blocking) exposed([&] { streams_->wait_for_gradient(begun_, group); });
}

void Engine::step(Exec& ex, const optim::Update& update) {
  if (!ex.device.dry()) {
    TRAINER_CHECK(open_ != nullptr, "step() must follow begin_step()");
    turn_of(begun_).update = update;
    ++updates_;
    loaded_ = true;
    stepped_ = begun_;
    newest_ = std::exchange(open_, nullptr);
    std::ranges::fill(fresh_, char{0});
    streams_->norm_known();
    if (placement_.blocking) exposed([&] { streams_->wait_for_all(stepped_); });
  }
  if (gathers_) gathers_->begin(ex);
  store_.weights_changed();
  if (ex.device.dry() || !placement_.blocking) return;
  for (int group = 0; group < static_cast<int>(fresh_.size()); ++group) await(group);
}

void Engine::discard() {
  if (std::exchange(open_, nullptr) != nullptr) streams_->cancel();
}

void Engine::await(int group) {
  char& fresh = fresh_[static_cast<size_t>(group)];
  if (fresh != 0) return;
  exposed([&] {
    const auto wait = [this](int each) { streams_->wait_for_weights(stepped_, each); };
    if (gathers_) {
      gathers_->finish(group, wait);
    } else {
      wait(group);
    }
  });
  fresh = 1;
}

void Engine::settle() {
  discard();  // a step may have been interrupted by an error
  if (dry() || stepped_ < 0) return;
  streams_->wait_for_all(stepped_);
  if (!std::exchange(loaded_, false)) return;
  if (const Schedule home = write_back(residencies_, placement_.slots); !home.empty())
    streams_->wait_for_all(start(home, {}));
}

void Engine::forget() {
  if (dry()) return;
  streams_->recover();
  if (gathers_) gathers_->drop();
  open_ = nullptr;
  loaded_ = false;
  std::ranges::fill(versions_, updates_);
  std::ranges::fill(fresh_, char{1});
}

void Engine::record(bool on) {
  if (streams_ != nullptr) streams_->record(on);
}

std::vector<Done> Engine::recorded() {
  if (streams_ == nullptr) return {};
  if (stepped_ >= 0) streams_->wait_for_all(stepped_);
  return streams_->recorded();
}

Report Engine::report() {
  Report report;
  report.device_share = placement_.device_share;
  report.share = share_of(residencies_, subgroups_);
  report.exposed_ms = exposed_s_ * 1e3;
  if (newest_ != nullptr) report.bytes = bytes_of(newest_->schedule, subgroups_, sizes_);
  if (newest_ != nullptr) report.emulated_ms = newest_->emulated_s * 1e3;
  const std::optional<Rates>& rates = options_.rates;
  if (rates && !placement_.blocking) report.predicted_ms = 1e3 * update_seconds(placement_, subgroups_, *rates, sizes_);
  if (streams_ == nullptr) return report;
  const Measured measured = streams_->measured();
  report.update_ms = 1e3 * measured.update_s;
  for (int kind = 0; kind < kOperationKinds; ++kind)
    report.busy_ms[static_cast<size_t>(stream_of(static_cast<OperationKind>(kind)))] +=
        1e3 * measured.busy[static_cast<size_t>(kind)];
  const double updating = measured.busy[static_cast<size_t>(OperationKind::update_host)];
  if (rates && !options_.emulated && updating > 0) {
    const double bytes = host_traffic(*rates, sizes_) - static_cast<double>(sizes_.compute);
    report.memory_share = bytes * static_cast<double>(report.share.host) / (updating * rates->memory);
  }
  return report;
}

}  // namespace trainer::offload
