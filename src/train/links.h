#pragma once
// StageLinks: the messages between a pipeline stage and its neighbours, in the order of the stage's list of actions
// (sharding/pipeline.h). The receive of an action is posted while the one before it runs, and what an action returns
// is sent while the next one runs, as sharding::simulate() does it. With one stage, all functions do nothing.
#include <array>
#include <span>

#include "parallel/strategy.h"
#include "sharding/pipeline.h"

namespace trainer::train {

class StageLinks {
 public:
  /// Messages are parts of matrices [rows, width] in `type`. Allocates a buffer for each link of this rank's stage. All
  /// arguments must outlive this object.
  StageLinks(device::Device& device, mesh::Mesh& mesh, const sharding::ModelSharding& sharding,
             const parallel::Strategy& strategy, parallel::Rows rows, int64_t width, DType type);

  /// Sets another number of rows, at most that for which memory was allocated. No message may be in flight.
  void set_rows(int64_t rows) { rows_.count = rows; }
  /// Begins a list, which must outlive it. No message may be in flight.
  void begin_list(std::span<const sharding::Action> list);
  /// Begins an action of the list: posts its receive and that of the next action, as far as their buffers are free.
  void begin(Exec& ex, size_t action);
  /// Returns what an action receives, in the spread of the stream, in memory of ex.arena: x, or dx if it has no forward
  /// pass; nothing if no message is due. Waits for the neighbour. On a dry device, only takes the memory.
  Scratch take(Exec& ex, const sharding::Action& action);
  /// Sends what an action returns, x or dx in the spread of the stream, if a message is due; it is copied. Waits until
  /// the previous message on the link has left. On a dry device, only counts it.
  void send(Exec& ex, const sharding::Action& action, Scratch&& x);
  /// Waits until all messages have left.
  void end_list(Exec& ex);

 private:
  /// This rank's end of a link, with the message in flight.
  struct End {
    comm::Communicator* link = nullptr;
    Buffer buffer;
    comm::Ticket ticket;
  };
  End& receiver(const sharding::Message& message) { return receivers_[message.to < message.from]; }
  End& sender(const sharding::Message& message) { return senders_[message.to < message.from]; }
  void post(Exec& ex);
  /// Returns the spreads of a message in the stream and on the link, and its part of an end's buffer.
  struct Form {
    sharding::Spread stream, sent;
    Shape shape;
  };
  Form form_of(const sharding::Message& message) const;
  static Tensor part_of(const End& end, const Form& form);

  mesh::Mesh& mesh_;
  const sharding::Stages& stages_;
  const parallel::Strategy& strategy_;
  parallel::Rows rows_;
  const int64_t width_;
  const DType type_;
  std::array<End, 2> receivers_, senders_;  // by whether they carry dx
  std::span<const sharding::Action> list_;
  size_t next_ = 0, posted_ = 0;  // the action that runs; the receives of those before this one are posted
};

}  // namespace trainer::train
