#pragma once
#include <cstdlib>

namespace trainer::tests {

/// True in the slow tests (ctest -C slow -L slow), which run every case of what otherwise runs some.
inline bool slow() { return std::getenv("TRAINER_SLOW_TESTS") != nullptr; }

}  // namespace trainer::tests
