#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/split_pattern.h"

#include <pcre2.h>

#include <array>

#include "base/error.h"

namespace trainer::data {
namespace {

constexpr uint32_t kMostSteps = 10'000'000, kMostHeap = 64 << 10 /* KiB */, kLongestPattern = 1 << 16;
/// The characters with the property White_Space, as members of a class.
constexpr std::string_view kWhiteSpace =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// Replaces "\s" and "\S" by explicit classes.
std::string with_spaces_spelled_out(std::string_view expression, const std::string& origin) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c != '\\' || i + 1 == expression.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
      continue;
    }
    const char escaped = expression[++i];
    if (escaped == 's') {
      (out += in_class ? "" : "[").append(kWhiteSpace) += in_class ? "" : "]";
    } else if (escaped == 'S') {
      if (in_class)
        throw Error(Code::data, format("{}: \"\\S\" within brackets is not supported: {}", origin, expression));
      (out += "[^").append(kWhiteSpace) += "]";
    } else {
      (out += '\\') += escaped;
    }
  }
  return out;
}

}  // namespace

const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct SplitPattern::State {
  pcre2_code* code = nullptr;
  std::string origin;
  ~State() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(std::string_view expression, const std::string& origin) : state_(std::make_shared<State>()) {
  if (expression.size() > kLongestPattern)
    throw Error(Code::data, format("{}: a pattern of {} bytes is too long", origin, expression.size()));
  const std::string text = with_spaces_spelled_out(expression, origin);
  int error = 0;
  size_t place = 0;
  state_->origin = origin;
  state_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE, &error, &place, nullptr);
  if (state_->code == nullptr)
    throw Error(Code::data, format("{}: pattern {}: {} (at position {} of {})", origin, expression, message_of(error),
                                   place, text));
  pcre2_jit_compile(state_->code, PCRE2_JIT_COMPLETE);  // if this fails, matching is only slower
}

struct SplitPattern::Matcher::State {
  const SplitPattern::State& pattern;
  pcre2_match_data* data;
  pcre2_match_context* context;
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

SplitPattern::Matcher::Matcher(const SplitPattern& pattern)
    : state_(new State{*pattern.state_, pcre2_match_data_create(1, nullptr), pcre2_match_context_create(nullptr)}) {
  pcre2_set_match_limit(state_->context, kMostSteps);
  pcre2_set_heap_limit(state_->context, kMostHeap);
}

bool SplitPattern::Matcher::find(std::string_view text, size_t from, size_t& begin, size_t& end) const {
  const int result = pcre2_match(state_->pattern.code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                 PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, state_->data, state_->context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0)
    throw Error(Code::data, format("{}: the regular expression that splits text into words failed: {}",
                                   state_->pattern.origin, message_of(result)));
  const size_t* const place = pcre2_get_ovector_pointer(state_->data);
  begin = place[0];
  end = place[1];
  return begin >= from && begin < end;  // "\K" and look-behind can violate this
}

}  // namespace trainer::data
