#include "report/printable.h"

#include "base/format.h"
#include "base/utf8.h"

namespace trainer::report {

std::string replaced(std::string_view text, const std::function<std::string(std::string_view character)>& by) {
  std::string valid(text), out;
  utf8_repair(valid);
  for (std::string_view rest = valid; !rest.empty();) {
    const std::string_view character = rest.substr(0, utf8_character(rest));
    out += by(character);
    rest.remove_prefix(character.size());
  }
  return out;
}

bool is_control(std::string_view character) {
  const auto byte = static_cast<unsigned char>(character.front());
  if (character.size() == 1) return (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
  return byte == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;  // U+0080 to U+009F
}

std::string printable(std::string_view text) {
  return replaced(text, [](std::string_view character) {
    return is_control(character) ? format("\\x{:02x}", static_cast<unsigned char>(character.back()))
                                 : std::string(character);
  });
}

}  // namespace trainer::report
