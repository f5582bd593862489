#pragma once
// WeightCache: the slots' matrices in the form that GEMMs read. Sharded matrices are all-gathered; some are packed.
//
// A dry pass of a program records the order in which it uses matrices. Afterwards each use prefetches the next matrix:
// it starts that matrix's gather, across layers, passes and recomputation. A gathered matrix stays in memory from its
// prefetch until it is released, so at most two are in memory if one is held at a time. A matrix that is held or in
// flight is not gathered again.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "params/param_table.h"
#include "tensor/buffer.h"

namespace trainer::params {

class ParamStore;

class WeightCache {
 public:
  explicit WeightCache(ParamStore& store) : store_(store) {}

  /// Marks `id` to be gathered once after each change of the weights, into its own memory (AxoNN's cached layers). Must
  /// be called before ParamStore::allocate(). Does nothing for slots that are not sharded.
  void keep(SlotId id);
  /// Sets whether matrices are prefetched. If not, each gather blocks, which shows its cost; the gathers are the same.
  void set_gather_ahead(bool ahead) { ahead_ = ahead; }

  /// Sets the number of micro-batches between two updates. It decides whether packing the weights pays off.
  void expect_micro_batches(int64_t number) { micro_batches_ = number; }
  /// With one or two micro-batches, keeps no packed copies, which take up to twice the memory of the weights in bf16.
  /// GEMMs then pack weights each time.
  void save_memory_if_few() { saves_memory_ = true; }

  /// Runs `body`, which must use a dry device, and records the order in which it uses slots. Does nothing if the
  /// program is already recorded.
  void record(const std::string& program, const std::function<void()>& body);
  /// Begins a program, which lasts until end(), and starts its first gather. Uses outside a program are not prefetched.
  void begin(Exec& ex, const std::string& program);
  void end();

  /// Keeps a slot's matrix in memory until this object is destroyed. Move-only.
  class Held {
   public:
    Held(Held&& other) noexcept
        : tensor_(other.tensor_), users_(std::exchange(other.users_, nullptr)), memory_(other.memory_) {}
    Held& operator=(Held&&) = delete;
    ~Held() { release(); }
    /// Ends the use of the matrix.
    void release() {
      if (int* const users = std::exchange(users_, nullptr); users != nullptr && --*users == 0) memory_->reset();
    }
    operator const Tensor&() const { return tensor_; }

   private:
    friend class WeightCache;
    Held(const Tensor& tensor, int* users, Scratch* memory) : tensor_(tensor), users_(users), memory_(memory) {}
    Tensor tensor_;
    int* users_;  // null: not gathered
    Scratch* memory_;
  };
  enum class Next : uint8_t { now, later };
  /// Returns the slot's matrix, in the compute type; waits for its gather. Memory is taken from ex.arena. Collective
  /// over the slot's flat axes: every rank must call in the same order. `next`: whether the next matrix is prefetched
  /// now or by prefetch().
  Held hold(Exec& ex, SlotId id, Next next = Next::now);
  /// Starts the gather of the next matrix of a recorded program, unless it is in flight. Collective like hold().
  void prefetch(Exec& ex);
  /// Returns packed op(b) for a GEMM of `rows` rows with this slot (see ops::prefers_packed), which must be held. Empty
  /// if packing does not pay off, and for slots that are gathered for each use. `gemms`: how many such GEMMs a
  /// micro-batch has. If there are many until the weights change, the copy is kept; if not, it is valid only until the
  /// next call. A constant matrix that is neither transposed nor gathered is always packed, and then released.
  Tensor packed(Exec& ex, SlotId id, bool transposed, int64_t rows, int64_t gemms = 1);
  /// Returns whether such GEMMs are faster with a packed matrix, even if no copy is kept.
  bool gains_from_packing(SlotId id, bool transposed, int64_t rows) const;
  /// Returns the bytes of the packed form that such GEMMs keep; 0: none.
  int64_t copy_bytes(SlotId id, bool transposed, int64_t rows) const {
    return gains_from_packing(id, transposed, rows) ? packed_bytes(id, transposed) : 0;
  }

  /// Packs the constant matrices that a dry pass has used, so that the first pass does not wait for it.
  void pack_constant(Exec& ex);

  /// Marks packed forms and kept matrices as stale, after the weights have changed.
  void weights_changed() { ++version_; }
  /// Marks kept matrices to be gathered again, so that an evaluation between two steps does not change a step's
  /// communication.
  void forget_kept();

 private:
  friend class ParamStore;
  struct Packed {
    Buffer buffer;
    int64_t version = -1;  // version of the packed weights
    int64_t counted = -1;  // version of the weights whose packing a dry pass has counted
  };
  struct Entry {
    bool keep = false;
    Buffer kept;
    int64_t version = -1;  // version of the kept weights
    Scratch memory;        // memory of a matrix that is not kept
    comm::Ticket ticket;   // the gather in flight
    int users = 0;         // users of the matrix, including a prefetch for the next use
    Packed packed[2];      // packed as b, and as bᵀ
  };
  /// Creates the entries of all slots, and allocates the memory of kept matrices.
  void allocate();
  void start(Exec& ex, SlotId id);
  bool prefers_packed(SlotId id, bool transposed, int64_t rows, int64_t uses) const;
  bool stays_in_memory(SlotId id) const;
  int64_t packed_bytes(SlotId id, bool transposed) const;
  /// Returns the next `bytes` bytes of ring_; empty for large matrices, which GEMMs pack in panels.
  Tensor next_in_ring(int64_t bytes);
  Tensor gathered(const Entry& entry) const { return entry.keep ? entry.kept.tensor() : entry.memory.tensor(); }

  ParamStore& store_;
  std::vector<SlotId> keep_;
  std::vector<Entry> entries_;  // by slot
  std::map<std::string, std::vector<SlotId>> orders_;
  std::vector<SlotId>* recording_ = nullptr;
  const std::vector<SlotId>* order_ = nullptr;  // the order of the recorded program in use
  size_t next_ = 0;
  bool started_ = false;  // true if the gather of the next use is in flight
  bool ahead_ = true;
  int64_t micro_batches_ = int64_t{1} << 30;  // between two changes of the weights; many unless set
  bool saves_memory_ = false;
  Buffer ring_;  // packed forms of the weights used last
  int64_t ring_at_ = 0;
  int64_t version_ = 0;
};

}  // namespace trainer::params
