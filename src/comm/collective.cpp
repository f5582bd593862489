#include "comm/collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/shape.h"

namespace trainer::comm {
namespace {

enum class Path { ring, chain, direct_reduce, exchange };

Path path_of(const Collective& c) {
  const bool few = c.n <= kDirectElements, little = c.n * size_of(c.dtype) <= kExchangeBytes;
  switch (c.op) {
    case CommOp::all_reduce:
    case CommOp::reduce_scatter:
      return few ? Path::direct_reduce : Path::ring;
    case CommOp::reduce:
      return few ? Path::direct_reduce : Path::chain;
    case CommOp::all_gather:
      return little ? Path::exchange : Path::ring;
    case CommOp::broadcast:
      return little ? Path::exchange : Path::chain;
    case CommOp::send:
      return Path::chain;
    case CommOp::all_to_all:
    case CommOp::shift:
      break;
  }
  return Path::exchange;
}

/// A range of elements in memory.
template <typename Byte>
struct Elements {
  Byte* data;
  int64_t count;
};

/// Helpers for the algorithms below: positions in the group, and the flow's part of an array.
struct View {
  const Flow& flow;
  const Collective& c;
  int64_t unit;  // bytes per element

  explicit View(const Flow& f) : flow(f), c(*f.collective), unit(size_of(c.dtype)) {}
  int at(int64_t place) const { return static_cast<int>(((place % c.size) + c.size) % c.size); }
  int right() const { return at(c.rank + 1); }
  int left() const { return at(c.rank - 1); }

  /// Returns the flow's segment of elements [begin, begin + count) of an array.
  template <typename Byte>
  Elements<Byte> cut(Byte* array, Chunk range) const {
    const int64_t step = flow.elements, skip = std::min(range.count, flow.segment * step);
    return {array + (range.begin + skip) * unit, std::min(range.count - skip, step)};
  }
  /// Returns the piece of an all_to_all for, or from, the member at `place`.
  Chunk piece(std::span<const int64_t> counts, int place) const {
    const auto index = static_cast<size_t>(place);
    if (counts.empty()) return {place * (c.n / c.size), c.n / c.size};
    if (counts[index] == 0) return {};
    return {std::accumulate(counts.begin(), counts.begin() + place, int64_t{0}), counts[index]};
  }
  Chunk chunk(int place) const {
    const Chunk all = chunk_of(c.n, c.size, place);
    return c.window.count == 0 ? all : Chunk{all.begin + c.window.begin, c.window.count};
  }
  std::byte* staging(int buffer = 0) const { return c.staging + flow.slot * kFlowStaging + buffer * kLargestSegment; }

  void send(PointToPoint& peers, int to, Elements<const std::byte> piece) const {
    if (piece.count > 0) peers.send(to, piece.data, piece.count * unit);
  }
  void receive(PointToPoint& peers, int from, Elements<std::byte> piece) const {
    if (piece.count > 0) peers.receive(from, piece.data, piece.count * unit);
  }
  void combine(const std::byte* a, Elements<const std::byte> b, std::byte* out) const {
    c.kernels->combine[static_cast<size_t>(c.reduce)][static_cast<size_t>(c.dtype)](a, b.data, out, b.count);
  }
  void copy(Elements<const std::byte> from, Elements<std::byte> to) const {
    if (from.data != to.data && from.count > 0) std::memcpy(to.data, from.data, static_cast<size_t>(from.count * unit));
  }
};

/// In the first size − 1 steps, ranks send partial sums: rank r sends chunks r − 1, r − 2, … So the reduction of chunk
/// i starts at rank i + 1 and ends at rank i. In size − 1 more steps, ranks send finished chunks: r, r − 1, …
bool ring(Flow& flow, PointToPoint& peers) {
  const View v(flow);
  const Collective& c = v.c;
  const int turns = c.size - 1;
  const int sums = c.op == CommOp::all_gather ? 0 : turns, total = sums + (c.op == CommOp::reduce_scatter ? 0 : turns);
  const auto in = [&](int place) { return v.cut(c.in, v.chunk(place)); };
  const auto out = [&](int place) { return v.cut(c.out, v.chunk(place)); };

  if (const int last = flow.step - 1; last >= 0 && last < sums) {
    const Elements<const std::byte> own = in(v.at(c.rank - 2 - last));
    std::byte* sum = v.staging(last & 1);
    if (last == sums - 1)
      sum = c.op == CommOp::reduce_scatter ? v.cut(c.out, Chunk{0, v.chunk(c.rank).count}).data : out(c.rank).data;
    v.combine(v.staging(last & 1), own, sum);
  }
  if (flow.step == total) return false;

  const int step = flow.step++;
  if (step < sums) {
    const Elements<const std::byte> own = in(v.at(c.rank - 1 - step));
    v.receive(peers, v.left(), {v.staging(step & 1), in(v.at(c.rank - 2 - step)).count});
    v.send(peers, v.right(), step == 0 ? own : Elements<const std::byte>{v.staging((step - 1) & 1), own.count});
    return true;
  }
  const int turn = step - sums;
  if (turn == 0 && sums == 0) v.copy(v.cut(c.in, Chunk{0, v.chunk(c.rank).count}), out(c.rank));
  const Elements<std::byte> passed = out(v.at(c.rank - turn));
  v.receive(peers, v.left(), out(v.at(c.rank - 1 - turn)));
  v.send(peers, v.right(), {passed.data, passed.count});
  return true;
}

/// Sends along the chain of ranks. A broadcast starts at the root; a reduction starts at the rank after the root and
/// ends at the root.
bool chain(Flow& flow, PointToPoint& peers) {
  const View v(flow);
  const Collective& c = v.c;
  const bool sums = c.op == CommOp::reduce;
  const int place = v.at(c.rank - c.root - (sums ? 1 : 0));
  const bool first = place == 0, last = place == c.size - 1;
  const Elements<const std::byte> in = v.cut(c.in, Chunk{0, c.n});
  const Elements<std::byte> out = v.cut(c.out, Chunk{0, c.n});
  switch (flow.step++) {
    case 0:
      if (!first) v.receive(peers, v.left(), sums ? Elements<std::byte>{v.staging(), in.count} : out);
      return true;
    case 1: {
      if (sums && !first) v.combine(v.staging(), in, last ? out.data : v.staging());
      const std::byte* passed = first || !sums ? in.data : v.staging();
      if (!last) v.send(peers, v.right(), {passed, in.count});
      return true;
    }
    default:
      return false;
  }
}

/// Every rank sends its elements to the ranks that reduce them, which add all inputs in rank order. A step handles as
/// many senders as fit into the staging memory.
bool direct_reduce(Flow& flow, PointToPoint& peers) {
  const View v(flow);
  const Collective& c = v.c;
  const auto needed = [&](int place) {  // the part of every rank's `in` that the rank at `place` reduces
    if (c.op == CommOp::reduce_scatter) return v.chunk(place);
    return c.op == CommOp::reduce && place != c.root ? Chunk{0, 0} : Chunk{0, c.n};
  };
  const Chunk mine = needed(c.rank);
  const int64_t longest = c.op == CommOp::reduce_scatter ? divide_up(c.n, c.size) : c.n;
  const int64_t buffer = round_up(longest * v.unit, 64), sums = round_up(longest * 8, 64);
  const int batch = static_cast<int>((kFlowStaging - sums) / buffer);
  std::byte* const acc = v.staging();
  const auto received = [&](int place) { return acc + sums + (place % batch) * buffer; };
  const size_t type = static_cast<size_t>(c.dtype), kind = static_cast<size_t>(c.reduce);

  const int begin = flow.step++ * batch, end = std::min(c.size, begin + batch);
  if (mine.count > 0) {
    for (int place = std::max(0, begin - batch); place < std::min(begin, c.size); ++place) {
      const std::byte* x = place == c.rank ? c.in + mine.begin * v.unit : received(place);
      if (place == 0) {
        c.kernels->load[type](x, acc, mine.count);
      } else {
        c.kernels->accumulate[kind][type](x, acc, mine.count);
      }
    }
    if (begin >= c.size) c.kernels->store[type](acc, c.out, mine.count);
    for (int place = begin; place < end; ++place)
      if (place != c.rank) v.receive(peers, place, {received(place), mine.count});
  }
  if (begin <= c.rank && c.rank < end) {
    for (int distance = 1; distance < c.size; ++distance) {
      const int to = v.at(c.rank + distance);
      const Chunk range = needed(to);
      v.send(peers, to, {c.in + range.begin * v.unit, range.count});
    }
  }
  return begin < c.size;
}

bool exchange(Flow& flow, PointToPoint& peers) {
  if (flow.step++ > 0) return false;
  const View v(flow);
  const Collective& c = v.c;
  const auto outgoing = [&](int to) -> Elements<const std::byte> {
    switch (c.op) {
      case CommOp::all_gather:
        return v.cut(c.in, Chunk{0, v.chunk(c.rank).count});
      case CommOp::all_to_all:
        return v.cut(c.in, v.piece(c.counts.send, to));
      case CommOp::shift:
        return v.cut(c.in, Chunk{0, to == v.right() ? c.n : 0});
      default:  // broadcast
        return v.cut(c.in, Chunk{0, c.rank == c.root ? c.n : 0});
    }
  };
  const auto incoming = [&](int from) -> Elements<std::byte> {
    switch (c.op) {
      case CommOp::all_gather:
        return v.cut(c.out, v.chunk(from));
      case CommOp::all_to_all:
        return v.cut(c.out, v.piece(c.counts.receive, from));
      case CommOp::shift:
        return v.cut(c.out, Chunk{0, from == v.left() ? c.n : 0});
      default:
        return v.cut(c.out, Chunk{0, from == c.root ? c.n : 0});
    }
  };
  for (int distance = 1; distance < c.size; ++distance)
    v.receive(peers, v.at(c.rank - distance), incoming(v.at(c.rank - distance)));
  for (int distance = 1; distance < c.size; ++distance)
    v.send(peers, v.at(c.rank + distance), outgoing(v.at(c.rank + distance)));
  if (c.op == CommOp::all_gather || c.op == CommOp::all_to_all) v.copy(outgoing(c.rank), incoming(c.rank));
  return true;
}

}  // namespace

Segments segments_of(const Collective& c) {
  const Path path = path_of(c);
  if (path == Path::direct_reduce) return {1, c.n};
  const bool pieces = path == Path::ring || c.op == CommOp::all_gather || c.op == CommOp::all_to_all;
  const int64_t even = c.window.count > 0 ? c.window.count : pieces ? divide_up(c.n, c.size) : c.n;
  const int64_t longest = c.counts.send.empty() ? even : std::max<int64_t>(1, c.counts.longest),
                unit = size_of(c.dtype);
  const int64_t elements =
      std::clamp(round_up(divide_up(longest, kFlows), 64), kSmallestSegment / unit, kLargestSegment / unit);
  return {divide_up(longest, elements), elements};
}

bool advance(Flow& flow, PointToPoint& peers) {
  switch (path_of(*flow.collective)) {
    case Path::ring:
      return ring(flow, peers);
    case Path::chain:
      return chain(flow, peers);
    case Path::direct_reduce:
      return direct_reduce(flow, peers);
    case Path::exchange:
      break;
  }
  return exchange(flow, peers);
}

}  // namespace trainer::comm
