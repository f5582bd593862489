#include <exception>
#include <utility>

#include "base/clock.h"
#include "comm/communicator.h"

namespace trainer::comm {

Ticket& Ticket::operator=(Ticket&& other) {
  TRAINER_CHECK(!open_, "a ticket of {} must be joined before it is overwritten", name_of(key_.op));
  pending_ = std::exchange(other.pending_, nullptr);
  key_ = other.key_;
  recorded_ = other.recorded_;
  wire_bytes_ = other.wire_bytes_;
  started_ = other.started_;
  open_ = std::exchange(other.open_, false);
  kept_ = std::move(other.kept_);
  return *this;
}

Ticket::~Ticket() noexcept(false) {
  if (!open_) return;
  if (pending_ != nullptr) pending_->abandon();
  if (std::uncaught_exceptions() == 0)
    throw Error(Code::internal, format("the ticket of {} was never joined", name_of(key_.op)));
}

void Ticket::keep(Scratch&& scratch) {
  TRAINER_CHECK(open_, "only an open ticket can own scratch memory");
  for (Scratch& place : kept_) {
    if (place) continue;
    place = std::move(scratch);
    return;
  }
  TRAINER_CHECK(false, "a ticket can own at most {} scratch tensors", kept_.size());
}

Interval Ticket::join(Exec& ex) {
  TRAINER_CHECK(open_, "only the ticket of a started operation can be joined, and only once");
  open_ = false;
  if (recorded_ >= 0 && ex.meter.recorder != nullptr) ex.meter.recorder->add_wait(recorded_);
  Interval flight;
  if (pending_ != nullptr) {
    const double start = now_seconds();
    flight = std::exchange(pending_, nullptr)->wait();
    const bool known = flight.end > 0;  // false if a GPU stream runs the operation
    if (!known && ex.meter.timed != nullptr) ex.meter.timed->synchronize();
    const double end = now_seconds();
    ex.meter.add_wait(key_, {start, end}, known ? flight : Interval{started_, end}, wire_bytes_);
  }
  for (Scratch& scratch : kept_) scratch.reset();
  return flight;
}

}  // namespace trainer::comm
