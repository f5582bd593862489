#include "offload/engine.h"

#include <algorithm>

#include "base/clock.h"

namespace trainer::offload {

Engine::Engine(params::ParamStore& store, const config::Optim& optim, const Plan& plan, const Options& options)
    : store_(store),
      optim_(optim),
      plan_(plan),
      options_(options),
      ranges_(store),
      subgroups_(cut(store.groups(), options.subgroup)),
      sizes_{.state = size_of(store.state_dtype()),
             .compute = size_of(store.compute_dtype()),
             .gradient = size_of(options.round_gradients ? DType::bf16 : store.state_dtype())},
      versions_(subgroups_.size()),
      fresh_(store.groups().size(), 1) {
  plan_.slots = options_.streams ? std::min(plan_.slots, static_cast<int>(subgroups_.size())) : 0;
  plan_.share_activations = shares_activations();
  places_ = places(plan_, static_cast<int>(subgroups_.size()));
  make_slots();
  const DType sent = options_.round_gradients ? DType::bf16 : store.state_dtype();
  for (const params::Group& group : store.groups())
    gradients_.emplace_back(store.home(), "gradients", Shape{group.held.count}, sent);
  if (sent != store.state_dtype()) rounded_ = Buffer(store.device(), "gradients", {largest_of(subgroups_)}, sent);
  if (store.compute_dtype() != store.state_dtype())
    for (int i = 0; i < kBounces; ++i)
      bounces_.emplace_back(store.home(), "bounce", Shape{largest_of(subgroups_)}, store.compute_dtype());
  if (store.replicas().split_state) gathers_.emplace(store);
  store_.keep_with(this);
  rates_ = options_.emulated;
  held_ = held_now();
  if (dry()) return;
  store.device().synchronize();  // the memory above is zeroed before lanes write it
  for (size_t g = 0; g < store.groups().size(); ++g) marks_.push_back(device::make_mark(store.device()));
  room_ = device::make_mark(store.device());
  host_memory_ = device::memory_of(store.device(), store.home());
  if (host_memory_ == device::HostMemory::pageable) {  // the state would crawl through the driver twice a step
    plan_.device_share = {0, 1};
    places_ = places(plan_, static_cast<int>(subgroups_.size()));
  }
  for (int lane = 0; lane < kLanes; ++lane)
    if (static_cast<Lane>(lane) != Lane::host)
      lane_devices_[static_cast<size_t>(lane)] = device::make_lane(store.device(), host_memory_);
  lanes_ =
      std::make_unique<Lanes>(Lanes::Work{.prepare = [this](const Operation& op) { prepare(op); },
                                          .perform = [this](const Operation& op, int64_t list) { perform(op, list); }},
                              subgroups_, static_cast<int>(store.groups().size()));
}

Engine::~Engine() { store_.keep_with(nullptr); }

void Engine::make_slots() {
  const auto add_own = [&](int64_t elements) {
    slots_.push_back({.own = Buffer(store_.device(), "optimizer_slots", {3 * elements}, store_.state_dtype()),
                      .elements = elements});
  };
  for (int slot = 0; slot < plan_.slots; ++slot) {
    if (shares_activations()) {
      slots_.push_back({.elements = largest_of(subgroups_)});
    } else {
      add_own(largest_of(subgroups_));
    }
  }
  if (shares_activations())
    options_.activations->record(kSlotsProgram, [&] {
      std::vector<Scratch> all;
      for (const Slot& slot : slots_) all.push_back(take(slot));
    });
  for (size_t i = 0; i < places_.size(); ++i)
    if (places_[i] == Place::resident) add_own(subgroups_[i].part.count);
}

Scratch Engine::take(const Slot& slot) const {
  return options_.activations->take("optimizer.slot", {3 * slot.elements}, store_.state_dtype());
}

void Engine::take_slots() {
  if (!plan_.share_activations || std::exchange(taken_, true)) return;
  options_.activations->begin(kSlotsProgram);
  for (Slot& slot : slots_)
    if (!slot.own) slot.shared = take(slot);
}

void Engine::give_slots_back() {
  if (!std::exchange(taken_, false)) return;
  for (Slot& slot : slots_) slot.shared.reset();
  options_.activations->end();
}

Situation Engine::situation() const {
  return {.places = places_,
          .slots = plan_.slots,
          .order = plan_.order,
          .backwards = backwards_,
          .blocking = plan_.blocking,
          .early = plan_.early,
          .share = plan_.share_activations,
          .bounce = bounces(),
          .held = held_};
}

Held Engine::held_now() const {
  Held held(slots_.size());
  std::ranges::transform(slots_, held.begin(), &Slot::subgroup);
  return held;
}

const Engine::List& Engine::list_now() {
  for (const std::unique_ptr<List>& list : lists_)
    if (list->held == held_ && list->backwards == backwards_) return *list;
  auto list = std::make_unique<List>(held_, backwards_, schedule(situation()));
  if (options_.emulated) {
    // Early updates run under the backward pass, whose time is not known here: they count as if they began after it.
    const bool hidden = !plan_.blocking && !plan_.early;
    const Timeline line = play(list->schedule, subgroups_, *options_.emulated, sizes_, bounces(), hidden);
    list->emulated_s = plan_.share_activations ? line.all : line.weights;
  }
  return *lists_.emplace_back(std::move(list));
}

template <typename F>
void Engine::exposed(F&& waiting) {
  const double start = now_seconds();
  waiting();
  exposed_s_ += now_seconds() - start;
}

int64_t Engine::start(const Schedule& schedule, const Turn& turn) {
  turn_of(started_++) = turn;
  return lanes_->start(schedule);
}

void Engine::begin_step(const optim::Update& update) {
  exposed_s_ = 0;
  if (dry()) return;
  TRAINER_CHECK(!open_, "a step begins before the last one was updated or discarded");
  TRAINER_CHECK(!torn_, "a step begins after an early update that the norm forbids");
  const List& list = list_now();
  begun_ = start(list.schedule, {update, updates_ + 1, &list});
  held_ = list.schedule.held;
  backwards_ = plan_.order == config::OffloadOrder::zigzag && !backwards_;
  open_ = true;
}

void Engine::gradient_complete(Exec& ex, int group) {
  if (ex.device.dry()) return;
  marks_[static_cast<size_t>(group)]->set();
  lanes_->gradient_complete(group);
  if (plan_.blocking) exposed([&] { lanes_->wait_for_gradient(begun_, group); });
}

void Engine::enter_activations() {
  if (dry() || !open_) return;
  take_slots();
  room_->set();
  lanes_->room_free();
}

void Engine::leave_activations() {
  if (!taken_) return;
  if (stepped_ >= 0) exposed([&] { lanes_->wait_for_slots(stepped_); });
  give_slots_back();
}

void Engine::step(Exec& ex, const optim::Update& update) {
  if (!ex.device.dry()) {
    TRAINER_CHECK(open_, "an update without the beginning of its step");
    TRAINER_CHECK(!plan_.early || update.gradient_scale == 1, "gradients of an early update are scaled by {}",
                  update.gradient_scale);
    Turn& turn = turn_of(begun_);
    if (!plan_.early) turn.update = update;
    newest_update_ = turn.update;
    updates_ = turn.number;
    open_ = false;
    stepped_ = begun_;
    newest_ = turn.list;
    std::ranges::fill(fresh_, char{0});
    lanes_->scalars_known();
    if (plan_.blocking) exposed([&] { lanes_->wait_for_all(stepped_); });
  }
  if (gathers_) gathers_->begin(ex);
  store_.weights_changed();
  if (ex.device.dry() || !plan_.blocking) return;
  for (int group = 0; group < static_cast<int>(fresh_.size()); ++group) await(group);
}

void Engine::discard() {
  if (!open_) return;
  lanes_->cancel();
  open_ = false;
  torn_ |= std::ranges::any_of(versions_, [&](int64_t version) { return version > updates_; });
  for (Slot& slot : slots_) {
    if (slot.subgroup < 0) continue;
    torn_ |= slot.version > updates_;
    // Loaded and not updated: the host has the same.
    if (slot.version == versions_[static_cast<size_t>(slot.subgroup)]) slot.subgroup = -1;
  }
  held_ = held_now();
}

void Engine::await(int group) {
  char& fresh = fresh_[static_cast<size_t>(group)];
  if (fresh != 0) return;
  exposed([&] {
    const auto wait = [this](int each) { lanes_->wait_for_weights(stepped_, each); };
    if (gathers_) {
      gathers_->finish(group, wait);
    } else {
      wait(group);
    }
  });
  fresh = 1;
}

void Engine::settle() {
  discard();  // a step that an error ended
  TRAINER_CHECK(!torn_, "the optimizer's state is asked for after an early update that the norm forbids");
  if (dry() || stepped_ < 0) return;
  lanes_->wait_for_all(stepped_);
  held_ = held_now();
  if (std::ranges::all_of(held_, [](int held) { return held < 0; })) return;
  complete(homecoming(situation()));
}

void Engine::forget() {
  if (dry()) return;
  lanes_->recover();
  if (gathers_) gathers_->drop();
  give_slots_back();
  open_ = torn_ = false;
  for (Slot& slot : slots_) slot.subgroup = -1;
  held_ = held_now();
  std::ranges::fill(versions_, updates_);
  std::ranges::fill(fresh_, char{1});
}

void Engine::complete(const Schedule& list) {
  const int64_t number = start(list, {newest_update_, updates_, nullptr});
  for (int group = 0; group < static_cast<int>(fresh_.size()); ++group) lanes_->gradient_complete(group);
  lanes_->scalars_known();
  lanes_->wait_for_all(number);
  held_ = held_now();
}

void Engine::resume_step() {
  lanes_->recover();
  open_ = false;
  held_ = held_now();
  Situation left = situation();
  left.done.assign(subgroups_.size(), 0);
  for (size_t i = 0; i < subgroups_.size(); ++i) left.done[i] = versions_[i] == updates_;
  for (const Slot& slot : slots_)
    if (slot.subgroup >= 0 && slot.version == updates_) left.done[static_cast<size_t>(slot.subgroup)] = 1;
  take_slots();
  complete(schedule(left));
  complete(homecoming(situation()));
  if (gathers_) gathers_->drop();
  std::ranges::fill(fresh_, char{1});
  store_.refresh_compute();
}

void Engine::set_plan(const Plan& plan) {
  TRAINER_CHECK(plan.slots == plan_.slots && plan.resident == plan_.resident,
                "{} slots and {} residents instead of {} and {}", plan.slots, plan.resident, plan_.slots,
                plan_.resident);
  settle();
  plan_ = plan;
  if (host_memory_ == device::HostMemory::pageable) plan_.device_share = {0, 1};
  plan_.share_activations = shares_activations();
  places_ = places(plan_, static_cast<int>(subgroups_.size()));
  backwards_ = false;
  newest_ = nullptr;
  lists_.clear();
}

void Engine::use_rates(const Rates& rates) {
  rates_ = rates;
  Plan plan = plan_;
  plan.device_share = best_share(plan_, subgroups_, rates, sizes_, bounces());
  set_plan(plan);
}

void Engine::record(bool on) {
  if (lanes_ != nullptr) lanes_->record(on);
}

std::vector<Done> Engine::recorded() {
  if (lanes_ == nullptr) return {};
  if (stepped_ >= 0) lanes_->wait_for_all(stepped_);
  return lanes_->recorded();
}

Report Engine::report() {
  Report report;
  report.device_share = plan_.device_share;
  report.share = share_of(places_, subgroups_);
  report.exposed_ms = exposed_s_ * 1e3;
  if (newest_ != nullptr) report.bytes = bytes_of(newest_->schedule, subgroups_, sizes_);
  if (newest_ != nullptr) report.emulated_ms = newest_->emulated_s * 1e3;
  if (rates_ && !plan_.blocking && !plan_.early)
    report.predicted_ms = 1e3 * update_seconds(report.share, static_cast<int64_t>(subgroups_.size()), plan_.slots,
                                               *rates_, sizes_, bounces(), plan_.share_activations);
  if (lanes_ == nullptr) return report;
  const Measured measured = lanes_->measured();
  report.update_ms = 1e3 * measured.update_s;
  for (int kind = 0; kind < kKinds; ++kind)
    report.busy_ms[static_cast<size_t>(lane_of(static_cast<Kind>(kind)))] +=
        1e3 * measured.busy[static_cast<size_t>(kind)];
  const double updating = measured.busy[static_cast<size_t>(Kind::update_host)];
  if (rates_ && !options_.emulated && updating > 0) {
    const double bytes = host_traffic(*rates_, sizes_, bounces()) - static_cast<double>(sizes_.compute);
    report.memory_share = bytes * static_cast<double>(report.share.host) / (updating * rates_->memory);
  }
  return report;
}

}  // namespace trainer::offload
