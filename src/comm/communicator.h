#pragma once
// Communicator: collectives among the ranks of one group (the ranks along some axes of the mesh), for one purpose; or
// messages on a link, from one rank to another.
//
// An operation starts immediately and overlaps with compute; its Ticket is joined before the memory is used again. The
// operations of one communicator run in the order in which they were started, which must be the same on all its ranks.
// Operations on different channels (a group and a purpose, see WorldOptions::lanes; or a link) are independent. The
// order of a reduction depends on neither the transport nor timing, so results are bitwise identical in every run, with
// threads and with processes. NCCL has its own order (comm/nccl/nccl_world.h).
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/bytes.h"
#include "tensor/exec.h"

namespace trainer::comm {

enum class Reduce : uint8_t { sum, max };

/// The purpose of an operation.
///   critical  activations, on the critical path of the step
///   weights   all-gathers of weights before their use
///   grads     gradient reductions
///   control   scalars and agreement, not part of the cost formulas
enum class Purpose : uint8_t { critical, weights, grads, control };
inline constexpr int kPurposes = 4;
std::string_view name_of(Purpose purpose);

/// The value of Group::axes for the group of all ranks that exchanges host data (Control). The mesh calls it
/// kControlAxes.
inline constexpr uint32_t kControlGroup = ~uint32_t{0};

/// The direction of messages between neighbours in a ring of ranks: to the next rank, or to the previous one.
enum class Way : uint8_t { forward, back };
inline constexpr int kLinks = 6;
/// Returns the number of the link (Group::link) on which the rank at place `from` of a ring sends to its neighbour. The
/// links of a rank have different numbers, also in a ring of two: pairs of neighbours that share a rank have different
/// colors.
constexpr int link_in_ring(int ranks, int from, Way way) {
  const int pair = way == Way::forward ? from : (from + ranks - 1) % ranks;  // the places `pair` and pair + 1
  const int color = pair == ranks - 1 && ranks % 2 == 1 ? 2 : pair % 2;
  return 1 + 2 * color + static_cast<int>(way);
}

/// The ranks that a communicator connects: `members` are world ranks in group order, `index` is the caller's position
/// among them.
struct Group {
  uint32_t axes = 0;  // selects the counters and the channel; groups that share a rank have different axes
  std::string name;   // "tensor", "data", "control", for messages
  std::vector<int> members;
  int index = 0;
  Purpose purpose = Purpose::critical;  // control: counted under kControlGroup
  int link = 0;  // 1 to kLinks: a link, on which members[0] sends to members[1]; 0: the group has no direction

  /// Returns the number of the group's queue among those of the ranks along its axes: its purpose, or its link.
  int queue() const { return link > 0 ? kPurposes + link - 1 : static_cast<int>(purpose); }
};
inline constexpr int kQueues = kPurposes + kLinks;

/// The number of elements that a rank sends to and receives from each member of its group, in group order. All ranks
/// know their counts beforehand: a message of an unexpected length is an internal error that names both ranks. The
/// counts must stay valid until the operation is joined.
struct PeerCounts {
  std::span<const int64_t> send, receive;
  int64_t wire = 0;     // all elements that ranks send to other ranks
  int64_t longest = 0;  // the most elements that one rank sends to one member
  bool varies = false;  // the counts depend on the data of the step
};

/// A started operation, as the engine implements it (engine.h).
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until the operation is complete; returns the time from its first message to its end, if known. Throws
  /// Code::comm with the operation, the axis and the missing ranks.
  virtual Interval wait() = 0;
  /// Called instead of wait() when an exception unwinds: returns once the operation no longer accesses any memory.
  virtual void abandon() noexcept = 0;
};

/// A collective in flight, which must be joined exactly once. Destroying an unjoined ticket is an internal error,
/// except while an exception unwinds.
class [[nodiscard]] Ticket {
 public:
  Ticket() = default;  // holds no collective: not open, must not be joined
  /// `recorded`: the operation's number in the meter's recorder; negative: none.
  Ticket(Pending* pending, const CommKey& key, int64_t recorded = -1, int64_t wire_bytes = 0)
      : pending_(pending),
        key_(key),
        recorded_(recorded),
        wire_bytes_(wire_bytes),
        started_(now_seconds()),
        open_(true) {}
  Ticket(Ticket&& other) noexcept { *this = std::move(other); }
  Ticket& operator=(Ticket&& other);
  ~Ticket() noexcept(false);

  /// Makes the ticket own memory that the operation uses, until the ticket is joined. At most two calls.
  void keep(Scratch&& scratch);
  /// Waits for the operation; the waiting time is charged to the operation's axis in ex.meter. Releases the scratch
  /// memory. Returns the time from the operation's first message to its end; zeros if it runs on a GPU stream or there
  /// was nothing to do.
  Interval join(Exec& ex);
  bool is_open() const { return open_; }

 private:
  Pending* pending_ = nullptr;  // null: already complete (a group of one, a dry run)
  CommKey key_;
  int64_t recorded_ = -1;
  int64_t wire_bytes_ = 0;
  double started_ = 0;
  bool open_ = false;
  std::array<Scratch, 2> kept_;
};

class Staged;

/// Starts collectives; n is a number of elements.
///   - Tensors are packed and of one dtype: f64, f32, bf16, i32 or i64 in reductions, any type otherwise.
///   - bf16 is rounded after each addition.
///   - Operands in GPU memory go through the host, unless NCCL carries them.
///   - Memory must stay valid until the ticket is joined.
///   - Every call in a group of two or more is counted in ex.meter under the group's axes. On a dry device, calls
///     are only counted.
///   - A group of one copies immediately and counts nothing. Shapes are checked (internal error).
///   - A link has send() only, other groups have all operations but send().
class Communicator {
 public:
  explicit Communicator(Group group);
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int size() const { return static_cast<int>(group_.members.size()); }
  int rank() const { return group_.index; }  // position in the group
  const Group& group() const { return group_; }
  Chunk chunk(int64_t n) const { return chunk_of(n, size(), rank()); }

  // all_reduce, reduce_scatter and all_gather accept a window: only elements [begin, begin + count) of each rank's
  // chunk take part, and all others are neither read nor written. Several operations whose windows cover the chunks
  // have the result of the operation without a window, bit for bit, and move each element once. A rank's own part
  // (`out` of reduce_scatter, `in` of all_gather) consists of the window only. Windows require chunks of equal length,
  // operands in CPU memory, and more than kDirectElements elements in all windows together.

  /// inout [n] ← the reduction over all ranks. The sum of chunk c is ((x_{c+1} + x_{c+2}) + …) + x_c, with indices
  /// modulo the group size; for n ≤ kDirectElements it is x_0 + x_1 + … in f64 (i64 for integers).
  Ticket all_reduce(Exec& ex, const Tensor& inout, Reduce reduce = Reduce::sum, Chunk window = {});
  /// in [n] → out [chunk(n).count], the rank's chunk of the same reduction as all_reduce (bit-identical). `out` may be
  /// that chunk of `in`. The rest of `in` is not changed.
  Ticket reduce_scatter(Exec& ex, const Tensor& in, const Tensor& out, Reduce reduce = Reduce::sum, Chunk window = {});
  /// in [chunk(n).count] → out [n]. `in` may be that chunk of `out`.
  Ticket all_gather(Exec& ex, const Tensor& in, const Tensor& out, Chunk window = {});
  /// inout [n] of `root` is copied to every rank.
  Ticket broadcast(Exec& ex, const Tensor& inout, int root);
  /// inout [n] of `root` becomes the reduction; on other ranks inout is not changed. The sum is ((x_{root+1} +
  /// x_{root+2}) + …) + x_root, or as in all_reduce for n ≤ kDirectElements.
  Ticket reduce(Exec& ex, const Tensor& inout, int root, Reduce reduce = Reduce::sum);
  /// in, out [g·k]: piece j of `in` (k elements) becomes piece rank() of rank j's `out`. `in` and `out` must not
  /// overlap.
  Ticket all_to_all(Exec& ex, const Tensor& in, const Tensor& out);
  /// The same with pieces of different lengths: `in` has the pieces for all members in group order, `out` those from
  /// all members. A rank's piece for itself is copied. The payload is that of an equal all_to_all with as many elements
  /// on the wire, rounded up.
  Ticket all_to_all(Exec& ex, const Tensor& in, const Tensor& out, const PeerCounts& counts);
  /// in, out [n], the same n on all ranks: `in` becomes the `out` of the next rank in the group; the first rank
  /// receives from the last one. `in` and `out` must not overlap.
  Ticket shift(Exec& ex, const Tensor& in, const Tensor& out);
  /// On a link: the first rank's tensor is copied to the second rank's, which has equal type and count. Both ranks call
  /// in the same order; an empty tensor sends no message. Only the first rank counts the call. Its send may complete
  /// only when the second rank has started to receive: two ranks that send to each other both start to receive before
  /// they join what they send.
  Ticket send(Exec& ex, const Tensor& tensor);

 protected:
  struct Request {
    CommOp op;
    Reduce reduce = Reduce::sum;
    Tensor in, out;  // the same tensor for in-place operations
    int root = 0;
    const device::Mirror* arriving = nullptr;  // `in` is ready when this has been fetched
    PeerCounts counts = {};                    // all_to_all with pieces of different lengths; else empty
    Chunk window = {};                         // window of every rank's chunk; empty: whole chunks
  };
  /// Starts a checked request of at least one element, in a group of two or more, on a device that is not dry. The
  /// pointer is valid until wait() or abandon(); null: already complete.
  virtual Pending* start(const Request& request) = 0;
  /// True if start() accepts operands in GPU memory without staging.
  virtual bool can_reach_gpus() const { return false; }

 private:
  /// Returns this rank's chunk of n elements, or the window's part of it.
  Chunk own_part(int64_t n, Chunk window) const;
  /// Returns the payload of an operation on n elements, or on the window.
  int64_t payload_of(int64_t n, Chunk window) const { return window.count == 0 ? n : window.count * size(); }
  /// `wire`: elements on the wire; negative: those of comm/bytes.h.
  Ticket submit(Exec& ex, const Request& request, int64_t payload, int64_t wire = -1);
  /// Starts a request whose operands are in GPU memory, and copies them through the host.
  Pending* start_staged(device::Device& device, Request request);
  Group group_;
  std::vector<std::unique_ptr<Staged>> staged_;
};

}  // namespace trainer::comm
