#pragma once
// Engine: the optimizer's state in host memory, updated there or on the device, beside the steps.
//
// Where things are. Master weights and moments are in the groups' buffers, in host memory (ParamStore::keep_state_on):
// one copy, whoever updates it. Compute weights and gradients of all groups stay in device memory. The device lends
// slots, each for the state of one subgroup at a time; the host has room for gradients on their way, and three bounce
// buffers where compute weights are of another type. Nothing else is allocated, and nothing after construction.
//
// What is done, and when. A step's update is a list of operations, a pure function of the plan and of what slots hold
// (schedule.h), which is started at the beginning of the step: slots are filled under the forward pass, gradients go to
// the host under the backward pass as groups become complete, updates begin with the norm, and the next forward pass
// waits for each group's weights when it first reads them (ParamStore's Keeper). Drains may end later still. Whether a
// byte is where somebody expects it is decided by waits between operations alone: five lanes (to the host, to the
// device, compute weights to the device, updates of the device, updates of the host), each a thread with an order of
// its own on the device (device::make_lane), so that CPU and GPU differ in nothing here.
//
// Versions. Each subgroup's host copy and each slot know of which update they are. An update finds the state of the
// update before it, or the program stops; when an operation fails between subgroups, resume_step() updates exactly
// those that have not been. A checkpoint is written from the groups' buffers after settle(), so that it knows no plan.
//
// Time on an emulated device (debug.emulate_device) is that of a virtual clock which plays the same list at stated
// rates (clock.h): the operations are really done, but how long they took here says nothing about a device.
#include <memory>
#include <optional>

#include "device/lane.h"
#include "offload/clock.h"
#include "offload/lanes.h"
#include "optim/adamw.h"

namespace trainer::offload {

/// Of the step whose update began last.
struct Report {
  Share share;
  config::Fraction device_share;
  Bytes bytes{};                         // of its list, by kind
  double exposed_ms = 0;                 // that the computing thread waited for updates, since that step's beginning
  double predicted_ms = 0;               // update_seconds(), at the rates in use; 0: none are known
  double emulated_ms = 0;                // on the virtual clock; 0: no device is emulated
  std::array<double, kLanes> busy_ms{};  // at work here, of the newest list that is done
};

class Engine final : public optim::Optimizer, public params::Keeper {
 public:
  struct Options {
    int64_t subgroup = 100'000'000;      // elements, at most
    bool streams = false;                // some may be streamed: slots are taken
    std::optional<Rates> emulated = {};  // of the device that is emulated
    /// Tests: called before each operation, on its lane's thread; an exception is the operation's.
    std::function<void(const Operation&)> before = {};
    bool poison = false;  // tests: what nobody should read any more is overwritten
  };
  /// store and optim outlive it; the store is allocated, and its state is in the memory of store.home(). On a dry
  /// device memory is counted and nothing is done.
  Engine(params::ParamStore& store, const config::Optim& optim, const Plan& plan, const Options& options);
  ~Engine() override;

  void begin_step() override;
  void gradient_complete(Exec& ex, int group) override;
  /// With ZeRO-1 each replica's weights are with all others on return.
  void step(Exec& ex, const optim::Update& update) override;
  void discard() override;

  void await(int group) override;
  void settle() override;
  void forget() override;

  /// After an operation of a step threw: does for every subgroup what that step has not done yet, and returns when all
  /// weights and all state are new.
  void resume_step();
  /// Between steps. Slots and residents stay as many as they are.
  void set_plan(const Plan& plan);

  const Options& options() const { return options_; }
  const Plan& plan() const { return plan_; }
  const std::vector<Subgroup>& subgroups() const { return subgroups_; }
  const std::vector<Place>& where() const { return places_; }
  const Sizes& sizes() const { return sizes_; }
  bool bounces() const { return !bounces_.empty(); }
  /// The best share streamed at these rates, as a plan.
  Plan best_plan(const Rates& rates) const;
  Report report();

 private:
  struct Slot {
    Buffer memory;  // p, m, v side by side
    int64_t elements = 0;
    int subgroup = -1;
    int64_t version = 0;
    Tensor part(int which, int64_t count) const { return memory.tensor().range(which * elements, count); }
  };
  const params::Group& group_of(const Subgroup& subgroup) const {
    return store_.groups()[static_cast<size_t>(subgroup.group)];
  }
  bool dry() const { return store_.device().dry(); }
  Situation situation() const;
  /// A step's list and what it was made for.
  struct List {
    Held held;
    bool backwards = false;
    Schedule schedule;
    double emulated_s = 0;
  };
  const List& list_now();
  /// What slots hold, when nothing is under way.
  Held held_now() const;
  void perform(const Operation& op);
  void update(device::Device& device, const Subgroup& subgroup, const Tensor& p, const Tensor& m, const Tensor& v,
              const Tensor& g, const Tensor& compute);
  void ruin(device::Device& device, const Tensor& tensor) const;
  /// Runs a list to its end, with gradients and scalars at hand.
  void complete(const Schedule& schedule);
  void gather(Exec& ex);
  template <typename F>
  void exposed(F&& waiting);

  params::ParamStore& store_;
  const config::Optim& optim_;
  Plan plan_;
  const Options options_;
  const optim::DecayRanges ranges_;
  const std::vector<Subgroup> subgroups_;
  Sizes sizes_;
  std::vector<Place> places_;

  std::vector<Slot> slots_;                  // for streaming, then of residents
  std::vector<Buffer> gradients_, bounces_;  // on the host: by group, what is held; of compute type
  std::vector<int64_t> versions_;            // by subgroup, of the host's copy: number of the update since the start
  int64_t updates_ = 0;                      // begun
  optim::Update update_;                     // the newest
  std::vector<std::unique_ptr<device::Mark>> marks_;                  // by group: its gradient is complete
  std::array<std::unique_ptr<device::Device>, kLanes> lane_devices_;  // null: the host
  std::vector<std::unique_ptr<List>> lists_;                          // of this plan
  const List* newest_ = nullptr;                                      // of the last update
  std::vector<char> fresh_;  // by group: its compute weights are those of the last update
  std::vector<comm::Ticket> gathers_;
  int64_t begun_ = -1, stepped_ = -1;  // the lists of this step and of the last update
  bool open_ = false;                  // a list was started that no update has come for
  bool backwards_ = false;             // of the next list
  const List* current_ = nullptr;
  Held held_;  // after the lists started so far
  double exposed_s_ = 0;
  std::unique_ptr<Lanes> lanes_;  // last: its threads use all of the above
};

}  // namespace trainer::offload
