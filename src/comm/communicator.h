#pragma once
// Communicator: collectives among the ranks of one group (the ranks along some axes of the mesh), on one lane.
//
// An operation starts immediately and overlaps with compute; its Ticket is joined before the memory is used again.
// Operations of one communicator run in the order they were started, which must be the same on all its ranks.
// Operations of different channels are independent. Reductions have a fixed order that depends on neither the transport
// nor timing: results are bitwise identical on every run, with threads and with processes. NCCL has its own order
// (comm/nccl/nccl_world.h).
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/bytes.h"
#include "tensor/exec.h"

namespace trainer::comm {

enum class Reduce : uint8_t { sum, max };

/// The purpose of an operation.
///   critical  activations on the path of the step
///   weights   all-gathers of weights before their use
///   grads     gradient reductions
///   control   scalars and agreement, not part of the cost formulas
enum class Lane : uint8_t { critical, weights, grads, control };
inline constexpr int kLanes = 4;
std::string_view name_of(Lane lane);

/// Represents all ranks in place of a set of axes, for host data (Control). The mesh calls it kControlAxes.
inline constexpr uint32_t kControlGroup = ~uint32_t{0};

/// The ranks that a communicator connects: `members` are world ranks in group order, `index` is the caller's position
/// among them.
struct Group {
  uint32_t axes = 0;  // for counting and as the channel; groups that share a rank have different axes
  std::string name;   // "tensor", "data", "control", for messages
  std::vector<int> members;
  int index = 0;
  bool control = false;  // scalars and agreement: counted under kControlGroup
  Lane lane = Lane::critical;
};

/// A started operation from the engine's point of view (engine.h).
class Pending {
 public:
  virtual ~Pending() = default;
  /// Returns when the operation is complete, with the time from its first message to its end, as far as it is known.
  /// Throws Code::comm naming the operation, the axis, its ranks and those that are missing.
  virtual Interval wait() = 0;
  /// Called instead of wait() when an exception unwinds: returns once no memory of the operation is touched any more.
  virtual void abandon() noexcept = 0;
};

/// A ticket is a collective in flight and is joined exactly once. Destroying an unjoined ticket is an internal error,
/// except while an exception unwinds.
class [[nodiscard]] Ticket {
 public:
  Ticket() = default;  // holds no collective: not open, never joined
  /// `recorded`: its number in the meter's recorder; negative: none.
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

  /// Makes the ticket own memory that the operation uses, until it is joined. At most two calls.
  void keep(Scratch&& scratch);
  /// Waits for the operation; the waiting time is charged to its axis in ex.meter. Releases the scratch memory. Returns
  /// the time from its first message to its end; zeros if a GPU stream runs it or there was nothing to do.
  Interval join(Exec& ex);
  bool is_open() const { return open_; }

 private:
  Pending* pending_ = nullptr;  // null: complete from the start (a group of one, a dry run)
  CommKey key_;
  int64_t recorded_ = -1;
  int64_t wire_bytes_ = 0;
  double started_ = 0;
  bool open_ = false;
  std::array<Scratch, 2> kept_;
};

class Staged;

/// A communicator starts collectives; n is a count of elements.
///   - Tensors are packed and of one dtype: f64, f32, bf16, i32 or i64 in reductions, any type otherwise.
///   - bf16 is rounded after each addition.
///   - Operands in GPU memory go through the host, unless NCCL carries them.
///   - Memory must stay in place until the ticket is joined.
///   - Every call of a group of two or more is counted in ex.meter under its axes. A dry device only counts.
///   - A group of one copies immediately and counts nothing. Shapes are checked (internal error).
class Communicator {
 public:
  explicit Communicator(Group group);
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int size() const { return static_cast<int>(group_.members.size()); }
  int rank() const { return group_.index; }  // within the group
  const Group& group() const { return group_; }
  Chunk chunk(int64_t n) const { return chunk_of(n, size(), rank()); }

  /// inout [n] ← the reduction over all ranks. The sum of chunk c is ((x_{c+1} + x_{c+2}) + …) + x_c, with indices
  /// modulo the group size; for n ≤ kDirectElements it is x_0 + x_1 + … in f64 (i64 for integers).
  Ticket all_reduce(Exec& ex, const Tensor& inout, Reduce reduce = Reduce::sum);
  /// in [n] → out [chunk(n).count], the rank's chunk of the same reduction as all_reduce (bit-identical). `out` may be
  /// that chunk of `in`. The rest of `in` is only read.
  Ticket reduce_scatter(Exec& ex, const Tensor& in, const Tensor& out, Reduce reduce = Reduce::sum);
  /// in [chunk(n).count] → out [n]. `in` may be that chunk of `out`.
  Ticket all_gather(Exec& ex, const Tensor& in, const Tensor& out);
  /// inout [n] of `root` is copied to every rank.
  Ticket broadcast(Exec& ex, const Tensor& inout, int root);
  /// inout [n] of `root` becomes the reduction; on other ranks inout is only read. The sum is ((x_{root+1} +
  /// x_{root+2}) + …) + x_root, or as in all_reduce for n ≤ kDirectElements.
  Ticket reduce(Exec& ex, const Tensor& inout, int root, Reduce reduce = Reduce::sum);
  /// in, out [g·k]: piece j of `in` (k elements) becomes piece rank() of rank j's `out`. They must not overlap.
  Ticket all_to_all(Exec& ex, const Tensor& in, const Tensor& out);
  /// send [n] is sent to rank() + shift, recv [n] received from rank() − shift (modulo the group size). They must not
  /// overlap. A shift by a multiple of the group size copies and counts nothing.
  Ticket send_recv(Exec& ex, const Tensor& send, const Tensor& recv, int shift);

 protected:
  struct Request {
    CommOp op;
    Reduce reduce = Reduce::sum;
    Tensor in, out;                            // equal for in-place operations
    int root = 0;                              // root, or the shift of send_recv
    const device::Mirror* arriving = nullptr;  // `in` is ready when this has been fetched
  };
  /// Starts a checked request of at least one element, in a group of two or more, on a device that is not dry. The
  /// pointer lives until wait() or abandon(); null: complete.
  virtual Pending* start(const Request& request) = 0;
  /// True if start() accepts operands in GPU memory without staging.
  virtual bool can_reach_gpus() const { return false; }

 private:
  Ticket submit(Exec& ex, const Request& request, int64_t payload);
  /// Starts a request whose operands are in GPU memory, through the host.
  Pending* start_staged(device::Device& device, Request request);
  Group group_;
  std::vector<std::unique_ptr<Staged>> staged_;
};

}  // namespace trainer::comm
