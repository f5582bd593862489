// The effects of emulated NCCL operations on memory.
#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "parts.h"

namespace emulator {
namespace {

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

/// result ← the reduction of elements [begin, begin + count) over the parts, from the last rank to the first; our own
/// collectives add in a different order.
template <typename T>
void reduce_as(const std::vector<Part*>& parts, size_t begin, size_t count, std::vector<std::byte>& result) {
  result.resize(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    T sum = static_cast<const T*>(parts.back()->send)[begin + i];
    for (size_t place = parts.size() - 1; place-- > 0;) {
      const T x = static_cast<const T*>(parts[place]->send)[begin + i];
      if constexpr (std::is_same_v<T, trainer::bf16>) {
        const float a = static_cast<float>(sum), b = static_cast<float>(x);
        sum = T(parts[0]->op == ncclMax ? std::max(a, b) : a + b);
      } else {
        sum = parts[0]->op == ncclMax ? std::max(sum, x) : static_cast<T>(sum + x);
      }
    }
    std::memcpy(result.data() + i * sizeof(T), &sum, sizeof(T));
  }
}

std::vector<std::byte> reduced(const std::vector<Part*>& parts, size_t begin, size_t count) {
  std::vector<std::byte> result;
  switch (parts.front()->type) {
    case ncclBfloat16:
      reduce_as<trainer::bf16>(parts, begin, count, result);
      break;
    case ncclInt32:
      reduce_as<int32_t>(parts, begin, count, result);
      break;
    case ncclInt64:
      reduce_as<int64_t>(parts, begin, count, result);
      break;
    case ncclFloat32:
      reduce_as<float>(parts, begin, count, result);
      break;
    case ncclFloat64:
      reduce_as<double>(parts, begin, count, result);
      break;
    default:
      fail("NCCL reduces bytes");
  }
  return result;
}

}  // namespace

const char* name_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return "bytes";
    case ncclBfloat16:
      return "bf16";
    case ncclInt32:
      return "i32";
    case ncclFloat32:
      return "f32";
    case ncclInt64:
      return "i64";
    default:
      return "f64";
  }
}

void carry_out(const Rendezvous& rendezvous) {
  const std::vector<Part*>& parts = rendezvous.parts;
  const Part& first = *parts.front();
  const size_t bytes = first.count * size_of(first.type);
  const auto copy = [](void* to, const void* from, size_t n) {
    if (n > 0 && to != from) std::memmove(to, from, n);
  };
  if (first.kind == CallKind::send || first.kind == CallKind::receive) {
    const bool sends = first.kind == CallKind::send;
    copy(parts[sends ? 1 : 0]->receive, parts[sends ? 0 : 1]->send, bytes);
    return;
  }
  for (const Part* part : parts)
    if (part->kind != first.kind || part->count != first.count || part->type != first.type || part->root != first.root)
      fail("ranks run different operations: %s of %zu and %s of %zu", kNames[static_cast<int>(first.kind)], first.count,
           kNames[static_cast<int>(part->kind)], part->count);
  switch (first.kind) {
    case CallKind::all_reduce: {
      const auto result = reduced(parts, 0, first.count);
      for (const Part* part : parts) copy(part->receive, result.data(), bytes);
      break;
    }
    case CallKind::reduce: {
      const auto result = reduced(parts, 0, first.count);
      copy(parts[static_cast<size_t>(first.root)]->receive, result.data(), bytes);
      break;
    }
    case CallKind::reduce_scatter: {
      std::vector<std::vector<std::byte>> results;
      for (size_t place = 0; place < parts.size(); ++place)
        results.push_back(reduced(parts, place * first.count, first.count));
      for (size_t place = 0; place < parts.size(); ++place) copy(parts[place]->receive, results[place].data(), bytes);
      break;
    }
    case CallKind::all_gather:
      for (const Part* to : parts)
        for (size_t place = 0; place < parts.size(); ++place)
          copy(static_cast<std::byte*>(to->receive) + place * bytes, parts[place]->send, bytes);
      break;
    default: {
      const void* from = parts[static_cast<size_t>(first.root)]->send;
      for (const Part* to : parts) copy(to->receive, from, bytes);
    }
  }
}

}  // namespace emulator
