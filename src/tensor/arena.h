#pragma once
// Arena: the memory of a micro-step. The first pass of a program runs on a dry device, and its takes are recorded as
// intervals. The intervals are packed into one block, and every later pass replays the record. So the code is its own
// memory plan: nothing is allocated in the training loop, addresses repeat, and the peak is known before training
// starts.
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
  /// One take of a recorded program, alive during events [first, last). `kept`: it stays after the program.
  struct Interval {
    std::string tag;
    int64_t bytes = 0, first = 0, last = 0, offset = 0;
    bool kept = false;
  };
  struct Program {
    std::vector<Interval> intervals;
    std::vector<Interval> around;  // memory that the previous program keeps, alive throughout
    int64_t peak = 0;              // bytes of the packed block
    int64_t live_bound = 0;        // the most bytes alive at once: a lower bound for any packing
  };

  /// `planned`: memory can be taken only within programs. `heap`: every take allocates; for tests and tools.
  enum class Mode { planned, heap };
  explicit Arena(device::Device& device, Mode mode = Mode::planned) : device_(device), mode_(mode) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Runs `body`, which must use a dry device, and records it under `key`. Does nothing if `key` is already recorded.
  /// The program does not use the memory that the program `after` keeps; empty: no program.
  void record(const std::string& key, const std::function<void()>& body, const std::string& after = {});
  bool is_recorded(const std::string& key) const { return programs_.contains(key); }
  /// Allocates (or grows) the block for all recorded programs; no Scratch may be alive.
  void seal();

  /// Replays the program `key`; all handles of the previous program must have been released. Does nothing in heap mode.
  void begin(const std::string& key);
  void end();

  /// Takes memory, aligned as the device requires, with undefined contents. It is an internal error if tag or size
  /// differ from the record.
  Scratch take(std::string_view tag, Shape shape, DType dtype);
  /// Takes memory without a handle, which stays after the program: programs recorded to follow it do not use it.
  Tensor keep(std::string_view tag, Shape shape, DType dtype);

  const std::map<std::string, Program>& programs() const { return programs_; }
  int64_t capacity() const { return block_.tensor().bytes(); }
  /// Returns the address of the block; only seal() changes it.
  const std::byte* memory() const { return block_.tensor().data; }
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

  device::Device& device_;
  Mode mode_;
  std::map<std::string, Program> programs_;
  Buffer block_;
  std::map<int64_t, Buffer> heap_;  // heap mode: the memory of each take
  enum class State { idle, recording, replaying } state_ = State::idle;
  Program* current_ = nullptr;
  std::string current_key_;
  int64_t next_ = 0, clock_ = 0, alive_ = 0;
};

}  // namespace trainer
