#pragma once
// Text formatting with {fmt}, since GCC 12 has no std::format. In src/ only this header and join.h include {fmt}.
// Nearly every file includes this one, so it includes {fmt}'s core only, which is quicker to compile.
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
