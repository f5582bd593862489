#ifdef TRAINER_HAS_MPI
#include "comm/mpi/mpi_transport.h"

#include <mpi.h>

#include <deque>
#include <list>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace trainer::comm {
namespace {

constexpr int kControlTag = 0;
constexpr double kCancelSeconds = 0.2;

void check(int status, std::string_view what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw Error(Code::comm, format("MPI could not {}: {}", what, std::string_view(text, static_cast<size_t>(length))));
}

class MpiTransport final : public Transport {
 public:
  void open() override {
    int provided = MPI_THREAD_SINGLE, found = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "start");
    if (provided < MPI_THREAD_FUNNELED)
      throw Error(Code::comm, "this MPI library does not support threads (MPI_THREAD_FUNNELED)");
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "set its error handler");
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "return the rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "return the number of ranks");
    int* max_tag = nullptr;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &max_tag, &found), "return its largest tag");
    if (found != 0) max_tag_ = *max_tag;
    expect_control();
  }

  void close(bool clean) noexcept override {
    if (!clean || stuck_) return;  // MPI_Finalize would wait forever for a lost peer
    MPI_Cancel(&requests_[0]);
    MPI_Wait(&requests_[0], MPI_STATUS_IGNORE);
    MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int max_tag() const override { return max_tag_; }

  void send(int peer, int tag, const std::byte* data, int64_t bytes, int* open) override {
    MPI_Request& request = add(peer, bytes, false, open);
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request), "send a message");
  }
  void receive(int peer, int tag, std::byte* data, int64_t bytes, int* open) override {
    MPI_Request& request = add(peer, bytes, true, open);
    check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request), "receive a message");
  }

  bool progress() override {
    if (stuck_) return false;
    int done = 0;
    done_.resize(requests_.size());
    statuses_.resize(requests_.size());
    const int status =
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, done_.data(), statuses_.data());
    if (status != MPI_SUCCESS && status != MPI_ERR_IN_STATUS) check(status, "transfer messages");
    for (int i = 0; i < done; ++i) {
      const size_t which = static_cast<size_t>(done_[static_cast<size_t>(i)]);
      const MPI_Status& result = statuses_[static_cast<size_t>(i)];
      if (which > 0) {
        finish(messages_[which], result, status == MPI_ERR_IN_STATUS);
      } else {
        heard_.push_back(incoming_);
        expect_control();
      }
    }
    if (done > 0) drop_finished();
    return done > 0;
  }

  void cancel() noexcept override {
    // A message to a lost peer cannot be cancelled, but MPI only reads it. Receives end quickly, unless the sender is
    // lost in the middle of a message. Then MPI is not called again, so that it does not write to memory.
    for (size_t i = 1; i < requests_.size(); ++i)
      if (messages_[i].receives) MPI_Cancel(&requests_[i]);
    const double begin = now_seconds();
    const auto receiving = [&] {
      bool any = false;
      for (size_t i = 1; i < requests_.size(); ++i) {
        int done = 0;
        if (requests_[i] != MPI_REQUEST_NULL) MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
        any |= requests_[i] != MPI_REQUEST_NULL && messages_[i].receives;
      }
      return any;
    };
    while (!stuck_ && receiving()) stuck_ = now_seconds() - begin > kCancelSeconds;
    requests_.resize(1);
    messages_.resize(1);
  }

  void send_control(int peer, const ControlMessage& message) noexcept override {
    if (stuck_) return;
    Outgoing& out = outgoing_.emplace_back(message, MPI_REQUEST_NULL);
    MPI_Isend(&out.message, sizeof(ControlMessage), MPI_BYTE, peer, kControlTag, MPI_COMM_WORLD, &out.request);
  }
  bool receive_control(ControlMessage& message) override {
    if (heard_.empty()) return false;
    message = heard_.front();
    heard_.pop_front();
    return true;
  }
  bool control_sent() override {
    outgoing_.remove_if([](Outgoing& out) {
      int done = 0;
      return MPI_Test(&out.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
    });
    return outgoing_.empty();
  }

  Bell& bell() override { return bell_; }
  bool peers_ring() const override { return false; }

 private:
  struct Message {
    int peer = 0;
    int64_t bytes = 0;
    bool receives = false;
    int* open = nullptr;
  };
  struct Outgoing {
    Outgoing(const ControlMessage& m, MPI_Request r) : message(m), request(r) {}
    ControlMessage message;
    MPI_Request request;
  };

  MPI_Request& add(int peer, int64_t bytes, bool receives, int* open) {
    messages_.push_back({peer, bytes, receives, open});
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }

  void finish(const Message& message, const MPI_Status& status, bool errors) {
    if (errors && status.MPI_ERROR != MPI_ERR_TRUNCATE) check(status.MPI_ERROR, "transfer a message");
    if (message.receives) {
      int bytes = 0;
      const bool longer = errors && status.MPI_ERROR == MPI_ERR_TRUNCATE;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      TRAINER_CHECK(!longer && bytes == message.bytes,
                    "rank {} sent {} bytes to rank {}, which expects {}: they run different operations", message.peer,
                    longer ? format("more than {}", message.bytes) : format("{}", bytes), rank_, message.bytes);
    }
    --*message.open;
  }

  void drop_finished() {
    size_t kept = 1;
    for (size_t i = 1; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      requests_[kept] = requests_[i];
      messages_[kept++] = messages_[i];
    }
    requests_.resize(kept);
    messages_.resize(kept);
  }

  void expect_control() {
    check(MPI_Irecv(&incoming_, sizeof(ControlMessage), MPI_BYTE, MPI_ANY_SOURCE, kControlTag, MPI_COMM_WORLD,
                    &requests_[0]),
          "expect control messages");
  }

  int rank_ = 0, size_ = 1, max_tag_ = 32767;
  Bell bell_;
  // Requests in flight: first the next control message, then those of operations, which messages_ describes.
  std::vector<MPI_Request> requests_{MPI_REQUEST_NULL};
  std::vector<Message> messages_{Message{}};
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
  ControlMessage incoming_;
  std::deque<ControlMessage> heard_;
  std::list<Outgoing> outgoing_;
  bool stuck_ = false;
};

}  // namespace

std::unique_ptr<Transport> mpi_transport() { return std::make_unique<MpiTransport>(); }

void mpi_library_all_reduce(float* values, int64_t n) {
  check(MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), "add");
}

}  // namespace trainer::comm
#endif
