#pragma once
// Charts as inline SVG, generated here so that a report opens offline without scripts. Colours come from the page's
// style (classes s0, s1, …), so that they follow its light or dark theme. All text is escaped.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::report::svg {

struct Point {
  double x, y;  // y not finite: a gap
};

/// Returns at most `max_points` (>= 4) of the points, in order: the first, the last, and the lowest and highest of each
/// interval, so that no spike is lost. An interval without a finite value remains a gap.
std::vector<Point> downsample(const std::vector<Point>& points, size_t max_points);
/// Returns the moving average over a 25th of the points (fewer towards the ends). The window is centred on each point,
/// so that the average does not lag; gaps are skipped. A curve of fewer than kSmoothedFrom points is unchanged.
std::vector<Point> smooth(const std::vector<Point>& points);
inline constexpr size_t kSmoothedFrom = 50;

/// Returns about `requested` round numbers that cover [low, high] at intervals of 1, 2 or 5 times a power of ten.
std::vector<double> nice_ticks(double low, double high, int requested);

/// Escapes &, <, > and quotes for HTML and XML. Invalid UTF-8 and control characters become U+FFFD.
std::string escape(std::string_view text);

struct Series {
  enum class Style { line, faint, dotted };  // dotted: a line with a mark at each point (up to 100)
  std::string name;
  std::vector<Point> points;
  int colour = 0;
  Style style = Style::line;
};
/// A horizontal line with its name, such as a baseline.
struct Level {
  double y;
  std::string name;
};
struct LineChart {
  std::string id;  // unique on the page
  std::string title, x_name, y_name = {};
  std::vector<Series> series = {};
  std::vector<Level> levels = {};
  int width = 720, height = 300;
  bool from_zero = false;    // the y axis starts at 0
  bool logarithmic = false;  // the y axis is logarithmic; values <= 0 are gaps
  bool legend = true;        // names of the series next to the title; false: the page has a legend
};
/// The largest number of points drawn per series.
inline constexpr size_t kMostPoints = 1000;
/// Makes the y axis logarithmic if a single spike, more than 20 times the median, would flatten everything else.
void scale_for_spikes(LineChart& chart);
/// Returns a chart, or "no data" if no series has a finite point.
std::string line_chart(LineChart chart);

struct Bar {
  std::string name;
  double value;
  std::string text;  // the value as text
  int colour = 0;
};
/// Returns one bar of adjacent parts above a table of them, half as wide as the page; empty if the total is zero.
std::string stacked_bar(const std::string& id, const std::string& title, const std::vector<Bar>& parts);
/// A row of marks on a timeline: events at x, with a text for each.
struct TimelineRow {
  struct Mark {
    double x;
    std::string text;
  };
  std::string name;
  std::vector<Mark> marks;
  int colour = 0;
};
/// Returns rows below each other, from x = `from` to `to`, as wide as the page. Rows without marks are omitted; empty
/// if there are no marks.
std::string time_line(const std::string& id, const std::string& title, const std::string& x_name, double from,
                      double to, const std::vector<TimelineRow>& rows);
/// Returns a bar for each part, as wide as the page.
std::string bars(const std::string& id, const std::string& title, const std::vector<Bar>& parts);

/// Rows of cells, from x = `from` on the left to `to`, as wide as the page. A cell is darker the larger its value is,
/// from no colour at `least` to the full colour at `most`; its text appears as a tool tip.
struct HeatMap {
  struct Cell {
    double value;
    std::string text;
  };
  struct Row {
    std::string name;
    std::vector<Cell> cells;
  };
  std::string id, title, x_name, description = {};
  double from = 0, to = 1, least = 0, most = 1;
  std::vector<Row> rows = {};
};
std::string heat_map(const HeatMap& map);

}  // namespace trainer::report::svg
