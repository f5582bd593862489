#include "report/svg.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "report/printable.h"

namespace trainer::report::svg {
namespace {

const double kNaN = std::nan("");

std::vector<Point> points_of(const std::vector<double>& values) {
  std::vector<Point> points;
  for (const double value : values) points.push_back({static_cast<double>(points.size() + 1), value});
  return points;
}
size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++found;
  return found;
}

TEST(Downsample, KeepsEndsOrderAndEveryPeak) {
  std::vector<Point> points;
  for (int i = 0; i < 100'000; ++i) points.push_back({static_cast<double>(i), std::sin(i * 0.001)});
  points[43'210].y = 50;
  points[70'001].y = -50;
  const std::vector<Point> kept = downsample(points, 1000);
  EXPECT_LE(kept.size(), 1000);
  EXPECT_GE(kept.size(), 900);
  EXPECT_EQ(kept.front().x, 0);
  EXPECT_EQ(kept.back().x, 99'999);
  EXPECT_TRUE(std::ranges::is_sorted(kept, {}, &Point::x));
  for (const Point& point : kept) EXPECT_EQ(point.y, points[static_cast<size_t>(point.x)].y) << "kept, not made up";
  EXPECT_EQ(std::ranges::max(kept, {}, &Point::y).y, 50);
  EXPECT_EQ(std::ranges::min(kept, {}, &Point::y).y, -50);
  EXPECT_EQ(downsample(points_of({3, 1, kNaN, 2}), 4).size(), 4) << "a short curve stays as it is";
  EXPECT_TRUE(downsample({}, 1000).empty());
}

TEST(Downsample, HasTheExtremesOfEveryStretchAndLongGaps) {
  std::vector<Point> points;  // alternating ±1: every stretch must show both
  for (int i = 0; i < 1001; ++i) points.push_back({static_cast<double>(i), i % 2 == 0 ? 1.0 : -1.0});
  EXPECT_EQ(std::ranges::count(downsample(points, 100), 1.0, &Point::y), 49 + 2);
  points.clear();
  for (int i = 0; i < 10'000; ++i)
    points.push_back({static_cast<double>(i), i % 2 == 0 || (i > 4000 && i < 5000) ? kNaN : 1.0});
  const auto gaps = std::ranges::count_if(downsample(points, 100), [](const Point& p) { return std::isnan(p.y); });
  EXPECT_GE(gaps, 3);  // 1000 of 10 000 points, 204 per stretch
  EXPECT_LE(gaps, 5 + 2);
}

TEST(Smooth, IsACentredMeanThatDoesNotLag) {
  std::vector<double> values(kSmoothedFrom, 0);
  EXPECT_EQ(smooth(points_of({1, 5, 2})).at(1).y, 5) << "a short curve stays as it is";
  values[0] = 100;
  values[20] = 10;
  values[30] = kNaN;
  const auto out = smooth(points_of(values));
  ASSERT_EQ(out.size(), values.size() - 1);
  EXPECT_EQ(out[0].y, 100);
  for (size_t i = 17; i < 24; ++i) EXPECT_DOUBLE_EQ(out[i].y, i < 18 || i > 22 ? 0 : 2) << i;
  EXPECT_EQ(out[30].x, 32) << "gaps are skipped";
}

TEST(NiceTicks, AreRoundAndCoverTheRange) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(2.7, 9.1, 4), (std::vector<double>{2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(nice_ticks(5, 5, 4), (std::vector<double>{5}));
  for (const double scale : {1e-30, 1e-5, 1.0, 1e30}) {
    const auto ticks = nice_ticks(0.13 * scale, std::numbers::pi * scale, 6);
    EXPECT_LE(ticks.front(), 0.13 * scale);
    EXPECT_GE(ticks.back(), std::numbers::pi * scale * (1 - 1e-12));
    EXPECT_GE(ticks.size(), 4);
    EXPECT_LE(ticks.size(), 12);
  }
}

TEST(Escape, MakesTextHarmless) {
  EXPECT_EQ(escape("<b a='1' c=\"2\">&amp;</b>"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;amp;&lt;/b&gt;");
  EXPECT_EQ(escape("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(escape("Zür 東京 🙂"), "Zür 東京 🙂");
}

TEST(Escape, ReplacesWhatXmlDoesNotAllow) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(escape(std::string("\0\x1b[K\x0c", 5)), mark + mark + "[K" + mark);
  EXPECT_EQ(escape("a\xff\tb"), "a" + mark + "\tb");
  for (const char* none : {"\xe6\x9d", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    std::string marks;  // cut short, overlong, a surrogate, beyond U+10FFFF
    for (size_t i = 0; none[i] != '\0'; ++i) marks += mark;
    EXPECT_EQ(escape(none), marks);
  }
  for (const char* none : {"\xef\xbf\xbf", "\xc2\x85", "\x7f"}) EXPECT_EQ(escape(none), mark);
}

TEST(Printable, LeavesTextAndEscapesWhatTerminalsActOn) {
  const std::string text = "a\tb\nna\xC3\xAFve \xE2\x96\x81\xF0\x9F\x90\x88 \xC2\xA0";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable(std::string("\x1b[31m\x07\r\0\x7f", 9)), "\\x1b[31m\\x07\\x0d\\x00\\x7f");
  EXPECT_EQ(printable("\xC2\x9B[31m"), "\\x9b[31m");
  EXPECT_EQ(printable("a\xFF\xC3"), "a\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(LineChart, DrawsGapsAsSeparatePieces) {
  LineChart chart{.id = "c", .title = "T", .x_name = "step"};
  chart.series.push_back({"a", points_of({1, 2, kNaN, 3, INFINITY, 4}), 0, Series::Style::line});
  const std::string out = line_chart(chart);
  EXPECT_EQ(count(out, "<path class=\"s0\" d=\"M"), 2) << "the curve and its key";
  const size_t start = out.find("<path class=\"s0\" d=\"");
  const std::string curve = out.substr(start, out.find("/>", start) - start);
  EXPECT_EQ(count(curve, "M"), 3);
  EXPECT_EQ(count(curve, "L"), 1);
  EXPECT_NE(out.find("a: from 1 to 4, ends at 4."), std::string::npos) << "described for screen readers";
  EXPECT_EQ(count(out, "nan") + count(out, "inf"), 0);
}

TEST(LineChart, ReportsWhenThereIsNothingToDraw) {
  LineChart chart{.id = "c", .title = "T", .x_name = "step"};
  EXPECT_EQ(count(line_chart(chart), "no data"), 1);
  chart.logarithmic = true;
  chart.series = {{"a", points_of({kNaN, kNaN})}, {"b", points_of({0, -1})}};
  EXPECT_EQ(count(line_chart(chart), "no data"), 1);
}

TEST(LineChart, SurvivesOnePointConstantsAndExtremes) {
  for (const auto& values :
       std::vector<std::vector<double>>{{5}, {0}, {0, 0, 0}, {7, 7}, {-3, -3}, {1e-300, 2e-300}, {-1e300, 1e300}}) {
    for (const bool from_zero : {false, true}) {
      LineChart chart{.id = "c", .title = "T", .x_name = "step", .from_zero = from_zero};
      chart.series.push_back({"a", points_of(values), 0, Series::Style::dotted});
      const std::string out = line_chart(chart);
      EXPECT_EQ(count(out, "nan") + count(out, "inf"), 0) << out;
      EXPECT_GT(count(out, "<circle"), 0);
    }
  }
}

TEST(LineChart, LogarithmicTicksArePowersAndTheirParts) {
  LineChart chart{.id = "c", .title = "T", .x_name = "step", .logarithmic = true};
  chart.series.push_back({"a", points_of({0.3, 1, 40})});
  for (const char* label : {">0.5<", ">1<", ">2<", ">5<", ">10<", ">20<"})
    EXPECT_GT(count(line_chart(chart), label), 0) << label;
}

TEST(LineChart, IsLogarithmicWhereASpikeWouldFlattenTheRest) {
  const auto is_scaled = [](const std::vector<double>& values) {
    LineChart chart{.id = "c", .title = "T", .x_name = "step", .from_zero = true};
    chart.series = {{"a", points_of(values)}, {"b", points_of({1, kNaN})}};
    scale_for_spikes(chart);
    EXPECT_NE(chart.logarithmic, chart.from_zero);
    return chart.logarithmic;
  };
  EXPECT_TRUE(is_scaled({1, 2, 1, 41, 2}));
  EXPECT_FALSE(is_scaled({1, 2, 1, 19, 2, INFINITY}));
  EXPECT_FALSE(is_scaled({0, 0, 0, 5}));
  EXPECT_FALSE(is_scaled({}));
}

TEST(LineChart, WritesNamesOfLevelsOverTheCurves) {
  LineChart chart{.id = "c", .title = "T", .x_name = "step"};
  chart.series.push_back({"a", points_of({1, 2, 3})});
  chart.levels.push_back({2, "baseline"});
  const std::string out = line_chart(chart);
  EXPECT_GT(out.find(">baseline<"), out.find("<path class=\"s0\""));
  EXPECT_LT(out.find("<line class=\"level\""), out.find("<path class=\"s0\""));
}

TEST(Bars, HaveTheirShares) {
  const std::string out = stacked_bar("t", "Time", {{"a", 30, "30 ms", 0}, {"b", 10, "10 ms", 1}, {"c", 0, "0 ms", 2}});
  for (const char* share : {"75.0 %", "25.0 %", "0.0 %"}) EXPECT_GT(count(out, share), 0);
  EXPECT_EQ(count(out, "<rect"), 2);
  EXPECT_EQ(stacked_bar("t", "Time", {{"a", 0, "0", 0}}), "");
  const std::string memory = bars("m", "Memory", {{"x<y", 3, "3 B", 0}, {"z", 0, "0 B", 1}});
  EXPECT_EQ(count(memory, "<rect"), 2);
  EXPECT_EQ(count(memory, "x&lt;y"), 2);
  EXPECT_EQ(bars("m", "Memory", {}), "");
}

TEST(TimeLine, HasARowForEachKindOfEvent) {
  const std::vector<TimelineRow> lanes = {
      {"saved", {{10, "at <10>"}, {20, "at 20"}}, 5}, {"nothing", {}, 1}, {"told", {{15, "w"}}, 0}};
  const std::string out = time_line("e", "Events", "step", 10, 20, lanes);
  EXPECT_EQ(count(out, "<circle"), 3);
  EXPECT_EQ(count(out, "class=\"f5\""), 2);
  EXPECT_NE(out.find("<title>at &lt;10&gt;</title>"), std::string::npos);
  EXPECT_NE(out.find("saved: 2. told: 1. "), std::string::npos);
  EXPECT_EQ(out.find("nothing"), std::string::npos);
  EXPECT_EQ(time_line("e", "Events", "step", 10, 20, {{"nothing", {}, 1}}), "");
  const std::string moment = time_line("e", "Events", "step", 7, 7, {{"saved", {{7, "x"}}, 0}});
  EXPECT_EQ(count(moment, "nan") + count(moment, "inf"), 0);
  std::vector<TimelineRow::Mark> many(100'000, {1, "x"});
  EXPECT_LE(count(time_line("e", "E", "step", 0, 2, {{"many", many, 0}}), "<circle"), 500);
}

}  // namespace
}  // namespace trainer::report::svg
