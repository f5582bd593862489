#pragma once
// Lists in text: fmt::join(values, ", ").
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/format.h"
