#pragma once
// Common parts of the fuzz targets. A target passes any bytes to one reader, which must end with a value or with an
// Error of the codes it documents; everything else (another exception, a sanitizer's finding, a wrong value) stops the
// fuzzer.
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace trainer::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Runs `read`; returns true if it accepted the input.
template <typename F>
bool accepted(std::initializer_list<Code> refusals, F&& read) {
  static const bool quiet = (log::set_sink([](log::Level, const std::string&) {}), true);
  static_cast<void>(quiet);
  try {
    read();
    return true;
  } catch (const Error& refusal) {
    for (const Code code : refusals) {
      if (refusal.code() == code) return false;
    }
    throw;
  }
}

}  // namespace trainer::fuzz
