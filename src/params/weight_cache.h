#pragma once
// WeightCache: the matrices of slots as products read them: where they are stored, gathered from the ranks that store a
// piece each, and packed.
//
// A gathered matrix lives while somebody holds it, and one use longer ahead: a dry pass of a program records the order
// of its uses, and afterwards each use starts the gather of the next one, across layers, passes and recomputation. So
// at most two are in memory where one is held at a time. What is held, or on its way, is gathered no second time.
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

  /// `id` is gathered once after each change of the weights, into memory of its own (AxoNN's cached layers). Before
  /// ParamStore::allocate(). Nothing to do for slots that are stored where they are used.
  void keep(SlotId id);
  /// Whether gathers start one use ahead (true); otherwise each is waited for at once, to see what it costs. What is
  /// gathered is the same.
  void set_gather_ahead(bool ahead) { ahead_ = ahead; }

  /// Runs `body` on a dry device, and learns in which order it uses slots. Known programs are left alone.
  void record(const std::string& program, const std::function<void()>& body);
  /// What follows, until end(), are the uses of that program (others go without gathers ahead): starts the first
  /// gather.
  void begin(Exec& ex, const std::string& program);
  void end();

  /// Keeps a slot's matrix here until it is dropped. Move-only.
  class Held {
   public:
    Held(Held&& other) noexcept
        : tensor_(other.tensor_), users_(std::exchange(other.users_, nullptr)), memory_(other.memory_) {}
    Held& operator=(Held&&) = delete;
    ~Held() {
      if (users_ != nullptr && --*users_ == 0) memory_->reset();
    }
    operator const Tensor&() const { return tensor_; }
    const Tensor& tensor() const { return tensor_; }

   private:
    friend class WeightCache;
    Held(const Tensor& tensor, int* users, Scratch* memory) : tensor_(tensor), users_(users), memory_(memory) {}
    Tensor tensor_;
    int* users_;  // null: stored here
    Scratch* memory_;
  };
  /// The slot's matrix, of compute type, for use: waits for its gather. Memory is taken from ex.arena. Every rank of
  /// the slot's flat axes calls, in the same order.
  Held hold(Exec& ex, SlotId id);
  /// Packed op(b) for products with this slot (see ops::prefers_packed), which is held; made on first use after each
  /// change of the weights. Empty when packing does not pay here, and for what is gathered for each use.
  Tensor packed(Exec& ex, SlotId id, bool transposed);

  /// The weights are others now: packed forms and what was kept are stale.
  void weights_changed() { ++version_; }
  /// What was kept is gathered anew: an evaluation in between does not change what a step communicates.
  void forget_kept();

 private:
  friend class ParamStore;
  struct Packed {
    Buffer buffer;
    int64_t version = -1;
  };
  struct Entry {
    bool keep = false;
    Buffer kept;
    int64_t version = -1;  // of what is kept
    Scratch memory;        // of what is not
    comm::Ticket ticket;   // of the gather
    int users = 0;         // the next one included
    Packed packed[2];      // as b, as bᵀ
  };
  /// Of all slots, and the memory of kept ones.
  void allocate();
  void start(Exec& ex, SlotId id);
  Tensor gathered(const Entry& entry) const { return entry.keep ? entry.kept.tensor() : entry.memory.tensor(); }

  ParamStore& store_;
  std::vector<SlotId> keep_;
  std::vector<Entry> entries_;  // by slot
  std::map<std::string, std::vector<SlotId>> orders_;
  std::vector<SlotId>* recording_ = nullptr;
  const std::vector<SlotId>* order_ = nullptr;  // of the program at hand
  size_t next_ = 0;
  bool started_ = false;  // the gather of the next use
  bool ahead_ = true;
  int64_t version_ = 0;
};

}  // namespace trainer::params
