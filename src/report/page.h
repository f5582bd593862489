#pragma once
// Parts that all report pages share: the beginning and end of a page, sections, tables. Pages are well-formed as HTML
// and as XML. All arguments are escaped here, except those named `html` or `…_html`.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainer::report::page {

/// Returns the beginning of a page with its title, a heading, and a line of text below the heading.
std::string begin(const std::string& title, const std::string& heading, const std::string& below);
std::string end(const std::string& footer = "");

/// Returns a section around the content; empty if the content is empty.
std::string section(const std::string& html);
/// Returns sections side by side if there is room.
std::string side_by_side(const std::vector<std::string>& sections_html);

/// Returns "1.50 MiB", or "-" if the number is not known (0).
std::string bytes_text(int64_t bytes);

/// Names and values; values that are empty or "-" are omitted.
using Facts = std::vector<std::pair<std::string, std::string>>;
std::string table(const Facts& facts);

/// A table with a header row; its first column names the rows. It scrolls on small screens.
struct Table {
  struct Row {
    std::string name;
    std::vector<std::string> cells;
    bool marked = false;  // highlighted
  };
  std::vector<std::string> head;
  std::vector<Row> rows;
};
std::string table(const Table& grid);

/// Returns a legend: the colours of series 0, 1, … with these names.
std::string legend(const std::vector<std::string>& names);

}  // namespace trainer::report::page
