#pragma once
// Engine: keeps the optimizer state in host memory and updates it there or on the device, concurrently with the steps.
//
// Placement. Master weights and states are in the groups' buffers, in host memory (ParamStore::keep_state_on). There
// is one copy, whichever device updates it. Compute weights and gradients of all groups stay in device memory. The
// device has slots, each for the state of one subgroup at a time. The host has buffers for gradients in transit, and
// three bounce buffers if the compute weights' type differs from the master weights'. All of this is allocated at
// construction, and nothing later.
//
// Schedule. A step's update is a list of operations, a pure function of the placement and of whether residents are in
// their slots (schedule.h). The list is started at the beginning of the step. Slots are filled during the forward pass,
// gradients are copied to the host during the backward pass as groups become complete, and updates begin when the norm
// is known. The next forward pass waits for each group's weights when it first reads them (ParamStore's StateOwner).
// Drains may end even later. Only the waits between operations ensure that data is in place. There are five streams: to
// the host, to the device, compute weights to the device, updates on the device, updates on the host. Each stream is a
// thread with its own work queue on the device (device::make_stream), so the code is the same for CPU and GPU.
//
// Versions. Each subgroup's host copy and each slot record the number of their last update. It is an internal error if
// an update finds any state but that of the previous update. A checkpoint is written from the groups' buffers after
// settle(), so it does not depend on the placement.
//
// On an emulated device (debug.emulate_device), time is that of a virtual clock, which simulates the same list at given
// rates (clock.h). The operations are executed, but the time they take on this machine says nothing about the emulated
// device.
#include <memory>
#include <optional>

#include "device/stream.h"
#include "offload/clock.h"
#include "offload/lazy_gathers.h"
#include "offload/streams.h"

namespace trainer::offload {

/// A report on the step whose update began last.
struct Report {
  Share share;
  config::Fraction device_share;
  Bytes bytes{};                           // bytes copied in that step, by kind of operation
  double exposed_ms = 0;                   // time that the compute thread has waited for updates since the step began
  double update_ms = 0;                    // from known gradient norm to updated weights; last completed list; 0: none
  double predicted_ms = 0;                 // update_seconds() at the rates in use; 0: rates unknown
  double emulated_ms = 0;                  // the same on the virtual clock; 0: no device is emulated
  std::array<double, kStreams> busy_ms{};  // busy time on this machine; last completed list
  double memory_share = 0;                 // updates on the host: share of the measured memory bandwidth; 0: unknown
};

class Engine final : public optim::Optimizer, public params::StateOwner {
 public:
  struct Options {
    int64_t subgroup = 100'000'000;   // maximum number of elements
    bool round_gradients = false;     // gradients are sent to the host in bf16; the rule must round them, too
    std::optional<Rates> rates = {};  // used to predict update times
    bool emulated = false;            // the rates are those of the emulated device
    /// For tests: called before each operation, on the thread of its stream; an exception counts as the operation's.
    std::function<void(const Operation&)> before = {};
    bool poison = false;  // for tests: overwrites memory that must no longer be read
  };
  /// `store` and `rule` must outlive the engine. The rule updates all parameters. The store must be allocated, with its
  /// state in the memory of store.home(). On a dry device, memory is only counted.
  Engine(params::ParamStore& store, const optim::ElementwiseRule& rule, const Placement& placement,
         const Options& options);
  ~Engine() override;

  void begin_step() override;
  void gradient_complete(Exec& ex, int group) override;
  void step(Exec& ex, const optim::Update& update) override;
  void discard() override;

  void await(int group) override;
  void settle() override;
  void forget() override;

  const Options& options() const { return options_; }
  const Placement& placement() const { return placement_; }
  const std::vector<Subgroup>& subgroups() const { return subgroups_; }
  const std::vector<Residency>& where() const { return residencies_; }
  const Sizes& sizes() const { return sizes_; }
  device::HostMemory host_memory() const { return host_memory_; }
  Report report();
  /// Starts or stops recording the times at which operations begin and end.
  void record(bool on);
  /// Waits for the newest update; returns the recorded operations and clears them.
  std::vector<Done> recorded();

 private:
  struct Slot {
    Buffer memory;  // master weights and states, side by side
    int64_t elements = 0;
    int subgroup = -1;
    int64_t version = 0;
  };
  const params::Group& group_of(const Subgroup& subgroup) const {
    return store_.groups()[static_cast<size_t>(subgroup.group)];
  }
  bool dry() const { return store_.device().dry(); }
  void make_slots();
  void make_lists();
  /// Master weights and the rule's states, in their order. An array, so that steps do not allocate memory.
  struct Kept {
    std::array<Tensor, 1 + optim::kMostStates> tensors;
    size_t count = 0;
    void add(const Tensor& tensor) { tensors.at(count++) = tensor; }
    const Tensor& master() const { return tensors[0]; }
    std::span<const Tensor> all() const { return {tensors.data(), count}; }
    std::span<const Tensor> states() const { return all().subspan(1); }
  };
  /// Returns those of a subgroup in the groups' buffers, and in a slot.
  Kept kept_of(const Subgroup& subgroup) const;
  Kept kept_in(const Slot& slot, int64_t count) const;
  /// The list of operations for a step.
  struct List {
    Schedule schedule;
    double emulated_s = 0;
  };
  /// The update that a list performs.
  struct Turn {
    optim::Update update;
    int64_t number = 0;  // from the start of the run
  };
  Turn& turn_of(int64_t list) { return turns_[static_cast<size_t>(list) % turns_.size()]; }
  int64_t start(const Schedule& schedule, const Turn& turn);
  template <typename F>
  void exposed(F&& waiting);

  // operations.cpp
  void prepare(const Operation& op);
  void perform(const Operation& op, int64_t list);
  void flush(const Subgroup& subgroup, const Tensor& gradient, const Tensor& on_host);
  void update(device::Device& device, const Turn& turn, const Subgroup& subgroup, const Kept& kept,
              const Tensor& gradient, const Tensor& compute);
  void expect_version(const Operation& op, int64_t version, const Turn& turn) const;
  void poison(device::Device& device, const Tensor& tensor) const;

  params::ParamStore& store_;
  const optim::ElementwiseRule& rule_;
  const std::vector<params::StateSpec> states_;
  Placement placement_;
  const Options options_;
  const optim::Selection selection_;
  const std::vector<Subgroup> subgroups_;
  Sizes sizes_;
  std::vector<Residency> residencies_;

  std::vector<Slot> slots_;                  // slots for streaming, then the residents' slots
  std::vector<Buffer> gradients_, bounces_;  // on the host: this rank's gradients by group; compute weights in transit
  Buffer rounded_;                           // on the device: a subgroup's gradient in the type in which it is sent
  std::vector<int64_t> versions_;            // by subgroup: number of the last update of the host's copy
  int64_t updates_ = 0;                      // number of updates begun
  std::array<Turn, 3> turns_;                // turns of the two lists that may be running, and of the next list
  device::HostMemory host_memory_ = device::HostMemory::plain;
  std::vector<std::unique_ptr<device::Event>> events_;                    // by group: the group's gradient is complete
  std::array<std::unique_ptr<device::Device>, kStreams> stream_devices_;  // null: the host
  std::array<List, 2> lists_;                                             // the lists of a step, by loaded_
  const List* newest_ = nullptr;                                          // the list of the last update
  const List* open_ = nullptr;  // the list that has started without its update
  std::vector<char> fresh_;     // by group: the compute weights include the last update
  std::optional<LazyGathers> gathers_;
  int64_t started_ = 0;                // number of lists started
  int64_t begun_ = -1, stepped_ = -1;  // the lists of this step and of the last update
  bool loaded_ = false;                // the residents' state will be in their slots after the updates begun so far
  double exposed_s_ = 0;
  std::unique_ptr<Streams> streams_;  // declared last, since its threads use all of the above
};

}  // namespace trainer::offload
