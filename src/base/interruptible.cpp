#include "base/interruptible.h"

#include <atomic>

namespace trainer {
namespace {

std::atomic<bool> abandoned{false};

}  // namespace

void note_abandoned_work() { abandoned = true; }
bool has_abandoned_work() { return abandoned; }

}  // namespace trainer
