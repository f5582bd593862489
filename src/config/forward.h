#pragma once
// Declares Config, for headers that only name it.

namespace trainer::config {

struct Config;

}  // namespace trainer::config
