#include "report/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/median.h"
#include "base/units.h"
#include "report/printable.h"

namespace trainer::report::svg {
namespace {

constexpr size_t kMaxMarks = 100;
constexpr int kNarrow = 600;  // wider drawings scroll on small screens instead of shrinking

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

/// Returns the labels of ticks, which share one unit: "0", "2k", "4k".
std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
  double largest = 0;
  for (const double tick : ticks) largest = std::max(largest, std::abs(tick));
  constexpr struct {
    double from, unit;
    const char* suffix;
  } kUnits[] = {{1e13, 1e12, "T"}, {1e10, 1e9, "G"}, {1e7, 1e6, "M"}, {1e4, 1e3, "k"}, {0, 1, ""}};
  const auto& unit =
      *std::find_if(std::begin(kUnits), std::end(kUnits), [=](const auto& u) { return largest >= u.from; });
  std::vector<std::string> labels;
  for (const double tick : ticks) labels.push_back(tick == 0 ? "0" : format("{:.5g}{}", tick / unit.unit, unit.suffix));
  return labels;
}

/// Maps values to coordinates of the drawing.
struct Axis {
  double low, high, from, to;
  bool logarithmic = false;
  double operator()(double value) const {
    if (logarithmic) return from + (std::log(value) - std::log(low)) / (std::log(high) - std::log(low)) * (to - from);
    return from + (value - low) / (high - low) * (to - from);
  }
};

std::vector<double> ticks_of(const Axis& axis, int requested) {
  if (!axis.logarithmic) {
    std::vector<double> ticks = nice_ticks(axis.low, axis.high, requested);
    const double slack = (axis.high - axis.low) * 1e-9;
    std::erase_if(ticks, [&](double tick) { return tick < axis.low - slack || tick > axis.high + slack; });
    return ticks;
  }
  std::vector<double> ticks;
  for (int power = static_cast<int>(std::floor(std::log10(axis.low))); std::pow(10, power) <= axis.high * 1.0001;
       ++power) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double tick = digit * std::pow(10, power);
      if (tick >= axis.low * 0.9999 && tick <= axis.high * 1.0001) ticks.push_back(tick);
    }
  }
  if (ticks.size() > static_cast<size_t>(2 * requested)) {  // too many ticks: powers of ten only
    std::erase_if(ticks, [](double tick) { return std::abs(std::log10(tick) - std::round(std::log10(tick))) > 1e-6; });
  }
  return ticks;
}

std::string attribute(const char* name, double value) { return format(" {}=\"{:.1f}\"", name, value); }

std::string line(const char* css, double x1, double y1, double x2, double y2) {
  return format("<line class=\"{}\"", css) + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
         attribute("y2", y2) + "/>";
}

std::string text(const char* css, double x, double y, const std::string& content) {
  return format("<text class=\"{}\"", css) + attribute("x", x) + attribute("y", y) + ">" + escape(content) + "</text>";
}

std::string open_svg(const std::string& id, const std::string& title, const std::string& description, int width,
                     int height) {
  return format(
      "<svg viewBox=\"0 0 {0} {1}\" role=\"img\" aria-labelledby=\"{2}-t {2}-d\"><title id=\"{2}-t\">{3}</title>"
      "<desc id=\"{2}-d\">{4}</desc>",
      width, height, escape(id), escape(title), escape(description));
}

bool usable(const LineChart& chart, const Point& point) {
  return std::isfinite(point.y) && std::isfinite(point.x) && (!chart.logarithmic || point.y > 0);
}

/// Returns the series as one path. A gap starts a new segment; an isolated point becomes a dot, as line caps are round.
std::string path(const LineChart& chart, const Series& series, const Axis& x, const Axis& y) {
  std::string data;
  bool pen_down = false;
  for (const Point& point : series.points) {
    if (usable(chart, point)) data += format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", x(point.x), y(point.y));
    if (usable(chart, point) && !pen_down) data += "h0";
    pen_down = usable(chart, point);
  }
  if (data.empty()) return "";
  const char* faint = series.style == Series::Style::faint ? " faint" : "";
  std::string out = format("<path class=\"s{}{}\" d=\"{}\"/>", series.colour, faint, data);
  if (series.style == Series::Style::dotted && series.points.size() <= kMaxMarks) {
    for (const Point& point : series.points) {
      if (!usable(chart, point)) continue;
      out += format("<circle class=\"f{}\" r=\"3.2\"", series.colour) + attribute("cx", x(point.x)) +
             attribute("cy", y(point.y)) +
             format("><title>{}</title></circle>",
                    escape(format("{}: {} at {}", series.name, format_number(point.y, 5), format_number(point.x, 9))));
    }
  }
  return out;
}

std::string describe(const LineChart& chart) {
  std::string description;
  for (const Series& series : chart.series) {
    Range range;
    double last = std::numeric_limits<double>::quiet_NaN();
    for (const Point& point : series.points) {
      if (!usable(chart, point)) continue;
      range.add(point.y);
      last = point.y;
    }
    if (range.empty()) continue;
    description += format("{}from {} to {}, ends at {}. ", series.name.empty() ? "" : series.name + ": ",
                          format_number(range.low), format_number(range.high), format_number(last));
  }
  for (const Level& level : chart.levels) description += format("{}: {}. ", level.name, format_number(level.y));
  return description.empty() ? "No data." : description;
}

/// Returns the legend of named series, right-aligned in the title line.
std::string legend(const LineChart& chart) {
  std::string out;
  double x = chart.width - 12;
  for (auto series = chart.series.rbegin(); series != chart.series.rend(); ++series) {
    if (series->name.empty() || series->style == Series::Style::faint) continue;
    out += text("key", x, 18, series->name);
    x -= 6.6 * static_cast<double>(series->name.size()) + 6;
    out += format("<path class=\"s{}\" d=\"M{:.1f} 14h-16\"/>", series->colour, x);
    x -= 30;
  }
  return out;
}

Range y_range(const LineChart& chart) {
  Range range;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      if (usable(chart, point)) range.add(point.y);
    }
  }
  if (range.empty()) return range;
  for (const Level& level : chart.levels) range.add(level.y);
  if (chart.logarithmic) {
    return {range.low / 1.2, range.high * 1.2};
  }
  if (chart.from_zero) range.low = std::min(range.low, 0.0);
  double margin = (range.high - range.low) * 0.06;
  if (margin <= std::abs(range.high) * 1e-9) margin = range.high == 0 ? 1 : std::abs(range.high) * 0.1;
  const bool at_zero = range.low == 0 && chart.from_zero;
  return {at_zero ? 0 : range.low - margin, range.high + margin};
}

}  // namespace

std::vector<Point> downsample(const std::vector<Point>& points, size_t max_points) {
  TRAINER_CHECK(max_points >= 4, "downsample() requires max_points >= 4, not {}", max_points);
  if (points.size() <= max_points) return points;
  std::vector<Point> kept = {points.front()};
  const size_t inner = points.size() - 2, stretches = (max_points - 2) / 2;
  for (size_t stretch = 0; stretch < stretches; ++stretch) {
    const size_t begin = 1 + stretch * inner / stretches, end = 1 + (stretch + 1) * inner / stretches;
    size_t lowest = end, highest = end;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(points[i].y)) continue;
      if (lowest == end || points[i].y < points[lowest].y) lowest = i;
      if (highest == end || points[i].y > points[highest].y) highest = i;
    }
    if (lowest == end) {
      kept.push_back(points[begin]);
      continue;
    }
    kept.push_back(points[std::min(lowest, highest)]);
    if (lowest != highest) kept.push_back(points[std::max(lowest, highest)]);
  }
  kept.push_back(points.back());
  return kept;
}

std::vector<Point> smooth(const std::vector<Point>& points) {
  if (points.size() < kSmoothedFrom) return points;
  const size_t window = std::max<size_t>(5, points.size() / 25);
  std::vector<Point> out;
  std::vector<double> sums = {0};  // sums[i] is the sum of the first i finite values
  for (const Point& point : points) {
    if (!std::isfinite(point.y)) continue;
    out.push_back(point);
    sums.push_back(sums.back() + point.y);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t reach = std::min({window / 2, i, out.size() - 1 - i});
    out[i].y = (sums[i + reach + 1] - sums[i - reach]) / static_cast<double>(2 * reach + 1);
  }
  return out;
}

std::vector<double> nice_ticks(double low, double high, int requested) {
  if (!(high > low) || !std::isfinite(high - low)) return {low};
  const double rough = (high - low) / std::max(1, requested);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double digit = rough / power;
  const double step = (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10) * power;
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double index = first; index <= last; index += 1) ticks.push_back(index * step);
  return ticks;
}

std::string escape(std::string_view input) {
  return replaced(input, [](std::string_view character) -> std::string {
    if (character == "&") return "&amp;";
    if (character == "<") return "&lt;";
    if (character == ">") return "&gt;";
    if (character == "\"") return "&quot;";
    if (character == "'") return "&#39;";
    const bool allowed = !is_control(character) && character != "\xEF\xBF\xBE" && character != "\xEF\xBF\xBF";
    return allowed ? std::string(character) : "\xEF\xBF\xBD";
  });
}

void scale_for_spikes(LineChart& chart) {
  std::vector<double> values;
  for (const Series& series : chart.series)
    for (const Point& point : series.points)
      if (std::isfinite(point.y)) values.push_back(point.y);
  if (values.empty()) return;
  const double largest = *std::ranges::max_element(values), middle = median(std::move(values));
  chart.logarithmic = middle > 0 && largest > 20 * middle;
  chart.from_zero &= !chart.logarithmic;
}

std::string line_chart(LineChart chart) {
  for (Series& series : chart.series) series.points = downsample(series.points, kMostPoints);
  std::string out = chart.width > kNarrow ? "<figure class=\"wide\">" : "<figure>";
  out +=
      open_svg(chart.id, chart.title, describe(chart), chart.width, chart.height) + text("title", 12, 18, chart.title);
  const Range range = y_range(chart);
  if (range.empty()) {
    return out + text("none", chart.width / 2.0, chart.height / 2.0, "no data") + "</svg></figure>\n";
  }
  Range across;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) across.add(point.x);
  }
  if (across.low == across.high) across = {across.low - 1, across.high + 1};
  const double left = 58, right = chart.width - 12, top = 34, bottom = chart.height - 40;
  const Axis x = {across.low, across.high, left, right, false};
  const Axis y = {range.low, range.high, bottom, top, chart.logarithmic};

  const std::vector<double> y_ticks = ticks_of(y, chart.height / 55), x_ticks = ticks_of(x, chart.width / 100);
  const std::vector<std::string> y_labels = tick_labels(y_ticks), x_labels = tick_labels(x_ticks);
  for (size_t i = 0; i < y_ticks.size(); ++i) {
    out += line("grid", left, y(y_ticks[i]), right, y(y_ticks[i]));
    out += text("y", left - 8, y(y_ticks[i]) + 4, y_labels[i]);
  }
  for (size_t i = 0; i < x_ticks.size(); ++i) out += text("x", x(x_ticks[i]), bottom + 18, x_labels[i]);
  out += line("axis", left, bottom, right, bottom);
  out += text("x name", (left + right) / 2, chart.height - 6, chart.x_name);
  if (!chart.y_name.empty()) {
    out += format("<text class=\"x name\" transform=\"translate(13 {:.1f}) rotate(-90)\">{}</text>", (top + bottom) / 2,
                  escape(chart.y_name));
  }
  for (const Level& level : chart.levels) out += line("level", left, y(level.y), right, y(level.y));
  for (const Series& series : chart.series) out += path(chart, series, x, y);
  for (const Level& level : chart.levels) out += text("level", right - 4, y(level.y) - 5, level.name);
  return out + (chart.legend ? legend(chart) : "") + "</svg></figure>\n";
}

std::string stacked_bar(const std::string& id, const std::string& title, const std::vector<Bar>& parts) {
  double total = 0;
  for (const Bar& part : parts) total += std::max(0.0, part.value);
  if (!(total > 0)) return "";
  constexpr double kWidth = 456, kHeight = 26;
  std::string description, rects, table;
  double at = 12;
  for (const Bar& part : parts) {
    const double share = std::max(0.0, part.value) / total;
    const std::string label = format("{}: {} ({})", part.name, part.text, format_percent(share));
    description += label + ". ";
    if (share > 0) {
      rects += format("<rect class=\"f{}\" y=\"34\" height=\"{}\"", part.colour, kHeight) + attribute("x", at) +
               attribute("width", std::max(0.5, share * kWidth - 1)) + "><title>" + escape(label) + "</title></rect>";
    }
    at += share * kWidth;
    table += format("<tr><th scope=\"row\"><span class=\"chip b{}\"></span>{}</th><td>{}</td><td>{}</td></tr>",
                    part.colour, escape(part.name), escape(part.text), format_percent(share));
  }
  return "<figure>" + open_svg(id, title, description, 480, 68) + text("title", 12, 18, title) + rects +
         "</svg><table class=\"parts\">" + table + "</table></figure>\n";
}

std::string time_line(const std::string& id, const std::string& title, const std::string& x_name, double from,
                      double to, const std::vector<TimelineRow>& rows) {
  constexpr double kRow = 26, kTop = 32, kLeft = 130, kRight = 980;
  constexpr size_t kMost = 500;  // marks per row; more would overlap
  const Axis x = {from, to > from ? to : from + 1, kLeft, kRight};
  std::string description, marks;
  double y = kTop;
  for (const TimelineRow& row : rows) {
    if (row.marks.empty()) continue;
    description += format("{}: {}. ", row.name, row.marks.size());
    marks += text("y", kLeft - 14, y + 15, row.name) + line("grid", kLeft, y + 11, kRight, y + 11);
    const size_t every = (row.marks.size() + kMost - 1) / kMost;
    for (size_t i = 0; i < row.marks.size(); i += every) {
      marks += format("<circle class=\"f{}\" r=\"5\"", row.colour) + attribute("cx", x(row.marks[i].x)) +
               attribute("cy", y + 11) + "><title>" + escape(row.marks[i].text) + "</title></circle>";
    }
    y += kRow;
  }
  if (description.empty()) return "";
  std::string out = "<figure class=\"wide\">" + open_svg(id, title, description, 1000, static_cast<int>(y) + 40) +
                    text("title", 12, 18, title) + marks + line("axis", kLeft, y, kRight, y);
  const std::vector<double> ticks = ticks_of(x, 10);
  const std::vector<std::string> labels = tick_labels(ticks);
  for (size_t i = 0; i < ticks.size(); ++i) out += text("x", x(ticks[i]), y + 16, labels[i]);
  return out + text("x name", (kLeft + kRight) / 2, y + 34, x_name) + "</svg></figure>\n";
}

std::string heat_map(const HeatMap& map) {
  constexpr double kTop = 32, kLeft = 130, kRight = 980;
  const double height = std::clamp(400.0 / static_cast<double>(map.rows.size()), 4.0, 18.0);
  const size_t named_every = std::max<size_t>(1, static_cast<size_t>(std::ceil(14 / height)));
  const Axis x = {map.from, map.to > map.from ? map.to : map.from + 1, kLeft, kRight};
  std::string cells;
  double y = kTop;
  for (size_t r = 0; r < map.rows.size(); ++r, y += height) {
    const HeatMap::Row& row = map.rows[r];
    if (r % named_every == 0) cells += text("y", kLeft - 14, y + height / 2 + 4, row.name);
    const double width = (kRight - kLeft) / static_cast<double>(row.cells.size());
    for (size_t c = 0; c < row.cells.size(); ++c)
      cells += format("<rect class=\"f1\" fill-opacity=\"{:.2f}\"",
                      std::clamp((row.cells[c].value - map.least) / (map.most - map.least), 0.0, 1.0)) +
               attribute("x", kLeft + static_cast<double>(c) * width) + attribute("y", y) + attribute("width", width) +
               attribute("height", height) + "><title>" + escape(row.cells[c].text) + "</title></rect>";
  }
  std::string out = "<figure class=\"wide\">" +
                    open_svg(map.id, map.title, map.description, 1000, static_cast<int>(y) + 40) +
                    text("title", 12, 18, map.title) + cells + line("axis", kLeft, y, kRight, y);
  const std::vector<double> ticks = ticks_of(x, 10);
  const std::vector<std::string> labels = tick_labels(ticks);
  for (size_t i = 0; i < ticks.size(); ++i) out += text("x", x(ticks[i]), y + 16, labels[i]);
  return out + text("x name", (kLeft + kRight) / 2, y + 34, map.x_name) + "</svg></figure>\n";
}

std::string bars(const std::string& id, const std::string& title, const std::vector<Bar>& parts) {
  if (parts.empty()) return "";
  double largest = 0;
  std::string description;
  for (const Bar& part : parts) {
    largest = std::max(largest, part.value);
    description += format("{}: {}. ", part.name, part.text);
  }
  constexpr double kRow = 26, kTop = 32, kLeft = 190, kRight = 880;
  const int height = static_cast<int>(kTop + kRow * static_cast<double>(parts.size()) + 6);
  std::string out =
      "<figure class=\"wide\">" + open_svg(id, title, description, 1000, height) + text("title", 12, 18, title);
  double y = kTop;
  for (const Bar& part : parts) {
    const double width = largest > 0 ? std::max(1.0, std::max(0.0, part.value) / largest * (kRight - kLeft)) : 1;
    out += text("y", kLeft - 10, y + 15, part.name);
    out += format("<rect class=\"f{}\" rx=\"2\" height=\"18\"", part.colour) + attribute("x", kLeft) +
           attribute("y", y + 1) + attribute("width", width) + "/>";
    out += text("value", kLeft + width + 8, y + 15, part.text);
    y += kRow;
  }
  return out + "</svg></figure>\n";
}

}  // namespace trainer::report::svg
