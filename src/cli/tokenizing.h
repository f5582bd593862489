#pragma once
#include <functional>
#include <memory>

#include "base/units.h"
#include "data/tokenize.h"
#include "report/status_line.h"

namespace trainer::cli {

/// Shows the progress of tokenization on stderr.
inline std::function<void(const data::TokenizeProgress&)> show_tokenizing() {
  return [line = std::make_shared<report::StatusLine>()](const data::TokenizeProgress& done) {
    if (done.total_bytes == 0)
      return line->show(format("tokenizing: {}, {} tokens", format_bytes(done.bytes), format_count(done.tokens)), 0, 0);
    line->show(format("tokenizing: {} of {}, {} tokens", format_bytes(done.bytes), format_bytes(done.total_bytes),
                      format_count(done.tokens)),
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
