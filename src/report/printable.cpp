#include "report/printable.h"

#include "base/format.h"
#include "base/utf8.h"

namespace trainer::report {

std::string printable(std::string_view text) {
  std::string valid(text), out;
  utf8_repair(valid);
  for (size_t at = 0; at < valid.size();) {
    const auto byte = static_cast<unsigned char>(valid[at]);
    const size_t length = utf8_character(std::string_view(valid).substr(at));
    const bool c1 = byte == 0xC2 && length == 2 && static_cast<unsigned char>(valid[at + 1]) < 0xA0;
    if (c1) {
      out += format("\\x{:02x}", static_cast<unsigned char>(valid[at + 1]));
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      out += format("\\x{:02x}", byte);
    } else {
      out.append(valid, at, length);
    }
    at += length;
  }
  return out;
}

}  // namespace trainer::report
