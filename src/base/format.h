#pragma once
// Text formatting: GCC 12 has no std::format, so {fmt} stands in; this header and join.h are the only ones to name it.
// Nearly every file pays for this one, so it has the core only.
#include <fmt/core.h>

#include <string>
#include <utility>

namespace trainer {

/// An object, not a function: argument-dependent look-up would find std::format too, for every std:: argument.
struct Format {
  template <typename... Args>
  std::string operator()(fmt::format_string<Args...> text, Args&&... args) const {
    return fmt::format(text, std::forward<Args>(args)...);
  }
};
inline constexpr Format format{};

}  // namespace trainer
