#include "ops/cuda/fused_attention.h"

#include <algorithm>

#include "base/log.h"
#include "base/units.h"

namespace trainer::ops::cuda {

std::optional<FusedWay> FusedAttention::fitting(const FusedShape& shape) {
  FusedShape part = shape;
  for (;;) {
    const std::optional<int64_t> bytes = workspace(part);
    if (!bytes) return {};
    if (*bytes <= most_workspace_) {
      const int64_t rest = shape.batch % part.batch;
      if (rest == 0) return FusedWay{part, *bytes};
      FusedShape last = part;
      last.batch = rest;
      const std::optional<int64_t> least = workspace(last);
      return least && *least <= most_workspace_ ? std::optional(FusedWay{part, std::max(*bytes, *least)})
                                                : std::nullopt;
    }
    if (part.batch == 1) return {};
    // Workspaces grow with the batch at least linearly.
    const int64_t most = std::clamp<int64_t>(most_workspace_ / divide_up(*bytes, part.batch), 1, part.batch - 1);
    part.batch = divide_up(shape.batch, divide_up(shape.batch, most));
  }
}

std::optional<FusedWay> FusedAttention::way(const FusedShape& shape) {
  if (const auto known = ways_.find(shape); known != ways_.end()) return known->second;
  const bool supported = workspace(shape).has_value();
  std::optional<FusedWay> way = supported ? fitting(shape) : std::nullopt;
  if (supported && !way) {
    FusedShape linear = shape;
    linear.linear = true;
    if (shape.backward) way = fitting(linear);
    log::info("attention over {} sequences of {}, {} heads: {} needs a workspace of more than {} for each sequence; {}",
              shape.batch, shape.length, shape.heads, name(), format_bytes(most_workspace_),
              way ? "it uses its slower algorithm with less workspace" : "the built-in kernels run it");
  }
  return ways_.emplace(shape, way).first->second;
}

void FusedAttention::run(cudaStream_t stream, const FusedShape& shape, const FusedWay& way, const FusedOperands& all,
                         void* workspace) {
  for (int64_t first = 0; first < shape.batch; first += way.part.batch) {
    FusedShape part = way.part;
    part.batch = std::min(part.batch, shape.batch - first);
    const auto rows = [&](void* data, size_t place) {
      constexpr int64_t kBytes = 2;  // bf16
      const bool of_keys = place == 1 || place == 2 || place == 6 || place == 7;
      const int64_t skipped = first * (of_keys ? shape.key_rows : shape.length) * shape.row_distance[place] * kBytes;
      return data == nullptr ? nullptr : static_cast<void*>(static_cast<std::byte*>(data) + skipped);
    };
    run(stream, part,
        {.q = rows(all.q, 0),
         .k = rows(all.k, 1),
         .v = rows(all.v, 2),
         .out = rows(all.out, 3),
         .lse = all.lse == nullptr ? nullptr : all.lse + first * shape.heads * shape.length,
         .dout = rows(all.dout, 4),
         .dq = rows(all.dq, 5),
         .dk = rows(all.dk, 6),
         .dv = rows(all.dv, 7)},
        workspace);
  }
}

}  // namespace trainer::ops::cuda
