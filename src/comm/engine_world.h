#pragma once
// EngineWorld: a World over an engine. Threads and MPI differ only in their transport.
#include "comm/engine.h"
#include "comm/host_control.h"

namespace trainer::comm {

class EngineWorld final : public World {
 public:
  /// Creates a Control over the engine, usable before the world exists.
  static std::unique_ptr<Control> make_control(Engine& engine);

  /// `exit_timeout`: seconds for which the destructor waits for the other ranks.
  EngineWorld(std::unique_ptr<Engine> engine, std::unique_ptr<Control> control, std::string transport, int local_rank,
              int local_size, double exit_timeout);
  ~EngineWorld() override;

  std::string_view transport() const override { return transport_; }
  Control& control() override { return *control_; }
  std::unique_ptr<Communicator> communicator(device::Device& device, Group group, Purpose purpose) override;
  void configure(const WorldOptions& options) override;
  void fail(Code code, const std::string& why) noexcept override { engine_->fail(code, why); }
  bool wait_for_all_ranks(double seconds) noexcept override { return engine_->wait_for_all_ranks(seconds); }
  int64_t bytes_sent() const override { return engine_->bytes_sent(); }
  Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Control> control_;
  std::string transport_;
  double exit_timeout_;
};

}  // namespace trainer::comm
