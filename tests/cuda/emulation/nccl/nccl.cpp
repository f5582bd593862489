// The emulated NCCL: see nccl.h.
#include "nccl.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "parts.h"

namespace emulator {
namespace {

struct Clique {
  int size = 0;
  std::vector<NcclComm*> members;  // by rank; null: has not joined yet
  std::map<uint64_t, Rendezvous> collectives;
  std::map<std::pair<int, int>, std::map<uint64_t, Rendezvous>> messages;  // by sender and receiver
  struct Split {
    int color = 0, key = 0, rank = 0;
    NcclComm* made = nullptr;
    NcclComm** place = nullptr;  // set when all ranks have joined
  };
  std::map<uint64_t, std::vector<Split>> splits;
  int arrived = 0;
};

}  // namespace

/// A communicator. It is never freed, as work on streams refers to it.
struct NcclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  bool connected = false, gone = false;
  ncclResult_t error = ncclSuccess;
  uint64_t collectives = 0, splits = 0, open_splits = 0;
  std::map<std::pair<int, int>, uint64_t> messages;
  std::vector<std::shared_ptr<Item>> waiting;  // called, but not queued on its stream yet
  int polls = 0;
};

namespace {

struct Library {
  NcclFaults faults;
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // by unique id
  std::map<int, std::vector<std::string>> log;             // by device
  std::map<int, int> operations;
  std::set<NcclComm*> live;
  int ids = 0;
};
Library& library() {
  static Library& all = *new Library;
  return all;
}

/// The group that the calling thread has open.
struct Group {
  int depth = 0;
  std::shared_ptr<Item> item;
};
thread_local Group group;

/// Collects all items that have to run together with `item`; returns false if some of their calls are missing.
bool gather_partners(Item& item, std::vector<Item*>& together) {
  together.push_back(&item);
  for (size_t i = 0; i < together.size(); ++i)
    for (const Part& part : together[i]->parts) {
      if (part.rendezvous->parts.size() < part.rendezvous->expected) return false;
      for (const Part* other : part.rendezvous->parts) {
        if (!other->item->started || other->item->hangs || other->item->comm->gone) return false;
        if (std::find(together.begin(), together.end(), other->item) == together.end()) together.push_back(other->item);
      }
    }
  return true;
}

/// Drops the calls of an aborted communicator: removes their parts from rendezvous that partners still use.
void withdraw(Item& item) {
  for (const Part& part : item.parts) std::erase(part.rendezvous->parts, &part);
}

bool run(Item& item) {
  if (item.done) return true;
  if (item.comm->gone) {
    withdraw(item);
    return true;
  }
  if (item.hangs) return false;
  std::vector<Item*> together;
  if (!gather_partners(item, together)) return false;
  for (Item* other : together)
    if (!advance(*other->stream, other->place)) return false;
  if (item.done) return true;  // a partner's stream ran it meanwhile
  std::set<const Rendezvous*> rendezvous_points;
  for (Item* each : together) {
    each->done = true;
    for (const Part& part : each->parts) rendezvous_points.insert(part.rendezvous);
  }
  for (const Rendezvous* rendezvous : rendezvous_points) carry_out(*rendezvous);
  return true;
}

void check(const NcclComm* comm, const char* what) {
  if (!library().live.contains(const_cast<NcclComm*>(comm))) fail("%s on a communicator that is gone", what);
}

/// Adds the parts to their rendezvous, which are numbered in the order of the calls.
void join_rendezvous(NcclComm& comm, const std::shared_ptr<Item>& item) {
  for (Part& part : item->parts) {
    Rendezvous* rendezvous = nullptr;
    if (part.kind == CallKind::send || part.kind == CallKind::receive) {
      const auto ends = part.kind == CallKind::send ? std::pair{comm.rank, part.root} : std::pair{part.root, comm.rank};
      // Sender and receiver count their messages separately.
      uint64_t& number = comm.messages[{part.kind == CallKind::send ? 0 : 1, part.root}];
      rendezvous = &comm.clique->messages[ends][number++];
      rendezvous->expected = 2;
    } else {
      rendezvous = &comm.clique->collectives[comm.collectives++];
      rendezvous->expected = static_cast<size_t>(comm.clique->size);
    }
    part.rank = comm.rank;
    part.rendezvous = rendezvous;
    part.item = item.get();
    rendezvous->parts.push_back(&part);
    std::sort(rendezvous->parts.begin(), rendezvous->parts.end(), [](Part* a, Part* b) { return a->rank < b->rank; });
    char text[100];
    std::snprintf(text, sizeof(text), "%s %zu %s of %d", kNames[static_cast<int>(part.kind)], part.count,
                  name_of(part.type), comm.clique->size);
    library().log[comm.device].push_back(text);
  }
}

void start(NcclComm& comm) {
  for (const std::shared_ptr<Item>& item : std::exchange(comm.waiting, {})) {
    const NcclFaults& faults = library().faults;
    item->hangs = comm.device == faults.hanging_device && library().operations[comm.device] >= faults.hang_from;
    ++library().operations[comm.device];
    join_rendezvous(comm, item);
    item->place = item->stream->queued;
    item->started = true;
    if (enqueue(item->stream, [item] { return run(*item); }) != cudaSuccess) comm.error = ncclUnhandledCudaError;
  }
}

ncclResult_t call(NcclComm* comm, cudaStream_t stream, const Part& part) {
  const Lock lock(machine().mutex);
  check(comm, kNames[static_cast<int>(part.kind)]);
  if (!comm->connected || !comm->waiting.empty() || comm->open_splits > 0)
    fail("%s on a communicator that is not ready", kNames[static_cast<int>(part.kind)]);
  if (part.root < 0 || part.root >= comm->clique->size) return ncclInvalidArgument;
  const bool message = part.kind == CallKind::send || part.kind == CallKind::receive;
  if (message && part.root == comm->rank && group.depth == 0) return ncclInvalidUsage;
  if (group.depth == 0) {
    auto item = std::make_shared<Item>(Item{.comm = comm, .stream = stream});
    item->parts.push_back(part);
    comm->waiting.push_back(std::move(item));
    return ncclInProgress;
  }
  if (!group.item) group.item = std::make_shared<Item>(Item{.comm = comm, .stream = stream});
  if (group.item->comm != comm || group.item->stream != stream) fail("a group over several communicators");
  group.item->parts.push_back(part);
  return ncclSuccess;
}

void connect(const std::shared_ptr<Clique>& clique) {
  std::set<int> devices;
  for (NcclComm* member : clique->members) devices.insert(member->device);
  for (NcclComm* member : clique->members) {
    if (devices.size() < clique->members.size()) member->error = ncclInvalidUsage;
    member->connected = true;
  }
}

void finish_split(Clique& parent, std::vector<Clique::Split>& all) {
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.color, a.key, a.rank) < std::tuple(b.color, b.key, b.rank);
  });
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].color == NCCL_SPLIT_NOCOLOR) continue;
    if (i == 0 || all[i].color != all[i - 1].color) all[i].made->clique = std::make_shared<Clique>();
    NcclComm& made = *all[i].made;
    if (made.clique == nullptr) made.clique = all[i - 1].made->clique;
    made.rank = made.clique->size++;
    made.clique->members.push_back(&made);
    made.connected = true;
    *all[i].place = &made;
  }
  for (NcclComm* member : parent.members) --member->open_splits;
}

NcclComm* make_comm() {
  auto* comm = new NcclComm;
  comm->device = current_device();
  library().live.insert(comm);
  return comm;
}

}  // namespace

void set_nccl_faults(const NcclFaults& faults) {
  const Lock lock(machine().mutex);
  library().faults = faults;
  library().operations.clear();
}
std::vector<std::string> take_nccl_log(int device) {
  const Lock lock(machine().mutex);
  return std::exchange(library().log[device], {});
}
int live_nccl_communicators() {
  const Lock lock(machine().mutex);
  return static_cast<int>(library().live.size());
}

}  // namespace emulator

using namespace emulator;

ncclResult_t ncclGetVersion(int* version) {
  const Lock lock(machine().mutex);
  *version = library().faults.old_version ? 22500 : NCCL_MAJOR * 10000 + NCCL_MINOR * 100 + NCCL_PATCH;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error" : "emulated error";
}
const char* ncclGetLastError(ncclComm_t) { return "emulated details"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Lock lock(machine().mutex);
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "clique %d", ++library().ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const Lock lock(machine().mutex);
  if (config->blocking != 0) fail("a communicator that blocks");
  std::shared_ptr<Clique>& clique = library().cliques[id.internal];
  if (clique == nullptr) clique = std::make_shared<Clique>(Clique{.size = ranks});
  clique->members.resize(static_cast<size_t>(ranks));
  *comm = make_comm();
  (*comm)->clique = clique;
  (*comm)->rank = rank;
  clique->members[static_cast<size_t>(rank)] = *comm;
  if (++clique->arrived == ranks && !library().faults.never_connects) connect(clique);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  const Lock lock(machine().mutex);
  check(comm, "split");
  if (config->blocking != 0) fail("a communicator that blocks");
  if (!comm->connected || !comm->waiting.empty() || comm->open_splits > 0) fail("split of one that is not ready");
  *made = nullptr;
  ++comm->open_splits;
  auto& all = comm->clique->splits[comm->splits++];
  all.push_back({color, key, comm->rank, color == NCCL_SPLIT_NOCOLOR ? nullptr : make_comm(), made});
  if (static_cast<int>(all.size()) == comm->clique->size) finish_split(*comm->clique, all);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Lock lock(machine().mutex);
  check(comm, "the state");
  *state = ncclInProgress;
  if (!comm->connected || comm->open_splits > 0) return ncclSuccess;
  if (comm->device == library().faults.broken_device) comm->error = ncclRemoteError;
  if (!comm->waiting.empty() && comm->polls++ % 2 == 0) return ncclSuccess;
  start(*comm);
  *state = comm->error;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Lock lock(machine().mutex);
  check(comm, "finalize");
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Lock lock(machine().mutex);
  check(comm, "destroy");
  library().live.erase(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Lock lock(machine().mutex);
  check(comm, "abort");
  comm->gone = true;
  library().live.erase(comm);
  machine().changed.notify_all();
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {CallKind::all_reduce, send, receive, count, type, op, 0});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {CallKind::reduce_scatter, send, receive, count, type, op, 0});
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(comm, stream, {CallKind::all_gather, send, receive, count, type, ncclSum, 0});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {CallKind::broadcast, send, receive, count, type, ncclSum, root});
}
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {CallKind::reduce, send, receive, count, type, op, root});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, stream, {CallKind::send, send, nullptr, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, stream, {CallKind::receive, nullptr, receive, count, type, ncclSum, peer});
}
ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0) return ncclSuccess;
  const Lock lock(machine().mutex);
  if (!group.item) return ncclSuccess;
  NcclComm* comm = group.item->comm;
  comm->waiting.push_back(std::exchange(group.item, nullptr));
  return ncclInProgress;
}
