#include "data/oniguruma.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "data/character_set.h"

namespace trainer::data {
namespace {

/// Members of "\w" that Oniguruma has in no class with brackets.
constexpr const char* kWordsOutsideClasses = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

class Translator {
 public:
  Translator(std::string_view expression, bool recent, const std::string& origin)
      : text_(expression), recent_(recent), origin_(origin) {}

  std::string translate() {
    std::string out = alternatives();
    if (at_ < text_.size()) refuse("closing parenthesis without an opening one");
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error(Code::data, format("{}: pattern {}: {} (at position {})", origin_, text_, reason, at_));
  }
  [[noreturn]] void refuse_feature(std::string_view feature) const {
    refuse(format("{} is not supported; simplify the pattern, or tokenize with the library that it was written for",
                  feature));
  }

  bool more() const { return at_ < text_.size(); }
  bool next_is(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool accept(std::string_view what) {
    if (!next_is(what)) return false;
    at_ += what.size();
    return true;
  }
  /// Consumes one character, and returns its bytes.
  std::string_view character() {
    const size_t length = std::max<size_t>(1, utf8_character(text_.substr(at_)));
    at_ += length;
    return text_.substr(at_ - length, length);
  }

  /// Translates until the parenthesis that ends the group.
  std::string alternatives() {
    const auto outer = std::pair(ignores_case_, dot_matches_newline_);
    std::string out;
    while (more() && !next_is(")")) {
      if (accept("|")) {
        out += "|";
        last_letter_ = 0;
      } else if (std::string element = atom(); !element.empty()) {
        out += quantified(std::move(element));
      }
    }
    std::tie(ignores_case_, dot_matches_newline_) = outer;
    return out;
  }

  /// Returns an atom with the quantifiers that follow it. A quantifier of a quantified atom repeats it: only "?+", "*+"
  /// and "++" are possessive.
  std::string quantified(std::string element) {
    for (bool first = true;; first = false) {
      std::string quantifier;
      if (next_is("*") || next_is("+") || next_is("?")) {
        quantifier = text_[at_++];
        if (next_is("?") || next_is("+")) quantifier += text_[at_++];
      } else if (const std::optional<std::string> interval = read_interval()) {
        quantifier = *interval;
        const bool fixed = quantifier.find(',') == std::string::npos;
        if (!fixed && accept("?")) quantifier += "?";  // "{n}?" is an optional "{n}", as the loop takes it
      } else {
        return element;
      }
      element = first ? element + quantifier : "(?:" + element + ")" + quantifier;
    }
  }
  /// Consumes "{n}", "{n,}", "{n,m}" or "{,m}"; none of these: a brace is a character like others.
  std::optional<std::string> read_interval() {
    if (!next_is("{")) return std::nullopt;
    const size_t close = text_.find('}', at_);
    if (close == text_.npos) return std::nullopt;
    const std::string_view inside = text_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = inside.find(',');
    const std::string_view low = inside.substr(0, comma), high = comma == inside.npos ? low : inside.substr(comma + 1);
    const auto is_number = [](std::string_view digits) {
      return digits.size() <= 5 && digits.find_first_not_of("0123456789") == digits.npos;
    };
    if (!is_number(low) || !is_number(high) || (low.empty() && high.empty())) return std::nullopt;
    if (!low.empty() && !high.empty() && std::stoi(std::string(low)) > std::stoi(std::string(high)))
      refuse_feature(format("{{{}}}", inside));
    at_ = close + 1;
    return format("{{{}{}}}", low.empty() ? "0" : low, comma == inside.npos ? "" : "," + std::string(high));
  }

  /// Returns the next atom, complete in itself; empty: there was only a comment.
  std::string atom() {
    if (next_is("(")) return group();
    if (next_is("[")) {
      last_letter_ = 0;
      return character_class().expression();
    }
    if (accept(".")) {
      last_letter_ = 0;
      return dot_matches_newline_ ? "(?s:.)" : "[^\\n]";
    }
    if (accept("^")) return "(?:\\A|(?<=\\n)(?!\\z))";
    if (accept("$")) return "(?=\\n|\\z)";
    if (next_is("\\")) return escape();
    if (next_is("*") || next_is("+") || next_is("?")) refuse("nothing to repeat");
    if (const size_t at = at_; read_interval()) {
      at_ = at;
      refuse("nothing to repeat");
    }
    return literal(utf8_code(character()));
  }

  std::string group() {
    ++at_;
    std::string begin = "(?:";
    if (accept("?#")) {
      while (more() && !next_is(")")) character();
      if (!accept(")")) refuse("comment without end");
      return "";
    }
    if (next_is("*")) refuse_feature("(*");
    if (accept("?")) {
      const std::array<std::string_view, 6> plain{":", "=", "!", ">", "<=", "<!"};
      const auto* const found = std::ranges::find_if(plain, [&](std::string_view each) { return accept(each); });
      if (found != plain.end()) {
        begin = "(?" + std::string(*found);
      } else if (accept("<")) {  // a name, to which nothing can refer here
        while (more() && !next_is(">")) character();
        accept(">");
      } else {
        return options();
      }
    }
    return begin + closed();
  }
  std::string closed() {
    if (++depth_ > kDeepest) refuse_feature(format("nesting of more than {} groups", kDeepest));
    std::string inside = alternatives();
    --depth_;
    if (!accept(")")) refuse("missing closing parenthesis");
    return inside + ")";
  }
  /// Translates "(?im-im:...)", or "(?im-im)", which holds to the end of the group and begins a group itself.
  std::string options() {
    const auto outer = std::pair(ignores_case_, dot_matches_newline_);
    for (bool on = true; more() && !next_is(":") && !next_is(")");) {
      if (accept("-")) {
        on = false;
      } else if (accept("i")) {
        ignores_case_ = on;
      } else if (accept("m")) {
        dot_matches_newline_ = on;
      } else {
        refuse_feature("(?" + std::string(character()));
      }
    }
    const std::string begin = ignores_case_ ? "(?i:" : "(?-i:";
    std::string out;
    if (accept(":")) {
      out = begin + closed();
    } else if (accept(")")) {
      out = begin + alternatives() + ")";
    } else {
      refuse("missing closing parenthesis");
    }
    std::tie(ignores_case_, dot_matches_newline_) = outer;
    return out;
  }

  static bool is_word(uint32_t code) {
    return code < 128 && ((code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z'));
  }
  static std::string spelled(uint32_t code) {
    return is_word(code) ? std::string(1, static_cast<char>(code)) : format("\\x{{{:x}}}", code);
  }
  /// Returns a character. Without regard to case, some sequences of letters also match one character, such as "ss" ß.
  std::string literal(uint32_t code) {
    if (ignores_case_) {
      const uint32_t letter = code | 32;
      const std::string pair{static_cast<char>(last_letter_), static_cast<char>(letter)};
      for (const char* ligature : {"ss", "ff", "fi", "fl", "st"})
        if (pair == ligature) refuse_feature(format("{} without regard to case", pair));
      check_case(code);
      last_letter_ = letter;
    }
    return spelled(code);
  }
  void check_case(uint32_t code) const {
    if (ignores_case_ && code >= 128) refuse_feature("a character outside ASCII without regard to case");
  }

  CharacterSet property(const std::string& name) const {
    std::optional<CharacterSet> set = CharacterSet::property(name, recent_);
    if (!set) refuse_feature("property " + name);
    return std::move(*set);
  }
  /// Consumes "{Name}" or "{^Name}" of "\p" and "\P".
  CharacterSet read_property(bool negated) {
    if (!accept("{")) refuse_feature("\\p without {");
    negated ^= accept("^");
    const size_t close = text_.find('}', at_);
    if (close == text_.npos) refuse("property without end");
    std::string name;
    for (const char c : text_.substr(at_, close - at_)) {
      const bool upper = c >= 'A' && c <= 'Z', keep = upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
      if (!keep && c != ' ' && c != '_' && c != '-') refuse("not the name of a property");
      if (keep) name += static_cast<char>(upper ? c | 32 : c);
    }
    CharacterSet set = property(name);
    at_ = close + 1;
    set.negated ^= negated;
    if (ignores_case_) refuse_feature("a property without regard to case");
    return set;
  }

  /// Consumes the rest of an escape that means one character, after the backslash; none: it does not.
  std::optional<uint32_t> escaped_character() {
    constexpr std::pair<char, uint32_t> kControls[] = {{'t', 9},  {'v', 11}, {'n', 10}, {'r', 13},
                                                       {'f', 12}, {'a', 7},  {'e', 27}};
    for (const auto& [letter, code] : kControls)
      if (accept(std::string_view(&letter, 1))) return code;
    const auto digits = [&](size_t least, size_t most, uint32_t base) {
      uint32_t code = 0;
      size_t count = 0;
      for (; count < most && more(); ++count, ++at_) {
        const char c = text_[at_];
        const uint32_t digit = c >= '0' && c <= '9'                 ? static_cast<uint32_t>(c - '0')
                               : (c | 32) >= 'a' && (c | 32) <= 'f' ? static_cast<uint32_t>((c | 32) - 'a' + 10)
                                                                    : 16;
        if (digit >= base) break;
        code = code * base + digit;
      }
      if (count < least || code > 0x10FFFF) refuse("not the number of a character");
      return code;
    };
    if (accept("x{")) {
      const uint32_t code = digits(1, 8, 16);
      if (!accept("}")) refuse("not the number of a character");
      return code;
    }
    if (accept("x")) {
      const uint32_t code = digits(1, 2, 16);
      if (code >= 128) refuse_feature("\\x with a byte of 80 or more");
      return code;
    }
    if (accept("u")) return digits(4, 4, 16);
    if (next_is("0")) return digits(1, 3, 8);
    if (!more()) refuse("ends with a backslash");
    const uint32_t code = utf8_code(text_.substr(at_, std::max<size_t>(1, utf8_character(text_.substr(at_)))));
    if (is_word(code)) return std::nullopt;
    character();
    return code;
  }

  std::string escape() {
    CharacterSet word = *CharacterSet::shorthand('w', recent_);
    if (std::optional<CharacterSet> set = escaped_set()) {
      last_letter_ = 0;
      if (set->members == word.members) set->members += kWordsOutsideClasses;
      return set->expression();
    }
    ++at_;
    if (const std::optional<uint32_t> code = escaped_character()) return literal(*code);
    last_letter_ = 0;
    word.members += kWordsOutsideClasses;
    const std::string inside = word.expression();
    const char letter = text_[at_++];
    if (letter == 'b') return format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", inside);
    if (letter == 'B') return format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", inside);
    constexpr std::pair<char, const char*> kOthers[] = {
        {'A', "\\A"},    {'z', "\\z"},   {'Z', "(?=\\n?\\z)"}, {'R', "(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])"},
        {'N', "[^\\n]"}, {'O', "(?s:.)"}};
    for (const auto& [name, expression] : kOthers)
      if (name == letter) return expression;
    refuse_feature(std::string("\\") + letter);
  }

  /// Translates "[...]".
  CharacterSet character_class() {
    if (++depth_ > kDeepest) refuse_feature(format("nesting of more than {} classes", kDeepest));
    ++at_;
    const bool negated = accept("^");
    if (next_is("]")) refuse_feature("a class that begins with ]");
    if (negated && ignores_case_) refuse_feature("a negated class without regard to case");
    std::vector<CharacterSet> operands(1);
    while (!accept("]")) {
      if (!more()) refuse("class without end");
      if (accept("&&")) {
        operands.emplace_back();
      } else {
        add_member(operands.back());
      }
    }
    --depth_;
    CharacterSet all = std::move(operands.back());
    operands.pop_back();
    if (all.empty() || std::ranges::any_of(operands, &CharacterSet::empty)) refuse_feature("an empty class");
    if (!operands.empty() && ignores_case_) refuse_feature("&& without regard to case");
    if (!operands.empty()) {
      std::string both = "(?:";
      for (const CharacterSet& operand : operands) both += "(?=" + operand.expression() + ")";
      all = CharacterSet{"", {both + all.expression() + ")"}, false};
    }
    if (!negated) return all;
    if (all.others.empty()) return {all.members, {}, !all.negated};
    return {"", {"(?:(?!" + all.expression() + ")(?s:.))"}, false};
  }
  void add_member(CharacterSet& set) {
    if (accept("[:")) {
      const bool negated = accept("^");
      const size_t close = text_.find(":]", at_);
      if (close == text_.npos) refuse_feature("[: within a class");
      const std::string name(text_.substr(at_, close - at_));
      constexpr std::string_view kPosix =
          " alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit ";
      if (kPosix.find(" " + name + " ") == kPosix.npos) refuse_feature("[:" + name + ":]");
      CharacterSet named = property(name);
      if (name == "punct") named.add(property("symbol"));  // \p{Punct} has no symbols
      at_ = close + 2;
      named.negated ^= negated;
      if (ignores_case_) refuse_feature("a property without regard to case");
      return set.add(named);
    }
    if (next_is("[")) return set.add(character_class());
    const bool has_letters = ignores_case_ && next_is("\\") && !next_is("\\s") && !next_is("\\d") && !next_is("\\h");
    if (const std::optional<CharacterSet> several = escaped_set()) {
      // Oniguruma then also finds the folding of each member, such as "ss".
      if (has_letters) refuse_feature("a set of letters without regard to case");
      return set.add(*several);
    }
    const uint32_t first = class_character();
    if (!next_is("-") || next_is("-]")) {
      set.members += spelled(first);
      return;
    }
    ++at_;
    if (next_is("[") || next_is("&&") || escaped_set()) refuse_feature("- before a set");
    const uint32_t last = class_character();
    if (last < first) refuse("range in reverse order");
    set.members += spelled(first) + "-" + spelled(last);
  }
  /// Consumes "\s", "\p{...}" and their like; none: something else follows.
  std::optional<CharacterSet> escaped_set() {
    if (!next_is("\\") || at_ + 1 == text_.size()) return std::nullopt;
    const char letter = text_[at_ + 1];
    if (letter == 'p' || letter == 'P') {
      at_ += 2;
      return read_property(letter == 'P');
    }
    std::optional<CharacterSet> set = CharacterSet::shorthand(letter, recent_);
    if (set) at_ += 2;
    return set;
  }
  uint32_t class_character() {
    uint32_t code = 8;  // "\b"
    if (!accept("\\")) {
      if (!more()) refuse("class without end");
      code = utf8_code(character());
    } else if (!accept("b")) {
      const std::optional<uint32_t> escaped = escaped_character();
      if (!escaped) refuse_feature(format("\\{} within a class", text_[at_]));
      code = *escaped;
    }
    check_case(code);
    return code;
  }

  static constexpr int kDeepest = 100;
  const std::string_view text_;
  const bool recent_;
  const std::string& origin_;
  size_t at_ = 0;
  int depth_ = 0;
  bool ignores_case_ = false, dot_matches_newline_ = false;
  uint32_t last_letter_ =
      0;  // the previous atom, if it is a letter without quantifier: for multi-character case folding
};

}  // namespace

std::string pcre2_of_oniguruma(std::string_view expression, bool recent, const std::string& origin) {
  return Translator(expression, recent, origin).translate();
}

}  // namespace trainer::data
