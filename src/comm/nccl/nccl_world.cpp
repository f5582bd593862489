#include "comm/nccl/nccl_world.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "comm/engine_world.h"
#include "comm/nccl/fabric.h"
#include "comm/nccl/links.h"

namespace trainer::comm::nccl {
namespace {

/// Returns the NCCL type for reductions. Data that is only copied is sent as bytes.
ncclDataType_t type_of(DType type) {
  switch (type) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    default:
      return ncclInt8;
  }
}

/// A group of NCCL calls, from ncclGroupStart to end(); keeps the first error.
class Calls {
 public:
  void add(ncclResult_t result) {
    if (result_ == ncclSuccess && result != ncclInProgress) result_ = result;
  }
  /// Calls ncclGroupEnd; returns the first error of the group.
  ncclResult_t end() {
    const ncclResult_t ended = ncclGroupEnd();
    return result_ == ncclSuccess ? ended : result_;
  }

 private:
  ncclResult_t result_ = ncclGroupStart();
};

/// The communicator of one group on one stream, shared by the purposes that use this stream.
struct Link {
  Group group;
  int stream = 0;
  ncclComm_t comm = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Fabric& fabric, Group group, Purpose purpose, std::shared_ptr<Link> link)
      : Communicator(std::move(group)),
        fabric_(fabric),
        link_(std::move(link)),
        channel_(fabric.engine().channel(this->group(), purpose)) {}

 private:
  bool can_reach_gpus() const override { return true; }

  Pending* start(const Request& r) override {
    TRAINER_CHECK(link_->comm != nullptr, "the communicator along {} was used before the world is connected",
                  group().name);
    return fabric_.launch(link_->stream, link_->comm, channel_, r.op, group().name,
                          [&](cudaStream_t stream) { return calls(r, stream); });
  }

  ncclResult_t calls(const Request& r, cudaStream_t stream) const {
    ncclComm_t comm = link_->comm;
    const ncclDataType_t type = type_of(r.in.dtype);
    const ncclRedOp_t op = r.reduce == Reduce::max ? ncclMax : ncclSum;
    const auto n = static_cast<size_t>(r.in.count()), bytes = static_cast<size_t>(r.in.bytes());
    const auto ranks = static_cast<size_t>(size());
    switch (r.op) {
      case CommOp::all_reduce:
        return ncclAllReduce(r.in.data, r.out.data, n, type, op, comm, stream);
      case CommOp::reduce:
        return ncclReduce(r.in.data, r.out.data, n, type, op, r.root, comm, stream);
      case CommOp::broadcast:
        return ncclBroadcast(r.in.data, r.out.data, bytes, ncclInt8, r.root, comm, stream);
      case CommOp::reduce_scatter:
        if (n % ranks == 0) return ncclReduceScatter(r.in.data, r.out.data, n / ranks, type, op, comm, stream);
        return scatter_unevenly(r, type, op, stream);
      case CommOp::all_gather:
        if (r.out.count() % size() == 0) return ncclAllGather(r.in.data, r.out.data, bytes, ncclInt8, comm, stream);
        return gather_unevenly(r, stream);
      case CommOp::send:
        if (rank() == 0) return ncclSend(r.in.data, bytes, ncclInt8, 1, comm, stream);
        return ncclRecv(r.out.data, static_cast<size_t>(r.out.bytes()), ncclInt8, 0, comm, stream);
      case CommOp::shift:
        return shift(r, stream);
      case CommOp::all_to_all:
        break;
    }
    return exchange(r, stream);
  }

  // NCCL does not support chunks of different lengths, so each chunk is one operation, and all of them form an NCCL
  // group. Padding would require memory for the whole padded tensor, and copies on both sides.
  ncclResult_t scatter_unevenly(const Request& r, ncclDataType_t type, ncclRedOp_t op, cudaStream_t stream) const {
    Calls group;
    for (int root = 0; root < size(); ++root) {
      const Chunk chunk = chunk_of(r.in.count(), size(), root);
      if (chunk.count == 0) continue;
      group.add(ncclReduce(r.in.data + chunk.begin * size_of(r.in.dtype), root == rank() ? r.out.data : nullptr,
                           static_cast<size_t>(chunk.count), type, op, root, link_->comm, stream));
    }
    return group.end();
  }
  ncclResult_t gather_unevenly(const Request& r, cudaStream_t stream) const {
    const int64_t unit = size_of(r.in.dtype);
    Calls group;
    for (int root = 0; root < size(); ++root) {
      const Chunk chunk = chunk_of(r.out.count(), size(), root);
      if (chunk.count == 0) continue;
      std::byte* place = r.out.data + chunk.begin * unit;
      group.add(ncclBroadcast(root == rank() ? r.in.data : place, place, static_cast<size_t>(chunk.count * unit),
                              ncclInt8, root, link_->comm, stream));
    }
    return group.end();
  }
  ncclResult_t shift(const Request& r, cudaStream_t stream) const {
    const auto bytes = static_cast<size_t>(r.in.bytes());
    const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
    Calls group;
    group.add(ncclSend(r.in.data, bytes, ncclInt8, next, link_->comm, stream));
    group.add(ncclRecv(r.out.data, bytes, ncclInt8, previous, link_->comm, stream));
    return group.end();
  }
  ncclResult_t exchange(const Request& r, cudaStream_t stream) const {
    const int64_t unit = size_of(r.in.dtype), even = r.in.count() / size();
    const auto bytes_of = [&](std::span<const int64_t> counts, int peer) {
      return unit * (counts.empty() ? even : counts[static_cast<size_t>(peer)]);
    };
    Calls group;
    const std::byte* from = r.in.data;
    std::byte* to = r.out.data;
    for (int peer = 0; peer < size(); ++peer) {
      const int64_t sent = bytes_of(r.counts.send, peer), received = bytes_of(r.counts.receive, peer);
      if (sent > 0) group.add(ncclSend(from, static_cast<size_t>(sent), ncclInt8, peer, link_->comm, stream));
      if (received > 0) group.add(ncclRecv(to, static_cast<size_t>(received), ncclInt8, peer, link_->comm, stream));
      from += sent;
      to += received;
    }
    return group.end();
  }

  Fabric& fabric_;
  std::shared_ptr<Link> link_;
  Engine::Channel& channel_;
};

class NcclWorld final : public World {
 public:
  NcclWorld(EngineWorld& below, device::Device& device)
      : World(below.rank(), below.size(), below.local_rank(), below.local_size()),
        below_(below),
        device_(device),
        fabric_(below.engine(), below.control(), device) {}

  std::string_view transport() const override { return "nccl"; }
  Control& control() override { return below_.control(); }
  void configure(const WorldOptions&) override {
    TRAINER_CHECK(false, "a world must be configured before NCCL is added to it");
  }
  void fail(Code code, const std::string& why) noexcept override { below_.fail(code, why); }
  bool wait_for_all_ranks(double seconds) noexcept override { return below_.wait_for_all_ranks(seconds); }
  int64_t bytes_sent() const override { return below_.bytes_sent(); }

  std::unique_ptr<Communicator> communicator(device::Device& device, Group group, Purpose purpose) override {
    const auto key = link_of(group, purpose, fabric_.streams());
    if (&device != &device_ || !key) return below_.communicator(device, std::move(group), purpose);
    std::shared_ptr<Link>& link = links_[*key];
    if (link == nullptr)
      link = std::make_shared<Link>(Link{group, group.link > 0 ? fabric_.add_stream() : key->second});
    return std::make_unique<NcclCommunicator>(fabric_, std::move(group), purpose, link);
  }

  void connect() override {
    // Every rank must take part in every split, and in the same order. So all ranks gather the union of their requests
    // and split in its order.
    std::string requested;
    for (const auto& [key, link] : links_)
      if (link->comm == nullptr) requested += format("{} {}\n", key.first, key.second);
    std::set<std::pair<uint32_t, int>> all;
    for (const std::string& text : control().gather(requested)) {
      std::istringstream lines(text);
      for (std::pair<uint32_t, int> key; lines >> key.first >> key.second;) all.insert(key);
    }
    for (const auto& key : all) {
      const auto found = links_.find(key);
      if (found == links_.end()) {
        fabric_.split(NCCL_SPLIT_NOCOLOR, 0, "other ranks' groups");
        continue;
      }
      const Group& group = found->second->group;  // all ranks of the group pass the lowest one as color
      const int color = *std::min_element(group.members.begin(), group.members.end());
      found->second->comm = fabric_.split(color, group.index, group.name, channels_of(group));
    }
  }

 private:
  EngineWorld& below_;
  device::Device& device_;
  Fabric fabric_;
  std::map<std::pair<uint32_t, int>, std::shared_ptr<Link>> links_;  // by axes, and stream or link
};

}  // namespace

Version version() {
  int code = 0;
  try {
    if (ncclGetVersion(&code) != ncclSuccess) return {.name = "NCCL of unknown version"};
  } catch (const Error& error) {
    return {.missing = error.what()};
  }
  return {.name = format("NCCL {}.{}.{}", code / 10000, code / 100 % 100, code % 100)};
}

std::unique_ptr<World> make_world(World& below, device::Device& device) {
  auto* world = dynamic_cast<EngineWorld*>(&below);
  TRAINER_CHECK(world != nullptr && device.kind() == device::DeviceKind::cuda,
                "NCCL requires a world of several ranks, each on a GPU");
  return std::make_unique<NcclWorld>(*world, device);
}

}  // namespace trainer::comm::nccl
