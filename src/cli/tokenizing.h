#pragma once
#include <functional>
#include <memory>

#include "data/tokenize.h"
#include "train/status_line.h"
#include "train/units.h"

namespace trainer::cli {

/// Shows on stderr how far tokenization is.
inline std::function<void(const data::TokenizeProgress&)> show_tokenizing() {
  return [line = std::make_shared<train::StatusLine>()](const data::TokenizeProgress& done) {
    line->show(format("tokenizing: {} of {}, {} tokens", train::format_bytes(static_cast<double>(done.bytes)),
                      train::format_bytes(static_cast<double>(done.total_bytes)),
                      train::format_count(static_cast<double>(done.tokens))),
               done.bytes, done.total_bytes);
  };
}

/// Of --format.
inline config::DataFormat format_named(const std::string& name) {
  return name == "text"     ? config::DataFormat::text
         : name == "jsonl"  ? config::DataFormat::jsonl
         : name == "tokens" ? config::DataFormat::tokens
                            : config::DataFormat::automatic;
}

}  // namespace trainer::cli
