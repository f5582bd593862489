#pragma once
// Sets of characters for regular expressions: the properties that Oniguruma knows, as PCRE2 writes them.
#include <optional>
#include <string>
#include <vector>

namespace trainer::data {

struct CharacterSet {
  std::string members;              // members of a class in PCRE2, as written between its brackets
  std::vector<std::string> others;  // expressions that match one character each
  bool negated = false;             // the set has all characters but `members`; only without `others`

  bool empty() const { return members.empty() && others.empty(); }
  /// Returns an expression that matches one character of the set.
  std::string expression() const;
  void add(const CharacterSet& set);

  /// Returns the set of a property by its name in lower case without spaces, hyphens and underscores; a name that is
  /// neither a category nor a POSIX class is that of a script. With `recent`, it includes the characters of
  /// recent_characters.h. None: the property is not supported.
  static std::optional<CharacterSet> property(const std::string& name, bool recent);
  /// Returns the set of "\s", "\d", "\h" or "\w", or of all other characters for an upper-case letter; none: any other
  /// letter.
  static std::optional<CharacterSet> shorthand(char letter, bool recent);
};

}  // namespace trainer::data
