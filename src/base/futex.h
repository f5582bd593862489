#pragma once
// Sleeping on a word of memory, within this process.
#include <atomic>
#include <cstdint>

namespace trainer {

/// Sleeps while the word holds `expected`, until woken or `seconds` have passed (negative: no limit). May return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, double seconds = -1);
/// Wakes everybody who sleeps on the word.
void futex_wake(std::atomic<uint32_t>& word);

}  // namespace trainer
