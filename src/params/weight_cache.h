#pragma once
// WeightCache: the matrices of slots in the form that GEMMs read. Sharded ones are all-gathered; some are packed.
//
// A gathered matrix lives from the use before it is held until it is released. A dry pass of a program records the
// order of its uses. Afterwards each use starts the gather of the next one, across layers, passes and recomputation, so
// at most two matrices are in memory if one is held at a time. A matrix that is held or in flight is not gathered
// again.
#include <functional>
#include <limits>
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
  /// Sets whether gathers start one use ahead. If not, each gather blocks, which shows its cost. The gathers are the
  /// same.
  void set_gather_ahead(bool ahead) { ahead_ = ahead; }

  /// Sets how many GEMMs of a kind read a weight between two updates, which decides whether packing it pays off.
  void expect_uses(int64_t uses) { uses_ = uses; }

  /// Runs `body` on a dry device and records in which order it uses slots. Skips programs that are recorded already.
  void record(const std::string& program, const std::function<void()>& body);
  /// Begins a program, whose uses follow until end(), and starts its first gather. Uses outside of programs are not
  /// gathered ahead.
  void begin(Exec& ex, const std::string& program);
  void end();

  /// Keeps a slot's matrix on this rank until it is destroyed. Move-only.
  class Held {
   public:
    Held(Held&& other) noexcept
        : tensor_(other.tensor_), users_(std::exchange(other.users_, nullptr)), memory_(other.memory_) {}
    Held& operator=(Held&&) = delete;
    ~Held() {
      if (users_ != nullptr && --*users_ == 0) memory_->reset();
    }
    operator const Tensor&() const { return tensor_; }

   private:
    friend class WeightCache;
    Held(const Tensor& tensor, int* users, Scratch* memory) : tensor_(tensor), users_(users), memory_(memory) {}
    Tensor tensor_;
    int* users_;  // null: not gathered
    Scratch* memory_;
  };
  /// Returns the slot's matrix, of compute type, for use; waits for its gather. Memory is taken from ex.arena.
  /// Collective over the slot's flat axes: every rank calls in the same order.
  Held hold(Exec& ex, SlotId id);
  /// Returns packed op(b) for a GEMM of `rows` rows with this slot (see ops::prefers_packed), which must be held. It is
  /// packed on first use after each change of the weights. Empty if packing does not pay off, and for slots that are
  /// gathered for each use.
  Tensor packed(Exec& ex, SlotId id, bool transposed, int64_t rows);

  /// Marks packed forms and kept matrices as stale, after the weights have changed.
  void weights_changed() { ++version_; }
  /// Marks kept matrices to be gathered again, so that an evaluation in between does not change the communication of a
  /// step.
  void forget_kept();

 private:
  friend class ParamStore;
  struct Packed {
    Buffer buffer;
    int64_t version = -1;  // of the packed weights,
    int64_t counted = -1;  // and of those whose packing a dry pass has counted
  };
  struct Entry {
    bool keep = false;
    Buffer kept;
    int64_t version = -1;  // of the kept weights
    Scratch memory;        // of a matrix that is not kept
    comm::Ticket ticket;   // the gather in flight
    int users = 0;         // users of the matrix, including the next one
    Packed packed[2];      // packed as b, and as bᵀ
  };
  /// Makes the entries of all slots, and allocates the memory of kept ones.
  void allocate();
  void start(Exec& ex, SlotId id);
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
  int64_t uses_ = std::numeric_limits<int64_t>::max();  // GEMMs between two changes of the weights
  int64_t version_ = 0;
};

}  // namespace trainer::params
