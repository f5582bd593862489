#include "comm/engine_world.h"

#include <algorithm>
#include <tuple>

#include "comm/stage_names.h"
#include "device/pages.h"
#include "tensor/buffer.h"

namespace trainer::comm {
namespace {

constexpr double kExitTimeoutAfterFailure = 2;

class EngineCommunicator final : public Communicator {
 public:
  EngineCommunicator(Engine& engine, device::Device& device, Group group, Purpose purpose)
      : Communicator(std::move(group)),
        engine_(engine),
        kernels_(reduce_kernels(device.kind() == device::DeviceKind::cpu ? device.isa() : device::detect_isa())) {
    if (size() == 1) return;
    channel_ = &engine.channel(this->group(), purpose);
    if (this->group().link > 0) return;  // messages need no staging
    if (device.kind() == device::DeviceKind::cpu) {
      staging_ = Buffer(device, device::kMessageMemory, {kStagingBytes}, DType::u8);
    } else if (!device.dry()) {
      host_staging_.resize(static_cast<size_t>(kStagingBytes));
    }
    staging_memory_ = host_staging_.empty() ? staging_.tensor().data : host_staging_.data();
  }
  ~EngineCommunicator() override {
    if (device::keeps_memory()) std::ignore = new std::vector<std::byte>(std::move(host_staging_));
  }

 private:
  Pending* start(const Request& r) override {
    TRAINER_CHECK(staging_memory_ != nullptr || group().link > 0,
                  "the communicator along {} was created for a dry device", group().name);
    const bool receives = r.op == CommOp::all_gather || (r.op == CommOp::send && rank() == 1);
    const int64_t n = receives ? r.out.count() : r.in.count();
    return engine_.start(*channel_, {r.op, r.reduce, r.in.dtype, size(), rank(), n, r.root, r.in.data, r.out.data,
                                     staging_memory_, &kernels_, r.counts, r.arriving, r.window});
  }

  Engine& engine_;
  const ReduceKernels& kernels_;
  Engine::Channel* channel_ = nullptr;
  Buffer staging_;
  std::vector<std::byte> host_staging_;  // only with a GPU
  std::byte* staging_memory_ = nullptr;
};

}  // namespace

std::unique_ptr<Control> EngineWorld::make_control(Engine& engine) {
  return std::make_unique<HostControl>([&](device::Device& device) {
    return std::make_unique<EngineCommunicator>(engine, device, control_group(engine.rank(), engine.size()),
                                                Purpose::control);
  });
}

EngineWorld::EngineWorld(std::unique_ptr<Engine> engine, std::unique_ptr<Control> control, std::string transport,
                         int local_rank, int local_size, double exit_timeout)
    : World(engine->rank(), engine->size(), local_rank, local_size),
      engine_(std::move(engine)),
      control_(std::move(control)),
      transport_(std::move(transport)),
      exit_timeout_(exit_timeout) {}

EngineWorld::~EngineWorld() {
  if (exit_timeout_ > 0)
    engine_->wait_for_all_ranks(engine_->failed() ? std::min(exit_timeout_, kExitTimeoutAfterFailure) : exit_timeout_);
}

void EngineWorld::configure(const WorldOptions& options) {
  engine_->configure(options);
  if (exit_timeout_ > 0) exit_timeout_ = options.timeout_s;
}

void name_stages(World& world, int64_t stages) {
  if (auto* of_engine = dynamic_cast<EngineWorld*>(&world)) of_engine->engine().name_stages(static_cast<int>(stages));
}

std::unique_ptr<Communicator> EngineWorld::communicator(device::Device& device, Group group, Purpose purpose) {
  return std::make_unique<EngineCommunicator>(*engine_, device, std::move(group), purpose);
}

}  // namespace trainer::comm
