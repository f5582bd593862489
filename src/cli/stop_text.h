#pragma once
// `generate --stop TEXT`: passes text on until a given stop text, which may be split over several pieces.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace trainer::cli {

class StopText {
 public:
  /// An empty `stop` never ends the text.
  explicit StopText(std::string stop) : stop_(std::move(stop)) {}

  /// Returns the part of the text that may be shown so far. A suffix that could be the beginning of the stop text is
  /// held back.
  std::string pass(const std::string& piece) {
    if (stop_.empty()) return piece;
    kept_ += piece;
    const size_t at = kept_.find(stop_);
    met_ = met_ || at != std::string::npos;
    size_t ready = at == std::string::npos ? kept_.size() : at;
    for (size_t length = std::min(stop_.size() - 1, kept_.size()); !met_ && length > 0; --length) {
      if (!std::string_view(kept_).ends_with(std::string_view(stop_).substr(0, length))) continue;
      ready = kept_.size() - length;
      break;
    }
    std::string out = kept_.substr(0, ready);
    kept_.erase(0, met_ ? kept_.size() : ready);
    return out;
  }
  bool met() const { return met_; }
  /// Returns the text that was held back, if the text ends without the stop text.
  std::string rest() { return std::exchange(kept_, {}); }

 private:
  std::string stop_, kept_;
  bool met_ = false;
};

}  // namespace trainer::cli
