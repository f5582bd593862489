#pragma once
// When collectives are started and when they are waited for, counted in products that ran before: on one rank of a mesh
// whose other ranks are not there.
#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {

/// One operation: how many products ran before its start, and before the wait for it.
struct Moment {
  double started = 0, waited = -1;
  bool operator==(const Moment&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Moment& m) { return out << m.started << " to " << m.waited; }
/// In order of their starts, by axis and operation.
using Timeline = std::map<std::string, std::vector<Moment>>;

class Noting final : public comm::Communicator {
 public:
  Noting(comm::Group group, const Meter*& meter, double product, Timeline& timeline)
      : Communicator(std::move(group)), meter_(meter), product_(product), timeline_(timeline) {}

 private:
  struct Wait final : comm::Pending {
    Wait(Noting& owner, Moment& what) : noting(owner), moment(what) {}
    Interval wait() override {
      moment.waited = noting.products();
      return {};
    }
    void abandon() noexcept override {}
    Noting& noting;
    Moment& moment;
  };
  double products() const { return meter_->matmul_flops() / product_; }
  comm::Pending* start(const Request& request) override {
    std::vector<Moment>& moments = timeline_[group().name + " " + std::string(name_of(request.op))];
    moments.reserve(64);  // waits point into it
    TRAINER_CHECK(moments.size() < moments.capacity(), "{} operations", moments.size());
    moments.push_back({.started = products()});
    waits_.push_back(std::make_unique<Wait>(*this, moments.back()));
    return waits_.back().get();
  }
  const Meter*& meter_;
  const double product_;
  Timeline& timeline_;
  std::vector<std::unique_ptr<Wait>> waits_;
};

/// The first of so many ranks, with products of so many FLOPs each.
class NotingWorld final : public comm::World {
 public:
  NotingWorld(int size, const Meter*& meter, double product, Timeline& timeline)
      : World(0, size, 0, 1), inner_(comm::dry_world(size)), meter_(meter), product_(product), timeline_(timeline) {}
  std::string_view transport() const override { return "noting"; }
  comm::Control& control() override { return inner_->control(); }
  std::unique_ptr<comm::Communicator> communicator(device::Device& device, comm::Group group,
                                                   comm::Lane lane) override {
    if (group.control) return inner_->communicator(device, std::move(group), lane);
    return std::make_unique<Noting>(std::move(group), meter_, product_, timeline_);
  }

 private:
  const std::unique_ptr<comm::World> inner_;
  const Meter*& meter_;
  const double product_;
  Timeline& timeline_;
};

}  // namespace trainer::pieces
