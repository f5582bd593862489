#pragma once
// Faults of debug.inject on one rank, to show that the checks of `trainer verify` and of training find them.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainer::config {

struct Fault {
  enum class Kind {
    gradient,  // flips a bit of a complete gradient
    weight,    // flips a bit of a master weight before the second step
    message,   // flips a bit of what the rank sends in the check of links, to a group
    link,      // flips a bit of what the rank sends in the check of links, to another pipeline stage
    file,      // flips a bit of the rank's file in a checkpoint
    slow       // delays each step
  } kind = Kind::gradient;
  int64_t rank = 0;
  std::string tensor;  // gradient, weight: the name of the parameter
  int64_t at = 0;      // gradient, weight: the element of the whole tensor; else a byte
  int64_t bit = 0;     // the number of the bit in the element; 0 in a byte
  double seconds = 0;  // slow
};

/// Parses "gradient:RANK:TENSOR:ELEMENT:BIT", "weight:RANK:TENSOR:ELEMENT:BIT", "message:RANK:BYTE", "link:RANK:BYTE",
/// "file:RANK:BYTE" or "slow:RANK:SECONDS"; returns an empty result for other text.
std::optional<Fault> planted_fault(std::string_view text);

}  // namespace trainer::config
