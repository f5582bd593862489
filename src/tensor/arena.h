#pragma once
// Arena: the memory of a micro-step. The first pass of a program runs on a dry device, and its takes are recorded as
// intervals. The intervals are packed into one block, and every later pass replays the record. So the code is its own
// memory plan: nothing is allocated in the training loop, addresses repeat, and the peak is known before training
// starts.
//
// Programs that run for the same micro-batch with other programs in between (a forward pass now, its backward pass
// later) are recorded as a sequence. A tensor that outlives a program of a sequence is in a frame; micro-batches in
// flight have frames of their own. All other tensors are in the workspace, which programs use one after another:
//   block = [frames of pool 0][frames of pool 1][frames of pool 2][workspace]
// A pool has the tensors of the same two programs, taken in one and released in the other. Programs outside sequences
// use the whole block, while no frame is in use.
#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/buffer.h"

namespace trainer {

class Arena;

/// A tensor that lives as long as this handle. Move-only.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { reset(); }
  Scratch(Scratch&& other) noexcept { *this = std::move(other); }
  Scratch& operator=(Scratch&& other) noexcept;

  explicit operator bool() const { return static_cast<bool>(tensor_); }
  operator const Tensor&() const { return tensor_; }
  const Tensor& tensor() const { return tensor_; }
  /// Releases the memory now.
  void reset() noexcept;

 private:
  friend class Arena;
  Scratch(Arena* arena, int64_t id, Tensor tensor) : arena_(arena), id_(id), tensor_(tensor) {}
  Arena* arena_ = nullptr;
  int64_t id_ = 0;
  Tensor tensor_;
};

class Arena {
 public:
  /// A number for each pool of a sequence: of the tensors that are taken in its first program and released in the
  /// second, taken in the first and released in the third, and taken in the second and released in the third.
  using PerPool = std::array<int64_t, 3>;
  static constexpr int8_t kWorkspace = -1;
  /// One take of a recorded program, alive during events [first, last). `kept`: it stays after the program. `offset`:
  /// in the program's memory, or in a frame of `pool`.
  struct Interval {
    std::string tag;
    int64_t bytes = 0, first = 0, last = 0, offset = 0;
    bool kept = false;
    int8_t pool = kWorkspace;
  };
  /// The takes [first, last) of a program that can be replayed any number of times.
  struct Loop {
    int64_t first = 0, last = 0;
  };
  struct Program {
    std::vector<Interval> intervals;
    std::vector<Interval> around;   // memory that the previous program keeps, alive throughout
    int64_t peak = 0;               // bytes of its packed memory, without frames
    int64_t live_bound = 0;         // the most bytes alive at once in it: a lower bound for any packing
    int64_t drops = 0;              // tensors that it releases
    std::vector<Loop> loops;        // in order
    int sequence = -1, member = 0;  // its sequence, -1 if it is outside any, and its position there
    PerPool frame = {};             // bytes in a frame of each pool of the sequence
  };

  /// `planned`: memory can be taken only within programs. `heap`: every take allocates; for tests and tools.
  enum class Mode { planned, heap };
  explicit Arena(device::Device& device, Mode mode = Mode::planned) : device_(device), mode_(mode) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Runs `body`, which must use a dry device, and records it under `key`. Does nothing if `key` is already recorded.
  /// The program does not use the memory that the program `after` keeps; empty: no program.
  void record(const std::string& key, const std::function<void()>& body, const std::string& after = {});
  /// Records the one to three programs of a sequence, which run in this order. `counts`: how many frames of each pool
  /// are in use at the same time. Sequences share their pools. Internal error if a tensor is not released.
  struct Member {
    std::string key;
    std::function<void()> body;
  };
  void record_sequence(const std::vector<Member>& members, const PerPool& counts = {});
  bool is_recorded(const std::string& key) const { return programs_.contains(key); }
  /// Allocates (or grows) the block for all recorded programs; no Scratch may be alive.
  void seal();

  /// Replays the program `key`, which must take and release tensors as in the record. `slots`: the frames, by pool, in
  /// which its sequence begins or continues with this micro-batch; pools that are empty or neither begin nor end with
  /// this program are not read. Does nothing in heap mode.
  void begin(const std::string& key, const PerPool& slots = {});
  void end();

  /// A part of a program that is recorded once and replayed any number of times, 0 included: see repeat() in
  /// tensor/exec.h. It must release all that it takes, and nothing else, which is an internal error. Loops are not
  /// nested.
  void begin_loop();
  void next_iteration();  // replaying: before each repetition
  void end_loop();
  bool is_recording() const { return state_ == State::recording; }

  /// Takes memory, aligned as the device requires, with undefined contents. It is an internal error if tag or size
  /// differ from the record.
  Scratch take(std::string_view tag, Shape shape, DType dtype);
  /// Takes memory without a handle, which stays after the program: programs recorded to follow it do not use it. Not in
  /// sequences of several programs.
  Tensor keep(std::string_view tag, Shape shape, DType dtype);

  const std::map<std::string, Program>& programs() const { return programs_; }
  int64_t capacity() const { return block_.tensor().bytes(); }
  /// Returns the address of the block; only seal() changes it.
  const std::byte* memory() const { return block_.tensor().data; }
  /// Returns the bytes of the block that the recorded programs need.
  int64_t largest_program() const;
  /// Returns the most bytes alive during events [first, last) of a program.
  int64_t most_alive(const std::string& key, int64_t first, int64_t last) const;
  /// Returns the bytes alive at the peak of a program, by tag.
  std::map<std::string, int64_t> peak_by_tag(const std::string& key) const;

 private:
  friend class Scratch;
  /// Returns memory and its id.
  std::pair<Tensor, int64_t> next(std::string_view tag, Shape shape, DType dtype);
  void drop(int64_t id) noexcept;
  static void pack(Program& program);
  /// Runs the bodies and records them in recording_.
  void run_bodies(const std::vector<Member>& members);
  struct Pool {
    int64_t bytes = 0;        // the size of a frame
    std::vector<int> owners;  // by frame: the sequence that uses it, or kFree
  };
  static constexpr int kFree = -1;
  /// Returns the offset of a pool in the block; for the number of pools, that of the workspace.
  int64_t offset_of(size_t pool) const;
  int64_t bytes_of(const Program& program) const {
    return (program.sequence < 0 ? 0 : offset_of(pools_.size())) + program.peak;
  }
  bool is_any_frame_in_use() const;
  void check_iteration() const;

  device::Device& device_;
  Mode mode_;
  std::map<std::string, Program> programs_;
  Buffer block_;
  std::map<int64_t, Buffer> heap_;  // heap mode: the memory of each take
  enum class State { idle, recording, replaying } state_ = State::idle;
  Program* current_ = nullptr;
  std::string current_key_;
  int64_t next_ = 0, drops_ = 0, clock_ = 0;  // takes, which number tensors; drops; both, in the program
  Loop* loop_ = nullptr;                      // the loop of current_ that is being recorded or replayed
  int64_t loops_ = 0, drops_before_ = 0;      // its number, and the drops before it
  std::vector<Program> recording_;            // the sequence that is being recorded
  std::array<Pool, std::tuple_size_v<PerPool>> pools_;
  PerPool slots_ = {};  // the frames of the program that is replayed
  int sequences_ = 0;
  bool misplaced_ = false;  // a tensor of another frame was released
};

}  // namespace trainer
