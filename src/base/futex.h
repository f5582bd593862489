#pragma once
// Futexes within this process: threads sleep until a word of memory changes.
#include <atomic>
#include <cstdint>

namespace trainer {

/// If the word equals `expected`, sleeps until woken or until `seconds` have passed (negative: no limit). May return
/// early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, double seconds = -1);
/// Wakes all threads that sleep on the word.
void futex_wake(std::atomic<uint32_t>& word);

}  // namespace trainer
