#include "report/trace_json.h"

#include <gtest/gtest.h>

#include "report/events_json.h"

namespace trainer::report {
namespace {

using Kind = Span::Kind;

struct Drawn {
  std::string track, name;
  double begin, end;  // microseconds
  Json args;
};

/// Reads the events back: spans with the names of their tracks.
std::vector<Drawn> drawn(const Trace& trace, double origin, std::span<const Track> others = {}) {
  const TracedRank rank{.rank = 3, .name = "rank 3 on \"host\"", .origin = origin, .name_of_axes = [](uint32_t axes) {
                          return axes == 1 ? "data" : "tensor";
                        }};
  const Json json = Json::parse(kTraceBegin + trace_events(rank, trace, others) + kTraceEnd);
  std::map<int, std::string> tracks;
  std::vector<Drawn> spans;
  for (const Json& event : json.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("name") == "thread_name") tracks[event.at("tid")] = event.at("args").at("name");
    EXPECT_TRUE(event.at("name") != "process_name" || event.at("args").at("name") == rank.name);
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    spans.push_back(
        {tracks.at(event.at("tid")), event.at("name"), begin, begin + duration, event.value("args", Json())});
  }
  return spans;
}

TEST(TraceJson, SpansHaveTheirTrackNameAndTime) {
  Trace trace;
  trace.add({.kind = Kind::input, .name = "read", .time = {100.25, 100.5}});
  trace.add({.name = "gemm", .time = {101, 101.000002}, .flops = 4e9, .bytes = 1024});
  trace.add({.name = "all_reduce", .time = {101.5, 101.75}, .axes = 2});
  trace.add({.kind = Kind::axis, .name = "all_reduce", .time = {101.25, 101.75}, .axes = 2, .bytes = 8192});
  trace.add({.name = "layer", .time = {101, 102}, .number = 11});
  const std::vector<Drawn> spans = drawn(trace, 100);
  ASSERT_EQ(spans.size(), 5u);
  const auto is = [&](size_t i, const char* track, const char* name, double begin, double end) {
    EXPECT_EQ(spans[i].track, track);
    EXPECT_EQ(spans[i].name, name);
    EXPECT_NEAR(spans[i].begin, begin, 1e-3);
    EXPECT_NEAR(spans[i].end, end, 2e-3);
  };
  is(0, "input", "read", 0.25e6, 0.5e6);
  is(1, "compute", "layer 11", 1e6, 2e6);  // before the spans that it contains
  is(2, "compute", "gemm", 1e6, 1'000'002);
  is(3, "axis tensor", "all_reduce", 1.25e6, 1.75e6);
  is(4, "compute", "wait for tensor all_reduce", 1.5e6, 1.75e6);
  EXPECT_EQ(spans[2].args, Json({{"flops", 4e9}, {"bytes", 1024}}));
  EXPECT_EQ(spans[3].args, Json({{"bytes", 8192}}));
}

TEST(TraceJson, CollectivesThatOverlapGetTracksOfTheirOwn) {
  Trace trace;
  for (const auto& [begin, end] : {std::pair{0.0, 4.0}, {1.0, 3.0}, {2.0, 6.0}, {3.0, 5.0}, {4.0, 7.0}})
    trace.add({.kind = Kind::axis, .name = "all_gather", .time = {begin, end}, .axes = 1});
  trace.add({.kind = Kind::axis, .name = "all_gather", .time = {0, 9}, .axes = 2});
  std::map<std::string, double> ends;
  for (const Drawn& span : drawn(trace, 0)) {
    EXPECT_GE(span.begin, ends[span.track]) << span.track;
    ends[span.track] = span.end;
  }
  EXPECT_EQ(ends, (std::map<std::string, double>{
                      {"axis data", 7e6}, {"axis data (2)", 5e6}, {"axis data (3)", 6e6}, {"axis tensor", 9e6}}));
}

TEST(TraceJson, OtherThreadsHaveTracksOfTheirOwn) {
  Trace trace;
  trace.add({.name = "gemm", .time = {1, 2}});
  const std::vector<Track> others = {{"host link: there",
                                      {{.name = "gradient", .time = {0.5, 1}, .number = 7, .bytes = 64},
                                       {.name = "drain", .time = {1, 3}, .number = 2}}},
                                     {"nothing", {}}};
  std::string text;
  for (const Drawn& span : drawn(trace, 0, others)) text += span.track + " has " + span.name + "\n";
  EXPECT_EQ(text, "compute has gemm\nhost link: there has gradient 7\nhost link: there has drain 2\n");
}

TEST(TraceJson, RoundingKeepsSpansInsideTheirParents) {
  Trace trace;
  const double origin = 1e5;
  trace.add({.name = "parent", .time = {origin + 1e-9 * 0.7, origin + 1e-6 / 3}});
  trace.add({.name = "child", .time = {origin + 1e-9 * 0.7, origin + 1e-6 / 3}});
  trace.add({.name = "early", .time = {origin - 1, origin + 1e-9}});  // began before the trace
  const std::vector<Drawn> spans = drawn(trace, origin);
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].begin, 0);
  EXPECT_EQ(spans[1].begin, spans[2].begin);
  EXPECT_EQ(spans[1].end, spans[2].end);
}

TEST(TraceJson, OfNothingIsEmpty) {
  EXPECT_EQ(trace_events({}, Trace()), "");
  EXPECT_EQ(Json::parse(std::string(kTraceBegin) + kTraceEnd).at("traceEvents").size(), 0u);
}

}  // namespace
}  // namespace trainer::report
