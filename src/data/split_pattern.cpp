#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/split_pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

#include "base/error.h"
#include "base/utf8.h"
#include "data/oniguruma.h"
#include "data/recent_characters.h"

namespace trainer::data {
namespace {

constexpr uint32_t kMostSteps = 10'000'000, kMostHeap = 64 << 10 /* KiB */, kLongestPattern = 1 << 16;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// True if PCRE2 has the properties of all characters that this program knows.
bool library_is_recent() {
  std::array<char, 64> version{};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version.data());
  return std::atoi(version.data()) >= kNewestUnicode;
}

using Program = std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)>;

Program compile(std::string_view expression, bool recent, const std::string& origin) {
  const std::string text = pcre2_of_oniguruma(expression, recent, origin);
  int error = 0;
  size_t place = 0;
  Program program(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE, &error, &place, nullptr),
      pcre2_code_free);
  if (program == nullptr)
    throw Error(Code::data, format("{}: pattern {}: {} (at position {} of {})", origin, expression, message_of(error),
                                   place, text));
  pcre2_jit_compile(program.get(), PCRE2_JIT_COMPLETE);  // if this fails, matching is only slower
  return program;
}

}  // namespace

const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct SplitPattern::State {
  std::string expression, origin;
  Program program{nullptr, pcre2_code_free};
  // The program that includes the characters that PCRE2 does not know is slower, so only texts with such characters use
  // it.
  std::once_flag once;
  Program recent{nullptr, pcre2_code_free};

  const pcre2_code* program_for(std::string_view text) {
    static const bool kKnowsAll = library_is_recent();
    if (kKnowsAll || !has_recent_characters(text)) return program.get();
    std::call_once(once, [&] { recent = compile(expression, true, origin); });
    return recent.get();
  }
};

SplitPattern::SplitPattern(std::string_view expression, const std::string& origin) : state_(std::make_shared<State>()) {
  if (expression.size() > kLongestPattern)
    throw Error(Code::data, format("{}: a pattern of {} bytes is too long", origin, expression.size()));
  state_->expression = expression;
  state_->origin = origin;
  state_->program = compile(expression, false, origin);
}

struct SplitPattern::Matcher::State {
  std::shared_ptr<SplitPattern::State> pattern;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
  const pcre2_code* program = nullptr;
  std::string_view text;
  size_t from = 0;
  bool matched = false;  // a match ended at `from`
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

SplitPattern::Matcher::Matcher(const SplitPattern& pattern)
    : state_(new State{.pattern = pattern.state_,
                       .data = pcre2_match_data_create(1, nullptr),
                       .context = pcre2_match_context_create(nullptr),
                       .stack = pcre2_jit_stack_create(32 << 10, kMostHeap << 10, nullptr),
                       .text = {}}) {
  pcre2_set_match_limit(state_->context, kMostSteps);
  pcre2_set_heap_limit(state_->context, kMostHeap);
  pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

void SplitPattern::Matcher::start(std::string_view text) {
  state_->program = state_->pattern->program_for(text);
  state_->text = text;
  state_->from = 0;
  state_->matched = false;
}

bool SplitPattern::Matcher::next(size_t& begin, size_t& end) {
  State& state = *state_;
  while (state.from <= state.text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(state.program, reinterpret_cast<PCRE2_SPTR>(state.text.data()), state.text.size(), state.from,
                         PCRE2_NO_UTF_CHECK | options, state.data, state.context);
    };
    int result = match(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);  // slower, and needs less memory
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0)
      throw Error(Code::data, format("{}: the regular expression that splits text into words failed: {}; "
                                     "insert line ends where the text has words of millions of letters",
                                     state.pattern->origin, message_of(result)));
    const size_t* const place = pcre2_get_ovector_pointer(state.data);
    begin = place[0];
    end = place[1];
    if (begin == end && state.matched && end == state.from) {
      state.from += std::max<size_t>(1, utf8_character(state.text.substr(state.from)));
      state.matched = false;
      continue;
    }
    state.from = end;
    state.matched = true;
    return true;
  }
  return false;
}

}  // namespace trainer::data
