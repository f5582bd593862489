#pragma once
// Tables of letters, with which strategy "autoddl" says what every axis of ranks cuts, layer by layer: one letter for
// each axis of a replica, outermost first. They are parsed into a ModelSharding and printed from one.
//   stream, attention, hidden    r rows        c columns       - copies
//   qkv, out, up, down           r rows        c columns       k contraction     f rows, the matrix in flat pieces
//                                - nothing
//   head                         as stream: of the final norm and the head
//   table                        v vocabulary  h hidden        f flat pieces     - copies
#include <array>
#include <string>
#include <string_view>

#include "config/config.h"
#include "sharding/sharding.h"

namespace trainer::config {

/// A member of LayerTags by its name, with the letters that it takes; schedule takes a word instead.
struct TagMember {
  std::string_view name;
  std::string LayerTags::*member;
  const char* letters;
};
inline constexpr const char *kSpreadLetters = "rc-", *kLinearLetters = "rckf-", *kTableLetters = "vhf-";
inline constexpr std::array<TagMember, 8> kTagMembers = {{{"stream", &LayerTags::stream, kSpreadLetters},
                                                          {"attention", &LayerTags::attention, kSpreadLetters},
                                                          {"hidden", &LayerTags::hidden, kSpreadLetters},
                                                          {"qkv", &LayerTags::qkv, kLinearLetters},
                                                          {"out", &LayerTags::out, kLinearLetters},
                                                          {"up", &LayerTags::up, kLinearLetters},
                                                          {"down", &LayerTags::down, kLinearLetters},
                                                          {"schedule", &LayerTags::schedule, nullptr}}};

/// Returns what the tables say. The letters have been checked (strategies.cpp).
sharding::ModelSharding parse_tables(const Config& config);
/// Sets strategy "autoddl" and its tables to this sharding, without axes of one rank. The parts of a replica that have
/// sequences of their own (a 2.5D mesh) become replicas.
void set_tables(Config& config, const sharding::ModelSharding& sharding);

}  // namespace trainer::config
