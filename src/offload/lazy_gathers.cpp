#include "offload/lazy_gathers.h"

#include <algorithm>
#include <exception>

#include "base/log.h"

namespace trainer::offload {

LazyGathers::LazyGathers(params::ParamStore& store)
    : store_(store),
      dry_(device::make_dry(store.device())),
      none_(store.device(), Arena::Mode::heap),
      none_dry_(*dry_, Arena::Mode::heap),
      ex_{store.device(), none_, counted_},
      tickets_(store.groups().size()),
      started_(static_cast<int>(store.groups().size())) {}

LazyGathers::~LazyGathers() {
  if (std::uncaught_exceptions() > 0) return;  // the tickets are abandoned
  try {
    drop();
  } catch (const Error& error) {
    log::warning("the all-gather of the last update's weights failed: {}", error.what());
  }
}

void LazyGathers::begin(Exec& ex) {
  TRAINER_CHECK(std::ranges::none_of(tickets_, &comm::Ticket::is_open),
                "an update must not begin while weights are being gathered");
  started_ = 0;
  Exec counting{*dry_, none_dry_, ex.meter};
  for (int group = 0; group < static_cast<int>(tickets_.size()); ++group)
    if (store_.has(group)) store_.gather_weights(counting, group).join(counting);
}

void LazyGathers::start(int last, const std::function<void(int group)>& wait) {
  for (; started_ <= last; ++started_) {
    wait(started_);
    if (store_.has(started_)) tickets_[static_cast<size_t>(started_)] = store_.gather_weights(ex_, started_);
  }
}

void LazyGathers::finish(int group, const std::function<void(int group)>& wait) {
  start(std::min(group + 1, static_cast<int>(tickets_.size()) - 1), wait);
  if (comm::Ticket& ticket = tickets_[static_cast<size_t>(group)]; ticket.is_open()) ticket.join(ex_);
}

void LazyGathers::drop() {
  for (comm::Ticket& ticket : tickets_)
    if (ticket.is_open()) ticket.join(ex_);
  started_ = static_cast<int>(tickets_.size());
}

}  // namespace trainer::offload
