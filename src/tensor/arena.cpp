#include "tensor/arena.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "tensor/packing.h"

namespace trainer {
namespace {

/// Returns the change in the bytes alive at each time of a program.
std::vector<int64_t> changes(const Arena::Program& program) {
  std::vector<int64_t> change(2 * program.intervals.size());  // an interval begins or ends at each time
  for (const Arena::Interval& item : program.intervals) {
    change[static_cast<size_t>(item.first)] += item.bytes;
    change[static_cast<size_t>(item.last)] -= item.bytes;
  }
  return change;
}

}  // namespace

Scratch& Scratch::operator=(Scratch&& other) noexcept {
  if (this != &other) {
    reset();
    arena_ = std::exchange(other.arena_, nullptr);
    id_ = other.id_;
    tensor_ = std::exchange(other.tensor_, {});
  }
  return *this;
}

void Scratch::reset() noexcept {
  if (arena_ != nullptr) arena_->drop(id_);
  arena_ = nullptr;
  tensor_ = {};
}

void Arena::record(const std::string& key, const std::function<void()>& body, const std::string& after) {
  TRAINER_CHECK(state_ == State::idle, "program {} cannot be recorded within program {}", key, current_key_);
  if (is_recorded(key) || mode_ == Mode::heap) return;
  Program program;
  current_ = &program;
  current_key_ = key;
  state_ = State::recording;
  next_ = clock_ = alive_ = 0;
  try {
    body();
  } catch (...) {
    state_ = State::idle;
    current_ = nullptr;
    throw;
  }
  TRAINER_CHECK(alive_ == 0, "program {1} did not release {0} of its tensors", alive_, key);
  state_ = State::idle;
  current_ = nullptr;
  for (Interval& item : program.intervals)
    if (item.kept) item.last = clock_;
  if (!after.empty())
    std::ranges::copy_if(programs_.at(after).intervals, std::back_inserter(program.around), &Interval::kept);
  pack(program);
  programs_.emplace(key, std::move(program));
}

void Arena::pack(Program& program) {
  auto& all = program.intervals;
  // Places the intervals largest first, each in the lowest sufficient gap between the intervals that overlap it in
  // time.
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return all[a].bytes > all[b].bytes; });
  // Time is counted in takes. An interval is alive from its own take to the last take before its end.
  const auto moments = static_cast<int64_t>(all.size());
  Occupancy occupied(moments);
  int64_t live = 0;
  for (const Interval& item : program.around) {
    live += item.bytes;
    if (moments > 0) occupied.occupy(0, moments, item.offset, item.bytes);
  }
  for (const size_t index : order) {
    Interval& item = all[index];
    const auto end = std::lower_bound(all.begin(), all.end(), item.last,
                                      [](const Interval& each, int64_t time) { return each.first < time; });
    const auto first = static_cast<int64_t>(index), last = static_cast<int64_t>(end - all.begin());
    item.offset = occupied.lowest_gap(first, last, item.bytes);
    occupied.occupy(first, last, item.offset, item.bytes);
    program.peak = std::max(program.peak, item.offset + item.bytes);
  }
  for (const int64_t change : changes(program)) program.live_bound = std::max(program.live_bound, live += change);
}

int64_t Arena::largest_program() const {
  int64_t bytes = 0;
  for (const auto& [key, program] : programs_) bytes = std::max(bytes, program.peak);
  return bytes;
}

void Arena::seal() {
  TRAINER_CHECK(state_ == State::idle, "the arena cannot be sealed within program {}", current_key_);
  const int64_t bytes = largest_program();
  if (mode_ == Mode::heap || bytes <= capacity()) return;
  block_ = Buffer();  // frees the old block first: there may not be room for both
  block_ = Buffer(device_, "activations", {bytes}, DType::u8);
}

void Arena::begin(const std::string& key) {
  if (mode_ == Mode::heap) return;
  TRAINER_CHECK(state_ == State::idle, "program {} cannot begin within program {}", key, current_key_);
  const auto it = programs_.find(key);
  TRAINER_CHECK(it != programs_.end(), "program {} was not recorded", key);
  TRAINER_CHECK(it->second.peak <= capacity(), "program {} was recorded after the arena was sealed", key);
  current_ = &it->second;
  current_key_ = key;
  state_ = State::replaying;
  next_ = alive_ = 0;
}

void Arena::end() {
  if (mode_ == Mode::heap) return;
  TRAINER_CHECK(state_ == State::replaying, "there is no program to end");
  state_ = State::idle;
  TRAINER_CHECK(alive_ == 0, "program {1} did not release {0} of its tensors", alive_, current_key_);
  TRAINER_CHECK(next_ == static_cast<int64_t>(current_->intervals.size()),
                "program {} took {} tensors, but {} were recorded", current_key_, next_, current_->intervals.size());
}

Scratch Arena::take(std::string_view tag, Shape shape, DType dtype) {
  ++alive_;
  const auto [tensor, id] = next(tag, shape, dtype);
  return {this, id, tensor};
}

Tensor Arena::keep(std::string_view tag, Shape shape, DType dtype) {
  const auto [tensor, id] = next(tag, shape, dtype);
  if (state_ == State::recording) current_->intervals[static_cast<size_t>(id)].kept = true;
  return tensor;
}

std::pair<Tensor, int64_t> Arena::next(std::string_view tag, Shape shape, DType dtype) {
  Tensor tensor{nullptr, shape, dtype, 0};
  const int64_t bytes = round_up(tensor.bytes(), device_.alignment()), id = next_++;
  if (mode_ == Mode::heap) {
    Buffer memory(device_, "scratch", {std::max(bytes, device_.alignment())}, DType::u8);
    tensor.data = memory.tensor().data;
    heap_.emplace(id, std::move(memory));
    return {tensor, id};
  }
  TRAINER_CHECK(state_ != State::idle, "\"{}\" was taken outside any program", tag);
  if (state_ == State::recording) {
    current_->intervals.push_back({std::string(tag), bytes, clock_++, 0, 0});
    return {tensor, id};
  }
  TRAINER_CHECK(id < static_cast<int64_t>(current_->intervals.size()),
                "program {} took \"{}\" after the last recorded tensor", current_key_, tag);
  const Interval& interval = current_->intervals[static_cast<size_t>(id)];
  TRAINER_CHECK(interval.tag == tag && interval.bytes == bytes,
                "program {}: tensor {} is \"{}\" of {} bytes, but \"{}\" of {} bytes was recorded", current_key_, id,
                tag, bytes, interval.tag, interval.bytes);
  tensor.data = block_.tensor().data + interval.offset;
  return {tensor, id};
}

void Arena::drop(int64_t id) noexcept {
  --alive_;
  if (mode_ == Mode::heap) {
    heap_.erase(id);
  } else if (state_ == State::recording) {
    current_->intervals[static_cast<size_t>(id)].last = clock_++;
  }
}

int64_t Arena::most_alive(const std::string& key, int64_t first, int64_t last) const {
  const std::vector<int64_t> change = changes(programs_.at(key));
  int64_t live = 0, most = 0;
  for (int64_t time = 0; time < std::min(last, std::ssize(change)); ++time) {
    live += change[static_cast<size_t>(time)];
    if (time >= first) most = std::max(most, live);
  }
  return most;
}

std::map<std::string, int64_t> Arena::peak_by_tag(const std::string& key) const {
  const Program& program = programs_.at(key);
  const std::vector<int64_t> change = changes(program);
  int64_t peak_time = 0, best = -1, live = 0;
  for (size_t time = 0; time < change.size(); ++time) {
    live += change[time];
    if (live > best) {
      best = live;
      peak_time = static_cast<int64_t>(time);
    }
  }
  std::map<std::string, int64_t> tags;
  for (const Interval& item : program.around) tags[item.tag] += item.bytes;
  for (const Interval& item : program.intervals)
    if (item.first <= peak_time && peak_time < item.last) tags[item.tag] += item.bytes;
  return tags;
}

}  // namespace trainer
