#include "tensor/arena.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "tensor/packing.h"

namespace trainer {
namespace {

/// The programs of a sequence between which the tensors of each pool are alive.
constexpr std::pair<int, int> kEnds[] = {{0, 1}, {0, 2}, {1, 2}};
constexpr int8_t kOpen = -2;  // instead of a pool, until it is known

/// Returns the change in the bytes alive at each time of a program, without frames.
std::vector<int64_t> changes(const Arena::Program& program) {
  std::vector<int64_t> change(2 * program.intervals.size());  // an interval begins or ends at each time
  for (const Arena::Interval& item : program.intervals) {
    if (item.pool != Arena::kWorkspace) continue;
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

void Arena::run_bodies(const std::vector<Member>& members) {
  TRAINER_CHECK(state_ == State::idle, "program {} cannot be recorded within program {}", members.front().key,
                current_key_);
  recording_.assign(members.size(), {});
  state_ = State::recording;
  next_ = 0;
  loop_ = nullptr;
  try {
    for (size_t m = 0; m < members.size(); ++m) {
      current_ = &recording_[m];
      current_key_ = members[m].key;
      clock_ = drops_ = 0;
      members[m].body();
      current_->drops = drops_;
      for (Interval& item : current_->intervals) {
        if (item.last > 0) continue;
        item.last = clock_;
        if (!item.kept) item.pool = kOpen;
      }
    }
  } catch (...) {
    state_ = State::idle;
    current_ = nullptr;
    throw;
  }
  state_ = State::idle;
  current_ = nullptr;
  for (size_t m = 0; m < members.size(); ++m) {
    const auto open = std::ranges::count(recording_[m].intervals, kOpen, &Interval::pool);
    TRAINER_CHECK(open == 0, "program {1} did not release {0} of its tensors", open, members[m].key);
  }
}

void Arena::record(const std::string& key, const std::function<void()>& body, const std::string& after) {
  if (is_recorded(key) || mode_ == Mode::heap) return;
  run_bodies({{key, body}});
  Program& program = recording_.front();
  if (!after.empty())
    std::ranges::copy_if(programs_.at(after).intervals, std::back_inserter(program.around), &Interval::kept);
  pack(program);
  programs_.emplace(key, std::move(program));
}

void Arena::record_sequence(const std::vector<Member>& members, const PerPool& counts) {
  if (is_recorded(members.front().key) || mode_ == Mode::heap) return;
  run_bodies(members);
  PerPool frame = {};
  for (Program& program : recording_)
    for (Interval& item : program.intervals)
      if (item.pool != kWorkspace) {  // all tensors of a frame are alive together between its programs
        int64_t& bytes = frame[static_cast<size_t>(item.pool)];
        item.offset = std::exchange(bytes, bytes + item.bytes);
      }
  for (size_t p = 0; p < pools_.size(); ++p) {
    TRAINER_CHECK(frame[p] == 0 || counts[p] > 0, "{} bytes outlive program {}, but there are no frames", frame[p],
                  members[static_cast<size_t>(kEnds[p].first)].key);
    if (frame[p] == 0) continue;
    pools_[p].bytes = std::max(pools_[p].bytes, frame[p]);
    pools_[p].owners.resize(std::max(pools_[p].owners.size(), static_cast<size_t>(counts[p])), kFree);
  }
  for (size_t m = 0; m < members.size(); ++m) {
    Program& program = recording_[m];
    program.sequence = sequences_;
    program.member = static_cast<int>(m);
    program.frame = frame;
    pack(program);
    programs_.emplace(members[m].key, std::move(program));
  }
  ++sequences_;
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
    if (item.pool != kWorkspace) continue;
    const auto end = std::lower_bound(all.begin(), all.end(), item.last,
                                      [](const Interval& each, int64_t time) { return each.first < time; });
    const auto first = static_cast<int64_t>(index), last = static_cast<int64_t>(end - all.begin());
    item.offset = occupied.lowest_gap(first, last, item.bytes);
    occupied.occupy(first, last, item.offset, item.bytes);
    program.peak = std::max(program.peak, item.offset + item.bytes);
  }
  for (const int64_t change : changes(program)) program.live_bound = std::max(program.live_bound, live += change);
}

int64_t Arena::offset_of(size_t pool) const {
  int64_t offset = 0;
  for (size_t p = 0; p < pool; ++p) offset += static_cast<int64_t>(pools_[p].owners.size()) * pools_[p].bytes;
  return offset;
}

bool Arena::is_any_frame_in_use() const {
  return std::ranges::any_of(pools_, [](const Pool& pool) {
    return std::ranges::any_of(pool.owners, [](int owner) { return owner != kFree; });
  });
}

int64_t Arena::largest_program() const {
  int64_t bytes = 0;
  for (const auto& [key, program] : programs_) bytes = std::max(bytes, bytes_of(program));
  return bytes;
}

void Arena::seal() {
  TRAINER_CHECK(state_ == State::idle, "the arena cannot be sealed within program {}", current_key_);
  const int64_t bytes = largest_program();
  if (mode_ == Mode::heap || bytes <= capacity()) return;
  TRAINER_CHECK(!is_any_frame_in_use(), "the arena cannot grow to {} bytes while frames are in use", bytes);
  block_ = Buffer();  // frees the old block first: there may not be room for both
  block_ = Buffer(device_, "activations", {bytes}, DType::u8);
}

void Arena::begin(const std::string& key, const PerPool& slots) {
  if (mode_ == Mode::heap) return;
  TRAINER_CHECK(state_ == State::idle, "program {} cannot begin within program {}", key, current_key_);
  const auto it = programs_.find(key);
  TRAINER_CHECK(it != programs_.end(), "program {} was not recorded", key);
  Program& program = it->second;
  TRAINER_CHECK(bytes_of(program) <= capacity(), "program {} was recorded after the arena was sealed", key);
  TRAINER_CHECK(program.sequence >= 0 || !is_any_frame_in_use(), "program {} would overwrite frames in use", key);
  for (size_t p = 0; p < pools_.size(); ++p) {
    const auto [begins, ends] = kEnds[p];
    if (program.frame[p] == 0 || (program.member != begins && program.member != ends)) continue;
    std::vector<int>& owners = pools_[p].owners;
    const auto slot = static_cast<size_t>(slots[p]);
    TRAINER_CHECK(slot < owners.size(), "program {}: pool {} has {} frames, but not frame {}", key, p, owners.size(),
                  slots[p]);
    TRAINER_CHECK(owners[slot] == (program.member == begins ? kFree : program.sequence),
                  "program {}: frame {} of pool {} is {}", key, slot, p,
                  program.member == begins ? "in use" : "not in use by its sequence");
    owners[slot] = program.sequence;
  }
  current_ = &program;
  current_key_ = key;
  state_ = State::replaying;
  slots_ = slots;
  next_ = drops_ = loops_ = 0;
  misplaced_ = false;
}

void Arena::end() {
  if (mode_ == Mode::heap) return;
  TRAINER_CHECK(state_ == State::replaying, "there is no program to end");
  state_ = State::idle;
  TRAINER_CHECK(next_ == static_cast<int64_t>(current_->intervals.size()),
                "program {} took {} tensors, but {} were recorded", current_key_, next_, current_->intervals.size());
  TRAINER_CHECK(drops_ == current_->drops, "program {} released {} tensors, but {} were recorded", current_key_, drops_,
                current_->drops);
  TRAINER_CHECK(!misplaced_, "program {} released a tensor of a frame that was not given to it", current_key_);
  for (size_t p = 0; p < pools_.size(); ++p)
    if (current_->frame[p] > 0 && current_->member == kEnds[p].second)
      pools_[p].owners[static_cast<size_t>(slots_[p])] = kFree;
}

void Arena::begin_loop() {
  if (mode_ == Mode::heap) return;
  TRAINER_CHECK(state_ != State::idle && loop_ == nullptr, "a loop must be in a program, and not in another loop");
  drops_before_ = drops_;
  if (state_ == State::recording) {
    loop_ = &current_->loops.emplace_back(Loop{.first = std::ssize(current_->intervals)});
    return;
  }
  TRAINER_CHECK(loops_ < std::ssize(current_->loops), "program {} has only {} loops", current_key_, loops_);
  loop_ = &current_->loops[static_cast<size_t>(loops_++)];
  TRAINER_CHECK(next_ == loop_->first, "program {} took {} tensors before a loop, but {} were recorded", current_key_,
                next_, loop_->first);
  next_ = loop_->last;  // as after a repetition
  drops_ += loop_->last - loop_->first;
}

void Arena::check_iteration() const {
  TRAINER_CHECK(next_ == loop_->last && drops_ - drops_before_ == loop_->last - loop_->first,
                "program {}: a loop took {} and released {} tensors, but {} were recorded", current_key_,
                next_ - loop_->first, drops_ - drops_before_, loop_->last - loop_->first);
}

void Arena::next_iteration() {
  if (mode_ == Mode::heap) return;
  check_iteration();
  next_ = loop_->first;
  drops_ = drops_before_;
}

void Arena::end_loop() {
  if (mode_ == Mode::heap) return;
  if (state_ == State::recording) {
    loop_->last = std::ssize(current_->intervals);
    const int64_t taken = loop_->last - loop_->first;
    const int64_t closed = std::count_if(current_->intervals.end() - taken, current_->intervals.end(),
                                         [](const Interval& item) { return item.last > 0; });
    TRAINER_CHECK(closed == taken && drops_ - drops_before_ == taken,
                  "program {}: a loop took {} tensors, and released {} of them and {} others", current_key_, taken,
                  closed, drops_ - drops_before_ - closed);
  } else {
    check_iteration();
  }
  loop_ = nullptr;
}

Scratch Arena::take(std::string_view tag, Shape shape, DType dtype) {
  const auto [tensor, id] = next(tag, shape, dtype);
  return {this, id, tensor};
}

Tensor Arena::keep(std::string_view tag, Shape shape, DType dtype) {
  const auto [tensor, id] = next(tag, shape, dtype);
  if (state_ == State::recording) {
    TRAINER_CHECK(recording_.size() == 1, "\"{}\" is kept in a sequence of several programs", tag);
    current_->intervals.back().kept = true;
  }
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
  if (interval.pool == kWorkspace) {
    tensor.data += bytes_of(*current_) - current_->peak;
    return {tensor, id};
  }
  const auto pool = static_cast<size_t>(interval.pool);
  tensor.data += offset_of(pool) + slots_[pool] * pools_[pool].bytes;
  return {tensor, ~(slots_[pool] * std::ssize(pools_) + interval.pool)};  // negative: frame and pool
}

void Arena::drop(int64_t id) noexcept {
  ++drops_;
  if (mode_ == Mode::heap) {
    heap_.erase(id);
  } else if (state_ == State::replaying) {
    if (id < 0) misplaced_ |= slots_[static_cast<size_t>(~id) % pools_.size()] != ~id / std::ssize(pools_);
  } else if (state_ == State::recording) {
    size_t m = 0;
    while (id >= std::ssize(recording_[m].intervals)) id -= std::ssize(recording_[m++].intervals);
    Interval& item = recording_[m].intervals[static_cast<size_t>(id)];
    const auto now = static_cast<size_t>(current_ - recording_.data());
    if (m == now)
      item.last = clock_++;
    else
      item.pool = static_cast<int8_t>(m + now - 1);  // as in kEnds
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
    if (item.pool == kWorkspace && item.first <= peak_time && peak_time < item.last) tags[item.tag] += item.bytes;
  if (const int64_t frames = bytes_of(program) - program.peak; frames > 0) tags["frames"] += frames;
  return tags;
}

}  // namespace trainer
