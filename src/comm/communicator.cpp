#include "comm/communicator.h"

#include <algorithm>
#include <numeric>

#include "comm/reduce_kernels.h"
#include "comm/staged.h"

namespace trainer::comm {
namespace {

bool overlap(const Tensor& a, const Tensor& b) {
  return a.data != nullptr && b.data != nullptr && a.data < b.data + b.bytes() && b.data < a.data + a.bytes();
}

/// True if `part` is elements [begin, …) of `whole`, or does not overlap it.
bool in_place_or_apart(const Tensor& part, const Tensor& whole, int64_t begin) {
  return part.count() == 0 || !overlap(part, whole) || part.data == whole.data + begin * size_of(whole.dtype);
}

}  // namespace

Communicator::Communicator(Group group) : group_(std::move(group)) {
  TRAINER_CHECK(group_.link == 0 || (group_.link > 0 && group_.link <= kLinks && size() == 2),
                "link {} along {} connects {} ranks, expected two ranks and a number of at most {}", group_.link,
                group_.name, size(), kLinks);
}
Communicator::~Communicator() = default;

std::string_view name_of(Purpose purpose) {
  static constexpr std::string_view names[kPurposes] = {"critical", "weights", "grads", "control"};
  return names[static_cast<size_t>(purpose)];
}

Chunk Communicator::own_part(int64_t n, Chunk window) const {
  const Chunk own = chunk(n);
  return window.count == 0 ? own : Chunk{own.begin + window.begin, window.count};
}

Ticket Communicator::all_reduce(Exec& ex, const Tensor& inout, Reduce reduce, Chunk window) {
  return submit(ex, {.op = CommOp::all_reduce, .reduce = reduce, .in = inout, .out = inout, .window = window},
                payload_of(inout.count(), window));
}

Ticket Communicator::reduce_scatter(Exec& ex, const Tensor& in, const Tensor& out, Reduce reduce, Chunk window) {
  const Chunk mine = own_part(in.count(), window);
  TRAINER_CHECK(out.count() == mine.count,
                "reduce_scatter of {} into {}, but the chunk of rank {} of {} has {} elements", to_string(in),
                to_string(out), rank(), size(), mine.count);
  TRAINER_CHECK(in_place_or_apart(out, in, mine.begin),
                "reduce_scatter must write to this rank's chunk of its input or to separate memory");
  return submit(ex, {.op = CommOp::reduce_scatter, .reduce = reduce, .in = in, .out = out, .window = window},
                payload_of(in.count(), window));
}

Ticket Communicator::all_gather(Exec& ex, const Tensor& in, const Tensor& out, Chunk window) {
  const Chunk mine = own_part(out.count(), window);
  TRAINER_CHECK(in.count() == mine.count, "all_gather of {} into {}, but the chunk of rank {} of {} has {} elements",
                to_string(in), to_string(out), rank(), size(), mine.count);
  TRAINER_CHECK(in_place_or_apart(in, out, mine.begin),
                "all_gather must read from this rank's chunk of its output or from separate memory");
  return submit(ex, {.op = CommOp::all_gather, .in = in, .out = out, .window = window},
                payload_of(out.count(), window));
}

Ticket Communicator::broadcast(Exec& ex, const Tensor& inout, int root) {
  return submit(ex, {CommOp::broadcast, Reduce::sum, inout, inout, root}, inout.count());
}

Ticket Communicator::reduce(Exec& ex, const Tensor& inout, int root, Reduce reduce) {
  return submit(ex, {CommOp::reduce, reduce, inout, inout, root}, inout.count());
}

Ticket Communicator::all_to_all(Exec& ex, const Tensor& in, const Tensor& out) {
  TRAINER_CHECK(
      in.count() == out.count() && in.count() % size() == 0,
      "all_to_all of {} into {} over {} ranks requires equal counts that are divisible by the number of ranks",
      to_string(in), to_string(out), size());
  TRAINER_CHECK(!overlap(in, out), "the input and output of all_to_all must not overlap");
  return submit(ex, {CommOp::all_to_all, Reduce::sum, in, out}, in.count());
}

Ticket Communicator::all_to_all(Exec& ex, const Tensor& in, const Tensor& out, const PeerCounts& counts) {
  const auto sum = [](std::span<const int64_t> of) { return std::accumulate(of.begin(), of.end(), int64_t{0}); };
  const auto ranks = static_cast<size_t>(size()), own = static_cast<size_t>(rank());
  TRAINER_CHECK(counts.send.size() == ranks && counts.receive.size() == ranks && sum(counts.send) == in.count() &&
                    sum(counts.receive) == out.count() && counts.send[own] == counts.receive[own],
                "all_to_all of {} into {} over {} ranks: the counts of {} and {} ranks do not add up", to_string(in),
                to_string(out), size(), counts.send.size(), counts.receive.size());
  TRAINER_CHECK(!overlap(in, out), "the input and output of all_to_all must not overlap");
  const int64_t payload = size() == 1 ? in.count() : divide_up(counts.wire, int64_t{size() - 1});
  return submit(ex, {.op = CommOp::all_to_all, .in = in, .out = out, .counts = counts}, payload, counts.wire);
}

Ticket Communicator::shift(Exec& ex, const Tensor& in, const Tensor& out) {
  TRAINER_CHECK(in.count() == out.count() && !overlap(in, out),
                "shift of {} into {} requires equal counts and memory that does not overlap", to_string(in),
                to_string(out));
  return submit(ex, {.op = CommOp::shift, .in = in, .out = out}, in.count());
}

Ticket Communicator::send(Exec& ex, const Tensor& tensor) {
  const Tensor none{tensor.data, {0}, tensor.dtype};  // a rank reads or writes, but not both
  const bool sends = rank() == 0;
  return submit(ex, {.op = CommOp::send, .in = sends ? tensor : none, .out = sends ? none : tensor}, tensor.count());
}

Ticket Communicator::submit(Exec& ex, const Request& r, int64_t payload, int64_t wire) {
  const bool reduces = r.op == CommOp::all_reduce || r.op == CommOp::reduce_scatter || r.op == CommOp::reduce;
  TRAINER_CHECK(r.in && r.out && r.in.dtype == r.out.dtype && r.in.packed() && r.out.packed(),
                "{} along {} of {} into {}: tensors must be packed and of one type", name_of(r.op), group_.name,
                to_string(r.in), to_string(r.out));
  TRAINER_CHECK(!reduces || is_reduced(r.in.dtype), "{} along {} of {}: elements of this type cannot be reduced",
                name_of(r.op), group_.name, to_string(r.in));
  TRAINER_CHECK((r.op == CommOp::send) == (group_.link > 0),
                "{} along {}: send() requires a link, which has only send()", name_of(r.op), group_.name);
  TRAINER_CHECK(r.root >= 0 && r.root < size(), "{} with root {} in a group of {} ranks", name_of(r.op), r.root,
                size());

  if (const Chunk window = r.window; window.count > 0) {
    const int64_t n = r.op == CommOp::all_gather ? r.out.count() : r.in.count();
    TRAINER_CHECK(n % size() == 0 && window.begin >= 0 && window.begin + window.count <= n / size(),
                  "{} of {} elements over {} ranks: elements {} to {} are not a window of equal chunks", name_of(r.op),
                  n, size(), window.begin, window.begin + window.count);
    TRAINER_CHECK(payload > kDirectElements && ex.device.kind() == device::DeviceKind::cpu,
                  "{} of a window requires more than {} elements in CPU memory, got {}", name_of(r.op), kDirectElements,
                  payload);
  }

  const CommKey key{group_.purpose == Purpose::control ? kControlGroup : group_.axes, r.op, r.in.dtype};
  if (size() == 1) {
    if (r.in.data != r.out.data) ex.device.copy_rows(r.out.data, 0, r.in.data, 0, 1, r.in.bytes());
    return Ticket(nullptr, key);
  }
  const int64_t elements = wire < 0 ? wire_elements(r.op, size(), payload) : wire;
  const int64_t wire_bytes = elements * size_of(r.in.dtype);
  const bool counts = r.op != CommOp::send || rank() == 0;
  if (counts) ex.meter.add(key, payload, wire_bytes);
  const int64_t recorded =
      ex.meter.recorder == nullptr
          ? -1
          : ex.meter.recorder->add_collective({group_.axes, r.op, r.in.dtype}, static_cast<uint8_t>(group_.queue()),
                                              payload, counts ? wire_bytes : 0, r.counts.varies);
  if (ex.device.dry()) return {nullptr, key, recorded};
  if (payload == 0) {  // an empty message, or an all_to_all in which each rank sends only to itself
    if (r.op == CommOp::all_to_all) ex.device.copy_rows(r.out.data, 0, r.in.data, 0, 1, r.in.bytes());
    return {nullptr, key, recorded};
  }
  const bool direct = ex.device.kind() == device::DeviceKind::cpu || can_reach_gpus();
  return {direct ? start(r) : start_staged(ex.device, r), key, recorded, wire_bytes};
}

Pending* Communicator::start_staged(device::Device& device, Request request) {
  auto free = std::ranges::find_if(staged_, [](const auto& staged) { return !staged->is_busy(); });
  if (free == staged_.end()) free = staged_.insert(free, std::make_unique<Staged>(device));
  request.arriving = (*free)->stage(request.in, request.out);
  (*free)->follow(start(request));
  return free->get();
}

}  // namespace trainer::comm
