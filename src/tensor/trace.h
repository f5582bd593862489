#pragma once
// Trace: this rank's timeline in the steps that log.trace selects. Operators, tickets and TraceScope fill it;
// report/trace_json.h writes it to a file. Used only by the compute thread.
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace trainer {

/// One activity of a rank.
struct Span {
  /// compute: the compute thread; spans are nested. input: reading batches. host_link: copies between host and GPU.
  /// axis: collectives in flight along `axes`, several at a time.
  enum class Kind : uint8_t { compute, input, host_link, axis };

  Kind kind = Kind::compute;
  std::string_view name = {};  // must live as long as the trace
  Interval time = {};
  int64_t number = -1;  // number of the step or layer; -1: none
  uint32_t axes = 0;    // axes of a collective, as bits; kind compute: of the collective waited for
  double flops = 0, bytes = 0;
};

class Trace {
 public:
  void add(const Span& span) { spans_.push_back(span); }
  /// Returns the spans in order of their ends.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  std::vector<Span> spans_;
};

/// Adds a span that lasts from construction to destruction. If `trace` is null, tracing is off.
class TraceScope {
 public:
  TraceScope(Trace* trace, std::string_view name, int64_t number = -1, Span::Kind kind = Span::Kind::compute)
      : trace_(trace), kind_(kind), name_(name), number_(number), begin_(trace == nullptr ? 0 : now_seconds()) {}
  ~TraceScope() {
    if (trace_ != nullptr)
      trace_->add({.kind = kind_, .name = name_, .time = {begin_, now_seconds()}, .number = number_});
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* trace_;
  Span::Kind kind_;
  std::string_view name_;
  int64_t number_;
  double begin_;
};

}  // namespace trainer
