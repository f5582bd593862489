#pragma once
// `generate --stop TEXT`: passes text through up to the first stop text, which may span several pieces.
#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace trainer::cli {

class StopText {
 public:
  /// The text ends before the stop text that is completed first. Empty stop texts are ignored.
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  }

  /// Returns the part of the text that may be shown so far. A suffix that could be the beginning of a stop text is held
  /// back.
  std::string pass(const std::string& piece) {
    if (met_) return {};
    kept_ += piece;
    size_t begin = kept_.size(), end = std::string::npos, held = 0;
    for (const std::string& stop : stops_) {
      if (const size_t at = kept_.find(stop); at != std::string::npos)
        std::tie(end, begin) = std::min(std::pair(end, begin), std::pair(at + stop.size(), at));
      for (size_t length = std::min(stop.size() - 1, kept_.size()); length > held; --length)
        if (std::string_view(kept_).ends_with(std::string_view(stop).substr(0, length))) held = length;
    }
    met_ = end != std::string::npos;
    const size_t ready = met_ ? begin : kept_.size() - held;
    std::string out = kept_.substr(0, ready);
    kept_.erase(0, met_ ? kept_.size() : ready);
    return out;
  }
  bool met() const { return met_; }
  /// Returns the text still held back, for when generation ends without a stop text.
  std::string rest() { return std::exchange(kept_, {}); }

 private:
  std::vector<std::string> stops_;
  std::string kept_;
  bool met_ = false;
};

}  // namespace trainer::cli
