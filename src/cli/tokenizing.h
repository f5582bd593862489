#pragma once
#include <functional>
#include <memory>

#include "data/tokenize.h"
#include "measure/units.h"
#include "report/status_line.h"

namespace trainer::cli {

/// Shows on stderr how far tokenization is.
inline std::function<void(const data::TokenizeProgress&)> show_tokenizing() {
  return [line = std::make_shared<report::StatusLine>()](const data::TokenizeProgress& done) {
    line->show(format("tokenizing: {} of {}, {} tokens", measure::format_bytes(static_cast<double>(done.bytes)),
                      measure::format_bytes(static_cast<double>(done.total_bytes)),
                      measure::format_count(static_cast<double>(done.tokens))),
               done.bytes, done.total_bytes);
  };
}

/// Returns the format that --format names.
inline config::DataFormat format_named(const std::string& name) {
  return name == "text"     ? config::DataFormat::text
         : name == "jsonl"  ? config::DataFormat::jsonl
         : name == "tokens" ? config::DataFormat::tokens
                            : config::DataFormat::automatic;
}

}  // namespace trainer::cli
