#pragma once
// The sharding spec of strategy "autoddl": tables of letters that define, layer by layer, which dimension each axis of
// ranks splits. There is one letter for each axis of a replica, outermost first. Tables are parsed into a ModelSharding
// and printed from one.
// clang-format off
//   stream, hidden               r rows        c columns       - copies
//   attention                    the same, and s rows, tokens of a sequence included
//   qkv, out, up, down           r rows        c columns       k contraction     f rows, the matrix in flat shards
//                                - nothing
//   experts                      e divides the experts of layers that have some; - copies. Empty: nothing divides them
//   head                         as stream, for the final norm and the head
//   table                        v vocabulary  h hidden        f flat shards     - copies
// clang-format on
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "sharding/sharding.h"

namespace trainer::config {

/// A member of LayerSpec with its name and the letters that it accepts; null for schedule, which is a word.
struct SpecMember {
  std::string_view name;
  std::string LayerSpec::*member;
  const char* letters;
};
inline constexpr const char *kSpreadLetters = "rc-", *kAttentionLetters = "rsc-", *kLinearLetters = "rckf-",
                            *kTableLetters = "vhf-", *kExpertLetters = "e-";
inline constexpr std::array<SpecMember, 9> kSpecMembers = {{{"stream", &LayerSpec::stream, kSpreadLetters},
                                                            {"attention", &LayerSpec::attention, kAttentionLetters},
                                                            {"hidden", &LayerSpec::hidden, kSpreadLetters},
                                                            {"qkv", &LayerSpec::qkv, kLinearLetters},
                                                            {"out", &LayerSpec::out, kLinearLetters},
                                                            {"up", &LayerSpec::up, kLinearLetters},
                                                            {"down", &LayerSpec::down, kLinearLetters},
                                                            {"experts", &LayerSpec::experts, kExpertLetters},
                                                            {"schedule", &LayerSpec::schedule, nullptr}}};

struct BrokenRule;
/// Adds the errors in the letters of the tables, in their schedules, and in the number of layers that they cover.
void check_spec(const Config& config, std::vector<BrokenRule>& broken);
/// Returns the sharding that the tables describe, which check_spec() must have accepted.
sharding::ModelSharding parse_tables(const Config& config);
/// Sets strategy "autoddl" and its tables to this sharding, without axes of one rank. The depth of a 2.5D mesh, whose
/// parts have sequences of their own, becomes replicas. Stages are left to their keys.
void set_tables(Config& config, const sharding::ModelSharding& sharding);

}  // namespace trainer::config
