#pragma once
// Collectives as state machines over messages. An operation is split into segments. Each runs as its own flow, a few at
// a time: while one segment is reduced, others are on the wire. Memory for staging is constant.
//   ring            all_reduce and reduce_scatter above kDirectElements, all_gather: ranks send to the right neighbour
//   chain           broadcast from the root, reduce from the rank after the root, towards the root
//   direct_reduce   all_reduce, reduce_scatter and reduce of few elements: all are gathered, and added in rank order
//   exchange        all_to_all, send_recv, and small all_gather and broadcast: directly between ranks
#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"
#include "comm/reduce_kernels.h"

namespace trainer::comm {

// Fewer and larger messages cost less, but a payload should fill all flows, so that copies and sums overlap.
inline constexpr int kFlows = 4;  // in flight on one channel
inline constexpr int64_t kSmallestSegment = int64_t{64} << 10, kLargestSegment = int64_t{512} << 10;  // bytes
inline constexpr int64_t kFlowStaging = 2 * kLargestSegment;
inline constexpr int64_t kStagingBytes = kFlows * kFlowStaging;
/// all_gather and broadcast of at most this many bytes run as an exchange.
inline constexpr int64_t kExchangeBytes = int64_t{64} << 10;

/// An operation of a group of two or more ranks on raw memory. The members have the same meaning as in communicator.h.
struct Collective {
  CommOp op = CommOp::all_reduce;
  Reduce reduce = Reduce::sum;
  DType dtype = DType::f32;
  int size = 2, rank = 0;  // within the group
  int64_t n = 0;           // elements, the payload of comm/bytes.h
  int root = 0;            // send_recv: the shift, in [1, size)
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::byte* staging = nullptr;  // kStagingBytes
  const ReduceKernels* kernels = nullptr;
  const device::Mirror* arriving = nullptr;  // flows start once this has arrived; null: `in` is already there
};

/// The segments of an operation, determined by operation, type, size and group, and equal on all its ranks.
struct Segments {
  int64_t count = 1;
  int64_t elements = 0;  // elements of each piece (a chunk, or everything that is sent on) in a segment
};
Segments segments_of(const Collective& collective);

/// The interface through which a flow sends and receives messages; ranks are positions in the group.
class Post {
 public:
  virtual void send(int to, const std::byte* data, int64_t bytes) = 0;
  virtual void receive(int from, std::byte* data, int64_t bytes) = 0;

 protected:
  ~Post() = default;
};

/// A flow is one segment in flight. Flows of one slot follow each other and share a part of the staging memory.
struct Flow {
  const Collective* collective = nullptr;
  int64_t segment = 0, elements = 0;
  int slot = 0;
  int step = 0;
};

/// Consumes the messages of the last step and posts the next ones (possibly none, if pieces are empty). Called when all
/// messages of the flow are done; false when the flow has ended.
bool advance(Flow& flow, Post& post);

}  // namespace trainer::comm
