#pragma once
// Collectives as state machines over messages. An operation is split into segments, each of which runs as a flow. A few
// flows run at a time: while one segment is reduced, others are on the wire. The staging memory has a fixed size.
//   ring            all_reduce and reduce_scatter above kDirectElements, all_gather: ranks send to the right neighbour
//   chain           broadcast from the root, reduce from the rank after the root, towards the root; send
//   direct_reduce   small all_reduce, reduce_scatter and reduce: ranks exchange inputs and add them in rank order
//   exchange        all_to_all, shift, and small all_gather and broadcast: directly between ranks
#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"
#include "comm/reduce_kernels.h"

namespace trainer::comm {

// Fewer, larger messages cost less, but a payload should fill all flows, so that copies overlap with additions.
inline constexpr int kFlows = 4;  // flows in flight per channel
inline constexpr int64_t kSmallestSegment = int64_t{64} << 10, kLargestSegment = int64_t{512} << 10;  // bytes
inline constexpr int64_t kFlowStaging = 2 * kLargestSegment;
inline constexpr int64_t kStagingBytes = kFlows * kFlowStaging;
/// all_gather and broadcast of at most this many bytes run as an exchange.
inline constexpr int64_t kExchangeBytes = int64_t{64} << 10;

/// An operation on raw memory, in a group of two or more ranks. The operands are those of communicator.h.
struct Collective {
  CommOp op = CommOp::all_reduce;
  Reduce reduce = Reduce::sum;
  DType dtype = DType::f32;
  int size = 2, rank = 0;  // within the group
  int64_t n = 0;           // number of elements: the payload of comm/bytes.h
  int root = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::byte* staging = nullptr;  // kStagingBytes
  const ReduceKernels* kernels = nullptr;
  PeerCounts counts = {};                    // all_to_all with pieces of different lengths; else empty
  const device::Mirror* arriving = nullptr;  // flows start once this is fetched; null: `in` is ready
  Chunk window = {};                         // the elements of each chunk that take part; empty: all
};

/// The segments of an operation. They depend on its kind, type, size and group only, so all ranks compute the same.
struct Segments {
  int64_t count = 1;
  int64_t elements = 0;  // per segment and message; a message is part of a chunk, or of the whole tensor
};
Segments segments_of(const Collective& collective);

/// The interface through which a flow sends and receives messages; `to` and `from` are positions in the group.
class PointToPoint {
 public:
  virtual void send(int to, const std::byte* data, int64_t bytes) = 0;
  virtual void receive(int from, std::byte* data, int64_t bytes) = 0;

 protected:
  ~PointToPoint() = default;
};

/// One segment in flight. The flows of a slot run one after another and use the same part of the staging memory.
struct Flow {
  const Collective* collective = nullptr;
  int64_t segment = 0, elements = 0;
  int slot = 0;
  int step = 0;
};

/// Consumes the messages of the last step and posts those of the next step (none if they would be empty). Called when
/// all messages of the flow are done; returns false if the flow has ended.
bool advance(Flow& flow, PointToPoint& peers);

}  // namespace trainer::comm
