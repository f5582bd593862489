#include "report/page.h"

#include "base/format.h"
#include "base/units.h"
#include "report/style.h"
#include "report/svg.h"

namespace trainer::report::page {

using svg::escape;

std::string begin(const std::string& title, const std::string& heading, const std::string& below) {
  return format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>{}</title>\n<style>{}</style>"
      "</head>\n<body><main>\n<header><h1>{}</h1><p class=\"sub\">{}</p></header>\n",
      escape(title), kReportStyle, escape(heading), escape(below));
}

std::string end(const std::string& footer) {
  return (footer.empty() ? "" : "<footer>" + escape(footer) + "</footer>\n") + "</main></body></html>\n";
}

std::string section(const std::string& html) { return html.empty() ? "" : "<section>" + html + "</section>\n"; }

std::string side_by_side(const std::vector<std::string>& sections_html) {
  std::string out;
  for (const std::string& html : sections_html) out += section(html);
  return "<div class=\"two\">" + out + "</div>\n";
}

std::string bytes_text(int64_t bytes) { return bytes > 0 ? format_bytes(static_cast<double>(bytes)) : "-"; }

std::string table(const Facts& facts) {
  std::string out = "<table>";
  for (const auto& [name, value] : facts) {
    if (!value.empty() && value != "-")
      out += format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(name), escape(value));
  }
  return out + "</table>";
}

std::string table(const Table& grid) {
  std::string out = "<div class=\"scroll\"><table class=\"grid\"><thead><tr><td></td>";
  for (const std::string& name : grid.head) out += format("<th scope=\"col\">{}</th>", escape(name));
  out += "</tr></thead><tbody>";
  for (const Table::Row& row : grid.rows) {
    out += format("<tr{}><th scope=\"row\">{}</th>", row.marked ? " class=\"marked\"" : "", escape(row.name));
    for (const std::string& cell : row.cells) out += format("<td>{}</td>", escape(cell));
    out += "</tr>";
  }
  return out + "</tbody></table></div>";
}

std::string legend(const std::vector<std::string>& names) {
  std::string out = "<ul class=\"legend\">";
  for (size_t i = 0; i < names.size(); ++i)
    out += format("<li><span class=\"chip b{}\"></span>{}</li>", i, escape(names[i]));
  return out + "</ul>\n";
}

}  // namespace trainer::report::page
