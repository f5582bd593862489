#pragma once
// Text formatting: GCC 12 has no std::format, so {fmt} stands in; this header is the only one to name it.
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trainer {
using fmt::format;
}  // namespace trainer
