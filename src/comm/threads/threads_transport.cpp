#include "comm/threads/threads_transport.h"

#include <sched.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace trainer::comm {
namespace {

/// A message that its sender has announced. The receiver claims it, copies the data and marks it as done. The sender
/// may withdraw an offer that has not been claimed.
struct Offer {
  enum State : int { free, open, claimed, done, withdrawn };
  int from = 0, tag = 0;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  std::atomic<int> state{free};
};

struct Mailbox {
  std::mutex mutex;
  std::vector<Offer*> offers;  // to this rank, in sending order
  std::vector<ControlMessage> control;
  std::deque<Offer> made;  // made by this rank; never freed before the world ends, since receivers refer to them
  Notifier notifier;
};

}  // namespace

class Exchange {
 public:
  explicit Exchange(int ranks) : boxes(static_cast<size_t>(ranks)) {}
  std::deque<Mailbox> boxes;
};

namespace {

class ThreadsTransport final : public Transport {
 public:
  ThreadsTransport(std::shared_ptr<Exchange> exchange, int rank)
      : exchange_(std::move(exchange)), rank_(rank), own_(exchange_->boxes[static_cast<size_t>(rank)]) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(exchange_->boxes.size()); }

  void send(int peer, int tag, const std::byte* data, int64_t bytes, int* open) override {
    Offer* offer = nullptr;
    if (unused_.empty()) {
      offer = &own_.made.emplace_back();
    } else {
      offer = unused_.back();
      unused_.pop_back();
    }
    offer->from = rank_;
    offer->tag = tag;
    offer->data = data;
    offer->bytes = bytes;
    offer->state.store(Offer::open);
    sent_.push_back({offer, open});
    Mailbox& box = exchange_->boxes[static_cast<size_t>(peer)];
    {
      const std::lock_guard lock(box.mutex);
      box.offers.push_back(offer);
    }
    box.notifier.notify();
  }

  void receive(int peer, int tag, std::byte* data, int64_t bytes, int* open) override {
    receives_.push_back({peer, tag, data, bytes, open});
  }

  bool progress() override {
    {
      const std::lock_guard lock(own_.mutex);
      offered_.insert(offered_.end(), own_.offers.begin(), own_.offers.end());
      own_.offers.clear();
    }
    const size_t before = receives_.size() + sent_.size();
    if (!offered_.empty()) std::erase_if(receives_, [&](const Receive& receive) { return fetch(receive); });
    std::erase_if(sent_, [&](const Sent& sent) {
      if (sent.offer->state.load(std::memory_order_acquire) != Offer::done) return false;
      sent.offer->state.store(Offer::free, std::memory_order_relaxed);
      unused_.push_back(sent.offer);
      --*sent.open;
      return true;
    });
    return receives_.size() + sent_.size() != before;
  }

  bool cancel() noexcept override {
    receives_.clear();
    for (const Sent& sent : sent_) {  // withdrawn offers are never used again
      int state = Offer::open;
      if (sent.offer->state.compare_exchange_strong(state, Offer::withdrawn)) continue;
      while (sent.offer->state.load(std::memory_order_acquire) == Offer::claimed) sched_yield();
    }
    sent_.clear();
    return false;
  }

  void send_control(int peer, const ControlMessage& message) noexcept override {
    Mailbox& box = exchange_->boxes[static_cast<size_t>(peer)];
    {
      const std::lock_guard lock(box.mutex);
      box.control.push_back(message);
    }
    box.notifier.notify();
  }
  bool receive_control(ControlMessage& message) override {
    const std::lock_guard lock(own_.mutex);
    if (own_.control.empty()) return false;
    message = own_.control.front();
    own_.control.erase(own_.control.begin());
    return true;
  }

  Notifier& notifier() override { return own_.notifier; }
  bool peers_notify() const override { return true; }

 private:
  struct Receive {
    int from, tag;
    std::byte* data;
    int64_t bytes;
    int* open;
  };
  struct Sent {
    Offer* offer;
    int* open;
  };

  /// Copies the data of the oldest matching offer; returns false if there is none.
  bool fetch(const Receive& receive) {
    for (auto it = offered_.begin(); it != offered_.end(); ++it) {
      Offer& offer = **it;
      if (offer.from != receive.from || offer.tag != receive.tag) continue;
      int state = Offer::open;
      const bool claimed = offer.state.compare_exchange_strong(state, Offer::claimed);
      offered_.erase(it);
      if (!claimed) return false;  // withdrawn: the sender's world has failed, and this rank will be notified
      const int64_t bytes = offer.bytes;
      if (bytes == receive.bytes) std::memcpy(receive.data, offer.data, static_cast<size_t>(bytes));
      offer.state.store(Offer::done, std::memory_order_release);
      exchange_->boxes[static_cast<size_t>(receive.from)].notifier.notify();
      TRAINER_CHECK(bytes == receive.bytes,
                    "rank {} sent {} bytes to rank {}, which expects {} bytes: the ranks run different operations",
                    receive.from, bytes, rank_, receive.bytes);
      --*receive.open;
      return true;
    }
    return false;
  }

  std::shared_ptr<Exchange> exchange_;
  int rank_;
  Mailbox& own_;
  std::vector<Offer*> offered_, unused_;
  std::vector<Receive> receives_;
  std::vector<Sent> sent_;
};

}  // namespace

std::shared_ptr<Exchange> make_exchange(int ranks) { return std::make_shared<Exchange>(ranks); }

std::unique_ptr<Transport> threads_transport(std::shared_ptr<Exchange> exchange, int rank) {
  return std::make_unique<ThreadsTransport>(std::move(exchange), rank);
}

}  // namespace trainer::comm
