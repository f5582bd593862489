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

/// Shows the time that work before tokenization has taken so far.
inline std::function<void(const std::string&, double)> show_work() {
  return [line = std::make_shared<report::StatusLine>()](const std::string& doing, double seconds) {
    line->show(format("{}: {:.0f} s so far", doing, seconds), 0, 0);
  };
}

/// Returns the windows that "auto", "stream" or "best-fit" names.
inline config::Windows windows_named(const std::string& name) {
  return name == "best-fit" ? config::Windows::best_fit
         : name == "stream" ? config::Windows::stream
                            : config::Windows::automatic;
}

/// Returns the format that --format names.
inline config::DataFormat format_named(const std::string& name) {
  return name == "text"     ? config::DataFormat::text
         : name == "jsonl"  ? config::DataFormat::jsonl
         : name == "tokens" ? config::DataFormat::tokens
                            : config::DataFormat::automatic;
}

}  // namespace trainer::cli
