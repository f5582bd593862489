#include "data/character_set.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "data/recent_characters.h"

namespace trainer::data {
namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kCategories =
    " l lu ll lt lm lo m mn mc me n nd nl no p pc pd ps pe pi pf po s sm sc sk so z zs zl zp c cc cf co cn ";
// clang-format off
constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
    {"letter", "l"}, {"uppercaseletter", "lu"}, {"lowercaseletter", "ll"}, {"titlecaseletter", "lt"},
    {"modifierletter", "lm"}, {"otherletter", "lo"}, {"mark", "m"}, {"nonspacingmark", "mn"}, {"spacingmark", "mc"},
    {"enclosingmark", "me"}, {"number", "n"}, {"decimalnumber", "nd"}, {"digit", "nd"}, {"letternumber", "nl"},
    {"othernumber", "no"}, {"punctuation", "p"}, {"punct", "p"}, {"connectorpunctuation", "pc"}, {"dashpunctuation", "pd"},
    {"openpunctuation", "ps"}, {"closepunctuation", "pe"}, {"initialpunctuation", "pi"}, {"finalpunctuation", "pf"},
    {"otherpunctuation", "po"}, {"symbol", "s"}, {"mathsymbol", "sm"}, {"currencysymbol", "sc"},
    {"modifiersymbol", "sk"}, {"othersymbol", "so"}, {"separator", "z"}, {"spaceseparator", "zs"},
    {"lineseparator", "zl"}, {"paragraphseparator", "zp"}, {"other", "c"}, {"control", "cc"}, {"format", "cf"},
    {"privateuse", "co"}, {"unassigned", "cn"}};
// clang-format on

std::string recent_if(bool recent, std::string_view property) {
  return recent ? recent_characters(property) : std::string();
}
std::string alphabetic(bool recent) { return "\\p{Alphabetic}" + recent_if(recent, "alphabetic"); }
std::string category(std::string name, bool recent) {
  name[0] = static_cast<char>(name[0] & ~32);  // upper case
  return "\\p{" + name + "}" + recent_if(recent, name);
}
std::string word(bool recent) {
  return alphabetic(recent) + category("m", recent) + category("nd", recent) + category("pc", recent);
}

}  // namespace

std::string CharacterSet::expression() const {
  if (others.empty()) {
    const bool one_property = members.starts_with("\\p{") && members.find('}') + 1 == members.size();
    if (one_property) return (negated ? "\\P" : "\\p") + members.substr(2);  // faster than a class
    return (negated ? "[^" : "[") + members + "]";
  }
  std::string all = "(?:";
  for (const std::string& other : others) all += other + "|";
  return all + (members.empty() ? "(?!)" : "[" + members + "]") + ")";
}

void CharacterSet::add(const CharacterSet& set) {
  if (set.others.empty() && !set.negated) {
    members += set.members;
  } else {
    others.push_back(set.expression());
  }
}

std::optional<CharacterSet> CharacterSet::property(const std::string& name, bool recent) {
  const auto of = [](std::string members) { return CharacterSet{std::move(members), {}, false}; };
  for (const char* unknown : {"upper", "lower", "graph", "print", "cntrl"})
    if (name == unknown) return std::nullopt;
  if (name == "any") return of("\\x{0}-\\x{10ffff}");
  if (name == "ascii") return of("\\x{0}-\\x{7f}");
  if (name == "alphabetic" || name == "alpha") return of(alphabetic(recent));
  if (name == "alnum") return of(alphabetic(recent) + category("nd", recent));
  if (name == "space" || name == "whitespace") return of(std::string(kWhiteSpace));
  if (name == "blank") return of("\\t\\p{Zs}");
  if (name == "word") return of(word(recent));
  if (name == "xdigit") return of("0-9a-fA-F");
  const auto* const longer = std::ranges::find(kLongNames, name, [](const auto& pair) { return pair.first; });
  const std::string shorter(longer == std::end(kLongNames) ? name : longer->second);
  if (kCategories.find(" " + shorter + " ") == kCategories.npos)
    return of("\\p{sc:" + name + "}" + recent_if(recent, name));
  if (shorter == "cn") return CharacterSet{"\\P{Cn}" + recent_if(recent, "any"), {}, true};  // recent ones leave it
  if (shorter == "c") {
    CharacterSet others{"", {}, true};
    for (const char* each : {"l", "m", "n", "p", "s", "z"}) others.members += category(each, recent);
    return others;
  }
  return of(category(shorter, recent));
}

std::optional<CharacterSet> CharacterSet::shorthand(char letter, bool recent) {
  const bool negated = letter >= 'A' && letter <= 'Z';
  switch (negated ? letter | 32 : letter) {
    case 's':
      return CharacterSet{std::string(kWhiteSpace), {}, negated};
    case 'd':
      return CharacterSet{category("nd", recent), {}, negated};
    case 'h':
      return CharacterSet{"0-9a-fA-F", {}, negated};
    case 'w':
      return CharacterSet{word(recent), {}, negated};
    default:
      return std::nullopt;
  }
}

}  // namespace trainer::data
