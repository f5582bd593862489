#include "tensor/packing.h"

#include <algorithm>

namespace trainer {

void Occupancy::Ranges::add(int64_t begin, int64_t end) {
  // Starts at the first range that touches the new one.
  auto from = std::lower_bound(all_.begin(), all_.end(), begin,
                               [](const auto& range, int64_t address) { return range.second < address; });
  auto to = from;
  for (; to != all_.end() && to->first <= end; ++to) {
    begin = std::min(begin, to->first);
    end = std::max(end, to->second);
  }
  if (from == to) {
    all_.insert(from, {begin, end});
  } else {
    *from = {begin, end};
    all_.erase(from + 1, to);
  }
}

int64_t Occupancy::Ranges::pass(int64_t begin, int64_t end) const {
  const auto range = std::upper_bound(all_.begin(), all_.end(), begin,
                                      [](int64_t address, const auto& each) { return address < each.second; });
  return range != all_.end() && range->first < end ? range->second : begin;
}

Occupancy::Occupancy(int64_t moments) {
  while (leaves_ < moments) leaves_ *= 2;
  nodes_.resize(static_cast<size_t>(2 * leaves_));
}

template <typename F>
void Occupancy::visit(size_t node, int64_t begin, int64_t end, int64_t first, int64_t last, const F& act) {
  if (last <= begin || end <= first) return;
  const bool whole = first <= begin && end <= last;
  act(nodes_[node], whole);
  if (whole) return;
  const int64_t middle = begin + (end - begin) / 2;
  visit(2 * node, begin, middle, first, last, act);
  visit(2 * node + 1, middle, end, first, last, act);
}

int64_t Occupancy::lowest_gap(int64_t first, int64_t last, int64_t bytes) {
  if (bytes == 0) return 0;
  met_.clear();
  visit(1, 0, leaves_, first, last, [&](Node& node, bool whole) { met_.push_back(whole ? &node.any : &node.whole); });
  int64_t address = 0;
  for (size_t free = 0, next = 0; free < met_.size(); next = (next + 1) % met_.size()) {
    const int64_t behind = met_[next]->pass(address, address + bytes);
    free = behind == address ? free + 1 : 0;  // a new address is checked against all sets again
    address = behind;
  }
  return address;
}

void Occupancy::occupy(int64_t first, int64_t last, int64_t address, int64_t bytes) {
  if (bytes == 0) return;
  visit(1, 0, leaves_, first, last, [&](Node& node, bool whole) {
    node.any.add(address, address + bytes);
    if (whole) node.whole.add(address, address + bytes);
  });
}

}  // namespace trainer
