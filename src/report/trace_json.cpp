#include "report/trace_json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "report/events_json.h"

namespace trainer::report {
namespace {

using Kind = Span::Kind;

std::string json_string(const std::string& text) { return json_text(Json(text)); }

/// Returns whole nanoseconds as text in microseconds, the format's unit: "12.345".
std::string microseconds(int64_t nanoseconds) { return format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000); }

/// Assigns tracks to kinds of spans, in the order in which a viewer shows them.
class Tracks {
 public:
  explicit Tracks(const TracedRank& rank) : rank_(rank) {}

  /// Returns the track of a span. Call it for spans in the order in which they begin.
  int of(const Span& span) {
    if (span.kind != Kind::axis) return track(name_of(span.kind), static_cast<int>(span.kind));
    std::vector<double>& ends = axes_[span.axes];  // time at which the last span of each track of this axis ended
    auto free = std::ranges::find_if(ends, [&](double end) { return end <= span.time.begin; });
    if (free == ends.end()) free = ends.insert(free, 0);
    *free = span.time.end;
    const auto which = static_cast<int>(free - ends.begin());
    const std::string name = "axis " + rank_.name_of_axes(span.axes);
    return track(which == 0 ? name : format("{} ({})", name, which + 1), static_cast<int>(Kind::axis));
  }
  /// Returns an additional track, which is shown next to the host link's.
  int of(const Track& other) { return track(other.name, static_cast<int>(Kind::host_link)); }
  /// Returns the events that name the process and its tracks.
  std::vector<std::string> names() const {
    std::vector<std::string> events = {
        format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})", rank_.rank,
               json_string(rank_.name)),
        format(R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}})", rank_.rank)};
    for (const auto& [key, number] : numbers_) {
      events.push_back(format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})", rank_.rank,
                              number, json_string(key.second)));
      events.push_back(format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})",
                              rank_.rank, number, key.first * 1000 + number));
    }
    return events;
  }

 private:
  static std::string name_of(Kind kind) {
    return kind == Kind::compute ? "compute" : kind == Kind::input ? "input" : "host link";
  }
  int track(const std::string& name, int order) {
    return numbers_.try_emplace({order, name}, static_cast<int>(numbers_.size()) + 1).first->second;
  }

  const TracedRank& rank_;
  std::map<uint32_t, std::vector<double>> axes_;
  std::map<std::pair<int, std::string>, int> numbers_;
};

std::string title(const Span& span, const TracedRank& rank) {
  const std::string name(span.name);
  if (span.kind == Kind::compute && span.axes != 0) return format("wait for {} {}", rank.name_of_axes(span.axes), name);
  return span.number < 0 ? name : format("{} {}", name, span.number);
}

std::string arguments(const Span& span) {
  std::string text;
  if (span.flops > 0) text += format("\"flops\":{}", span.flops);
  if (span.bytes > 0) text += format("{}\"bytes\":{:.0f}", text.empty() ? "" : ",", span.bytes);
  return text.empty() ? "" : ",\"args\":{" + text + "}";
}

}  // namespace

std::string trace_events(const TracedRank& rank, const Trace& trace, std::span<const Track> others) {
  std::vector<Span> spans = trace.spans();
  if (spans.empty()) return "";
  // Sorted by start time. Of spans that start together, the longest, which contains the others, comes first.
  std::ranges::stable_sort(spans, [](const Span& a, const Span& b) {
    return a.time.begin != b.time.begin ? a.time.begin < b.time.begin : a.time.end > b.time.end;
  });
  const auto at = [&](double seconds) {  // spans in flight at the start of the trace are truncated there
    return static_cast<int64_t>(std::floor(std::max(0.0, seconds - rank.origin) * 1e9));
  };
  Tracks tracks(rank);
  std::vector<std::string> events;
  const auto add = [&](const Span& span, int track) {
    const int64_t begin = at(span.time.begin), end = at(span.time.end);
    events.push_back(format(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{}{}}})", rank.rank, track,
                            microseconds(begin), microseconds(end - begin), json_string(title(span, rank)),
                            arguments(span)));
  };
  for (const Span& span : spans) add(span, tracks.of(span));
  for (const Track& other : others)
    for (const Span& span : other.spans) add(span, tracks.of(other));
  std::string text;
  for (const std::vector<std::string>& part : {tracks.names(), events})
    for (const std::string& event : part) text += (text.empty() ? "" : ",\n") + event;
  return text;
}

}  // namespace trainer::report
