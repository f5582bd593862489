#include "comm/mpi/mpi_transport.h"

#include <algorithm>
#include <deque>
#include <list>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/mpi/mpi_table.h"

namespace trainer::comm {
namespace {

constexpr int kControlTag = 0;
constexpr double kCancelSeconds = 0.2;

void check(const MpiTable& mpi, int status, std::string_view what) {
  if (status == 0) return;
  char text[512];
  mpi.error_text(status, text, sizeof text);
  throw Error(Code::comm,
              format("MPI could not {}: {}; `mpirun -np N trainer verify --only links` tests all links", what, text));
}

class MpiTransport final : public Transport {
 public:
  MpiTransport() : mpi_(mpi_table()), requests_{mpi_.null_request} {}

  void open() override {
    int funneled = 0;
    check(mpi_.start(&funneled, &rank_, &size_, &max_tag_), "start");
    if (funneled == 0) throw Error(Code::comm, "this MPI library does not support threads (MPI_THREAD_FUNNELED)");
    expect_control();
  }

  void close(bool clean) noexcept override {
    if (!clean || dropped_) return;  // MPI_Finalize has no timeout, and a lost peer or a message may block it
    mpi_.cancel(&requests_[0]);
    mpi_.wait(&requests_[0]);
    mpi_.finalize();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int max_tag() const override { return max_tag_; }

  void send(int peer, int tag, const std::byte* data, int64_t bytes, int* open) override {
    MpiRequest& request = add(peer, bytes, false, open);
    check(mpi_.send(data, static_cast<int>(bytes), peer, tag, &request), "send a message");
  }
  void receive(int peer, int tag, std::byte* data, int64_t bytes, int* open) override {
    MpiRequest& request = add(peer, bytes, true, open);
    check(mpi_.receive(data, static_cast<int>(bytes), peer, tag, &request), "receive a message");
  }

  bool progress() override {
    int done = 0;
    done_.resize(requests_.size());
    check(mpi_.test_some(static_cast<int>(requests_.size()), requests_.data(), &done, done_.data()),
          "transfer messages");
    for (int i = 0; i < done; ++i) {
      const MpiCompletion& result = done_[static_cast<size_t>(i)];
      if (result.index > 0) {
        finish(messages_[static_cast<size_t>(result.index)], result);
      } else {
        heard_.push_back(incoming_);
        expect_control();
      }
    }
    if (done > 0) drop_finished();
    return done > 0;
  }

  bool cancel() noexcept override {
    // Cancelled receives complete quickly unless the sender was lost in the middle of a message. A send to a lost peer
    // cannot be cancelled: MPI reads its buffer if the peer returns, and so does the peer itself with some libraries.
    for (size_t i = 1; i < requests_.size(); ++i)
      if (messages_[i].receives) mpi_.cancel(&requests_[i]);
    const double begin = now_seconds();
    const auto receiving = [&] {
      bool any = false;
      for (size_t i = 1; i < requests_.size(); ++i) {
        int done = 0;
        if (requests_[i] != mpi_.null_request) mpi_.test(&requests_[i], &done);
        any |= requests_[i] != mpi_.null_request && messages_[i].receives;
      }
      return any;
    };
    while (receiving() && now_seconds() - begin < kCancelSeconds) continue;
    dropped_ = std::ranges::any_of(requests_.begin() + 1, requests_.end(),
                                   [&](MpiRequest request) { return request != mpi_.null_request; });
    requests_.resize(1);
    messages_.resize(1);
    return dropped_;
  }

  void send_control(int peer, const ControlMessage& message) noexcept override {
    Outgoing& out = outgoing_.emplace_back(message, mpi_.null_request);
    mpi_.send(&out.message, sizeof(ControlMessage), peer, kControlTag, &out.request);
  }
  bool receive_control(ControlMessage& message) override {
    if (heard_.empty()) return false;
    message = heard_.front();
    heard_.pop_front();
    return true;
  }
  bool control_sent() override {
    outgoing_.remove_if([this](Outgoing& out) {
      int done = 0;
      return mpi_.test(&out.request, &done) != 0 || done != 0;
    });
    return outgoing_.empty();
  }

  Notifier& notifier() override { return notifier_; }
  bool peers_notify() const override { return false; }

 private:
  struct Message {
    int peer = 0;
    int64_t bytes = 0;
    bool receives = false;
    int* open = nullptr;
  };
  struct Outgoing {
    Outgoing(const ControlMessage& m, MpiRequest r) : message(m), request(r) {}
    ControlMessage message;
    MpiRequest request;
  };

  void check(int status, std::string_view what) const { comm::check(mpi_, status, what); }

  MpiRequest& add(int peer, int64_t bytes, bool receives, int* open) {
    messages_.push_back({peer, bytes, receives, open});
    return requests_.emplace_back(mpi_.null_request);
  }

  void finish(const Message& message, const MpiCompletion& result) {
    check(result.status, "transfer a message");
    if (message.receives) {
      const bool longer = result.truncated != 0;
      TRAINER_CHECK(!longer && result.bytes == message.bytes,
                    "rank {} sent {} bytes to rank {}, which expected {}: the ranks are running different operations",
                    message.peer, longer ? format("more than {}", message.bytes) : format("{}", result.bytes), rank_,
                    message.bytes);
    }
    --*message.open;
  }

  void drop_finished() {
    size_t kept = 1;
    for (size_t i = 1; i < requests_.size(); ++i) {
      if (requests_[i] == mpi_.null_request) continue;
      requests_[kept] = requests_[i];
      messages_[kept++] = messages_[i];
    }
    requests_.resize(kept);
    messages_.resize(kept);
  }

  void expect_control() {
    check(mpi_.receive(&incoming_, sizeof(ControlMessage), -1, kControlTag, &requests_[0]), "expect control messages");
  }

  const MpiTable& mpi_;
  int rank_ = 0, size_ = 1, max_tag_ = 32767;
  Notifier notifier_;
  // Requests in flight: element 0 receives the next control message, the rest belong to operations. messages_[i]
  // describes requests_[i].
  std::vector<MpiRequest> requests_;
  std::vector<Message> messages_{Message{}};
  std::vector<MpiCompletion> done_;
  ControlMessage incoming_;
  std::deque<ControlMessage> heard_;
  std::list<Outgoing> outgoing_;
  bool dropped_ = false;  // cancel() left messages in flight
};

}  // namespace

std::unique_ptr<Transport> mpi_transport() { return std::make_unique<MpiTransport>(); }

void mpi_library_all_reduce(float* values, int64_t n) {
  const MpiTable& mpi = mpi_table();
  check(mpi, mpi.all_reduce(values, static_cast<int>(n)), "all-reduce");
}

}  // namespace trainer::comm
