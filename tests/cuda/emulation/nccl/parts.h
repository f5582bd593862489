#pragma once
// Operations of the emulated NCCL, split into one part for each rank.
#include "machine.h"
#include "nccl.h"

namespace emulator {

enum class CallKind { all_reduce, reduce_scatter, all_gather, broadcast, reduce, send, receive };
inline constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                         "reduce",     "send",           "receive"};

struct Item;
struct Rendezvous;

/// One rank's share of a collective, or one end of a message.
struct Part {
  CallKind kind;
  const void* send;
  void* receive;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;  // or the peer
  int rank = 0;
  Rendezvous* rendezvous = nullptr;
  Item* item = nullptr;
};

/// Collects the parts of one collective or message.
struct Rendezvous {
  size_t expected = 0;
  std::vector<Part*> parts;  // in the end sorted by rank, for collectives
};

/// The work that one call, or one group of calls, enqueues on a stream.
struct Item {
  NcclComm* comm = nullptr;
  Stream* stream = nullptr;
  uint64_t place = 0;  // the number of the stream's earlier items
  std::vector<Part> parts;
  bool started = false, done = false, hangs = false;
};

/// Returns the type's name, such as "f32" or "bytes".
const char* name_of(ncclDataType_t type);
/// Carries out the operation of a rendezvous at which all parts have arrived.
void carry_out(const Rendezvous& rendezvous);

}  // namespace emulator
