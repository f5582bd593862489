#include "offload/engine.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace trainer::offload {
namespace {

constexpr uint32_t kPoison = 0x7fc0dead;

}  // namespace

Engine::Engine(params::ParamStore& store, const config::Optim& optim, const Plan& plan, const Options& options)
    : store_(store),
      optim_(optim),
      plan_(plan),
      options_(options),
      ranges_(store),
      subgroups_(cut(store.groups(), options.subgroup)),
      sizes_{.state = size_of(store.state_dtype()),
             .compute = size_of(store.compute_dtype()),
             .gradient = size_of(store.state_dtype())},
      versions_(subgroups_.size()),
      fresh_(store.groups().size(), 1),
      gathers_(store.groups().size()) {
  plan_.slots = options_.streams ? std::min(plan_.slots, static_cast<int>(subgroups_.size())) : 0;
  places_ = places(plan_, static_cast<int>(subgroups_.size()));
  const auto add_slot = [&](int64_t elements) {
    slots_.push_back({Buffer(store.device(), "optimizer_slots", {3 * elements}, store.state_dtype()), elements});
  };
  for (int slot = 0; slot < plan_.slots; ++slot) add_slot(largest_of(subgroups_));
  for (size_t i = 0; i < places_.size(); ++i)
    if (places_[i] == Place::resident) add_slot(subgroups_[i].part.count);
  for (const params::Group& group : store.groups())
    gradients_.emplace_back(store.home(), "gradients", Shape{group.held.count}, store.state_dtype());
  if (store.compute_dtype() != store.state_dtype())
    for (int i = 0; i < kBounces; ++i)
      bounces_.emplace_back(store.home(), "bounce", Shape{largest_of(subgroups_)}, store.compute_dtype());
  store_.keep_with(this);
  held_ = held_now();
  if (dry()) return;
  for (size_t g = 0; g < store.groups().size(); ++g) marks_.push_back(device::make_mark(store.device()));
  for (int lane = 0; lane < kLanes; ++lane)
    if (static_cast<Lane>(lane) != Lane::host)
      lane_devices_[static_cast<size_t>(lane)] = device::make_lane(store.device());
  lanes_ = std::make_unique<Lanes>([this](const Operation& op) { perform(op); }, subgroups_,
                                   static_cast<int>(store.groups().size()));
}

Engine::~Engine() { store_.keep_with(nullptr); }

Situation Engine::situation() const {
  return {.places = places_,
          .slots = plan_.slots,
          .order = plan_.order,
          .backwards = backwards_,
          .blocking = plan_.blocking,
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
  if (options_.emulated)
    list->emulated_s = play(list->schedule, subgroups_, *options_.emulated, sizes_, bounces(), !plan_.blocking).weights;
  return *lists_.emplace_back(std::move(list));
}

template <typename F>
void Engine::exposed(F&& waiting) {
  const double start = now_seconds();
  waiting();
  exposed_s_ += now_seconds() - start;
}

void Engine::begin_step() {
  exposed_s_ = 0;
  if (dry()) return;
  TRAINER_CHECK(!open_, "a step begins before the last one was updated or discarded");
  current_ = &list_now();
  begun_ = lanes_->start(current_->schedule);
  held_ = current_->schedule.held;
  backwards_ = plan_.order == config::OffloadOrder::zigzag && !backwards_;
  open_ = true;
}

void Engine::gradient_complete(Exec& ex, int group) {
  if (ex.device.dry()) return;
  marks_[static_cast<size_t>(group)]->set();
  lanes_->gradient_complete(group);
  if (plan_.blocking) exposed([&] { lanes_->wait_for_gradient(begun_, group); });
}

void Engine::step(Exec& ex, const optim::Update& update) {
  if (!ex.device.dry()) {
    TRAINER_CHECK(open_, "an update without the beginning of its step");
    update_ = update;
    ++updates_;
    open_ = false;
    stepped_ = begun_;
    newest_ = current_;
    std::ranges::fill(fresh_, char{0});
    lanes_->scalars_known();
    if (plan_.blocking) exposed([&] { lanes_->wait_for_all(stepped_); });
  }
  if (store_.replicas().split_state) gather(ex);
  store_.weights_changed();
}

void Engine::gather(Exec& ex) {
  for (size_t g = 0; g < gathers_.size(); ++g) {
    if (!ex.device.dry()) await(static_cast<int>(g));
    gathers_[g] = store_.gather_weights(ex, static_cast<int>(g));
  }
  for (comm::Ticket& gather : gathers_) gather.join(ex);
}

void Engine::discard() {
  if (!open_) return;
  lanes_->cancel();
  open_ = false;
  for (Slot& slot : slots_)  // loaded and not updated: the host has the same
    if (slot.subgroup >= 0 && slot.version == versions_[static_cast<size_t>(slot.subgroup)]) slot.subgroup = -1;
  held_ = held_now();
}

void Engine::await(int group) {
  char& fresh = fresh_[static_cast<size_t>(group)];
  if (fresh != 0) return;
  exposed([&] { lanes_->wait_for_weights(stepped_, group); });
  fresh = 1;
}

void Engine::settle() {
  discard();  // a step that an error ended
  if (dry() || stepped_ < 0) return;
  lanes_->wait_for_all(stepped_);
  std::ranges::fill(fresh_, char{1});
  held_ = held_now();
  if (std::ranges::all_of(held_, [](int held) { return held < 0; })) return;
  complete(homecoming(situation()));
}

void Engine::forget() {
  if (dry()) return;
  lanes_->recover();
  open_ = false;
  for (Slot& slot : slots_) slot.subgroup = -1;
  held_ = held_now();
  std::ranges::fill(versions_, updates_);
  std::ranges::fill(fresh_, char{1});
}

void Engine::complete(const Schedule& list) {
  const int64_t number = lanes_->start(list);
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
  complete(schedule(left));
  complete(homecoming(situation()));
  std::ranges::fill(fresh_, char{1});
  store_.refresh_compute();
}

void Engine::set_plan(const Plan& plan) {
  TRAINER_CHECK(plan.slots == plan_.slots && plan.resident == plan_.resident,
                "{} slots and {} residents instead of {} and {}", plan.slots, plan.resident, plan_.slots,
                plan_.resident);
  settle();
  plan_ = plan;
  places_ = places(plan_, static_cast<int>(subgroups_.size()));
  backwards_ = false;
  newest_ = current_ = nullptr;
  lists_.clear();
}

Plan Engine::best_plan(const Rates& rates) const {
  Plan plan = plan_;
  plan.device_share = best_share(plan_, subgroups_, rates, sizes_, bounces());
  return plan;
}

Report Engine::report() {
  Report report;
  report.device_share = plan_.device_share;
  report.share = share_of(places_, subgroups_);
  report.exposed_ms = exposed_s_ * 1e3;
  if (newest_ != nullptr) report.bytes = bytes_of(newest_->schedule, subgroups_, sizes_);
  if (newest_ != nullptr) report.emulated_ms = newest_->emulated_s * 1e3;
  if (options_.emulated && !plan_.blocking)
    report.predicted_ms = 1e3 * update_seconds(report.share, static_cast<int64_t>(subgroups_.size()), plan_.slots,
                                               *options_.emulated, sizes_, bounces());
  if (lanes_ != nullptr) report.busy_ms = lanes_->busy();
  for (double& lane : report.busy_ms) lane *= 1e3;
  return report;
}

void Engine::ruin(device::Device& device, const Tensor& tensor) const {
  if (!options_.poison) return;
  std::vector<uint32_t> pattern(static_cast<size_t>(divide_up(tensor.bytes(), int64_t{4})), kPoison);
  device.copy_to_device(tensor.data, pattern.data(), tensor.bytes());
}

void Engine::update(device::Device& device, const Subgroup& subgroup, const Tensor& p, const Tensor& m, const Tensor& v,
                    const Tensor& g, const Tensor& compute) {
  Arena none(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, none, meter};
  ranges_.each(subgroup.group, subgroup.part, [&](comm::Chunk part, bool decay) {
    const auto of = [&](const Tensor& x) { return x.range(part.begin - subgroup.part.begin, part.count); };
    ops::run(ex, ops::AdamW{.p = of(p),
                            .m = of(m),
                            .v = of(v),
                            .g = of(g),
                            .compute = compute ? of(compute) : Tensor{},
                            .scalars = optim::adamw_scalars(optim_, update_, decay)});
  });
}

void Engine::perform(const Operation& op) {
  if (options_.before) options_.before(op);
  const auto index = static_cast<size_t>(op.subgroup);
  const Subgroup& subgroup = subgroups_[index];
  const params::Group& group = group_of(subgroup);
  const int64_t count = subgroup.part.count;
  device::Device& lane = op.lane() == Lane::host ? store_.home() : *lane_devices_[static_cast<size_t>(op.lane())];
  Slot* const slot = op.slot < 0 ? nullptr : &slots_[static_cast<size_t>(op.slot)];
  const Tensor state[] = {group.master_of(subgroup.part), group.m_of(subgroup.part), group.v_of(subgroup.part)};
  const Tensor gradient = group.grad.tensor().range(subgroup.part.begin, count);
  const Tensor on_host =
      gradients_[static_cast<size_t>(subgroup.group)].tensor().range(subgroup.part.begin - group.held.begin, count);
  const Tensor compute = group.compute.tensor().range(subgroup.part.begin, count);
  const Tensor bounce = op.bounce < 0 ? Tensor{} : bounces_[static_cast<size_t>(op.bounce)].tensor().range(0, count);
  const auto expect_version = [&](int64_t version) {
    TRAINER_CHECK(version == updates_ - 1, "subgroup {} of {}: update {} finds the state of update {}", op.subgroup,
                  group.name, updates_, version);
  };
  switch (op.kind) {
    case Kind::flush:
      marks_[static_cast<size_t>(subgroup.group)]->wait();
      lane.copy_to_host(on_host.data, gradient.data, gradient.bytes());
      break;
    case Kind::load:
      for (int which = 0; which < 3; ++which)
        lane.copy_to_device(slot->part(which, count).data, state[which].data, state[which].bytes());
      lane.synchronize();
      slot->subgroup = op.subgroup;
      slot->version = versions_[index];
      break;
    case Kind::update_device:
      TRAINER_CHECK(slot->subgroup == op.subgroup, "slot {} holds subgroup {}, expected {}", op.slot, slot->subgroup,
                    op.subgroup);
      expect_version(slot->version);
      marks_[static_cast<size_t>(subgroup.group)]->wait();
      update(lane, subgroup, slot->part(0, count), slot->part(1, count), slot->part(2, count), gradient,
             bounces() ? compute : Tensor{});
      if (!bounces()) lane.copy_rows(compute.data, 0, slot->part(0, count).data, 0, 1, compute.bytes());
      lane.synchronize();
      slot->version = updates_;
      break;
    case Kind::drain:
      for (int which = 0; which < 3; ++which)
        lane.copy_to_host(state[which].data, slot->part(which, count).data, state[which].bytes());
      versions_[index] = slot->version;
      slot->subgroup = -1;
      ruin(lane, slot->memory);
      break;
    case Kind::update_host:
      expect_version(versions_[index]);
      update(lane, subgroup, state[0], state[1], state[2], on_host, bounce);
      versions_[index] = updates_;
      ruin(lane, on_host);
      break;
    case Kind::refresh:
      lane.copy_to_device(compute.data, bounce ? bounce.data : state[0].data, compute.bytes());
      lane.synchronize();
      if (bounce) ruin(store_.home(), bounce);
      break;
  }
}

}  // namespace trainer::offload
