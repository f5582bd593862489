#include "data/chat.h"

#include <algorithm>

#include "base/error.h"
#include "base/join.h"
#include "base/log.h"

namespace trainer::data {
namespace {

using Role = ChatMessage::Role;
using Strip = ChatFormat::Strip;

constexpr std::string_view kBos = "{bos}", kEos = "{eos}";

/// The characters that Python's str.strip() removes.
constexpr std::string_view kWhiteSpaces[] = {" ",
                                             "\t",
                                             "\n",
                                             "\v",
                                             "\f",
                                             "\r",
                                             "\x1c",
                                             "\x1d",
                                             "\x1e",
                                             "\x1f",
                                             "\xC2\x85",
                                             "\xC2\xA0",
                                             "\xE1\x9A\x80",
                                             "\xE2\x80\x80",
                                             "\xE2\x80\x81",
                                             "\xE2\x80\x82",
                                             "\xE2\x80\x83",
                                             "\xE2\x80\x84",
                                             "\xE2\x80\x85",
                                             "\xE2\x80\x86",
                                             "\xE2\x80\x87",
                                             "\xE2\x80\x88",
                                             "\xE2\x80\x89",
                                             "\xE2\x80\x8A",
                                             "\xE2\x80\xA8",
                                             "\xE2\x80\xA9",
                                             "\xE2\x80\xAF",
                                             "\xE2\x81\x9F",
                                             "\xE3\x80\x80"};

std::string_view stripped(std::string_view text) {
  const auto remove = [&](auto&& found, auto&& cut) {
    for (const std::string_view* space = kWhiteSpaces; space != std::end(kWhiteSpaces);)
      if (found(*space)) {
        cut(space->size());
        space = kWhiteSpaces;
      } else {
        ++space;
      }
  };
  remove([&](std::string_view space) { return text.starts_with(space); }, [&](size_t n) { text.remove_prefix(n); });
  remove([&](std::string_view space) { return text.ends_with(space); }, [&](size_t n) { text.remove_suffix(n); });
  return text;
}

/// Returns the parts of a format's text: special tokens, and the text between them.
std::vector<ChatSegment> split_specials(const ChatFormat& format, std::string_view text) {
  std::vector<ChatSegment> parts;
  while (!text.empty()) {
    size_t at = text.size();
    std::string_view name;
    const auto consider = [&](std::string_view special) {
      if (const size_t place = text.find(special); place < at) at = place, name = special;
    };
    std::ranges::for_each(format.specials, consider);
    consider(kBos);
    consider(kEos);
    if (at > 0) parts.push_back({std::string(text.substr(0, at)), false});
    if (!name.empty()) parts.push_back({std::string(name), true});
    text.remove_prefix(at + name.size());
  }
  return parts;
}

/// Segments in the making.
class Segments {
 public:
  explicit Segments(const ChatFormat& format) : format_(format) {}
  /// Adds a text of the format.
  void put(std::string_view text, bool trained = false) {
    for (ChatSegment& part : split_specials(format_, text)) add(std::move(part.text), part.special, trained);
  }
  /// Adds a text in which nothing is special. With `cut`, it begins a segment.
  void put_content(std::string text, bool trained = false, bool cut = false) {
    cut_ = cut_ || cut;
    add(std::move(text), false, trained);
  }
  std::vector<ChatSegment> take() { return std::move(segments_); }

 private:
  void add(std::string text, bool special, bool trained) {
    if (text.empty()) return;
    const bool joins =
        !segments_.empty() && !special && !cut_ && !segments_.back().special && segments_.back().trained == trained;
    cut_ = false;
    if (joins)
      segments_.back().text += text;
    else
      segments_.push_back({std::move(text), special, trained});
  }
  const ChatFormat& format_;
  std::vector<ChatSegment> segments_;
  bool cut_ = false;
};

bool uses(const ChatFormat& format, std::string_view token) {
  for (const std::string_view text : {format.begin, format.system.before, format.system.after, format.user.before,
                                      format.user.after, format.prompt, format.end, format.tail, format.last})
    if (text.find(token) != text.npos) return true;
  return false;
}

/// Returns the tokenizer's special tokens with these names, {bos} and {eos} included; `missing` gets the other names.
std::map<std::string, int32_t, std::less<>> special_ids(const ChatFormat& format, const Tokenizer& tokenizer,
                                                        std::vector<std::string>& missing) {
  std::map<std::string, int32_t, std::less<>> ids;
  std::vector<std::string> names(format.specials.begin(), format.specials.end());
  const std::vector<int32_t> found = tokenizer.special_ids(names);
  for (size_t i = 0; i < names.size(); ++i)
    if (found[i] < 0)
      missing.push_back(names[i]);
    else
      ids[names[i]] = found[i];
  ids[std::string(kEos)] = tokenizer.eos();
  if (!uses(format, kBos)) return ids;
  if (tokenizer.bos_token() < 0) missing.push_back("BOS");
  ids[std::string(kBos)] = tokenizer.bos_token();
  return ids;
}

std::vector<std::string> missing_tokens(const ChatFormat& format, const Tokenizer& tokenizer) {
  std::vector<std::string> missing;
  special_ids(format, tokenizer, missing);
  return missing;
}

}  // namespace

std::vector<ChatSegment> render(const ChatFormat& format, const Conversation& conversation, bool prompt) {
  Segments segments(format);
  const auto strip = [&](std::string_view text, bool always = false) {
    return std::string(always || format.strip == Strip::all ? stripped(text) : text);
  };
  auto message = conversation.begin();
  std::optional<std::string_view> system = format.default_system;
  if (message != conversation.end() && message->role == Role::system) system = (message++)->content;
  segments.put(format.begin);
  if (system && !format.inside) {
    segments.put(format.system.before);
    segments.put_content(strip(*system));
    segments.put(format.system.after);
  }
  for (bool first = true; message != conversation.end(); ++message, first = false) {
    if (message->role == Role::user) {
      std::string text = message->content;
      if (first && system && format.inside)
        text = std::string(format.inside->before).append(*system).append(format.inside->after) + text;
      segments.put(format.user.before);
      segments.put_content(strip(text));
      segments.put(format.user.after);
      continue;
    }
    segments.put(format.prompt);
    segments.put_content(std::string(format.lead) + strip(message->content, format.strip != Strip::none),
                         message->trained, /*cut=*/true);
    segments.put(format.end, message->trained);
    segments.put(message + 1 == conversation.end() ? format.last : format.tail);
  }
  if (prompt) segments.put(format.prompt);
  return segments.take();
}

std::string fitting_formats(const Tokenizer& tokenizer) {
  std::string names;
  for (const ChatFormat& format : chat_formats())
    if (missing_tokens(format, tokenizer).empty()) names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

const ChatFormat& choose_chat_format(const std::string& configured, const Tokenizer& tokenizer,
                                     std::string_view setting) {
  const SpecialTokens& special = tokenizer.special();
  const std::string stored = configured == "auto" ? special.chat_format : configured;
  const std::string jinja = stored.empty() ? chat_template(special) : "";
  const KnownTemplate known = jinja.empty() ? KnownTemplate() : known_template(jinja);
  if (!jinja.empty() && known.format == nullptr)
    throw Error(Code::config,
                fmt::format("tokenizer_config.json: chat_template is not known ({} lines, {}); set {} to one whose "
                            "tokens exist: {}",
                            std::ranges::count(jinja, '\n') + 1, known.hash, setting, fitting_formats(tokenizer)));
  const ChatFormat* format = known.format;
  if (format == nullptr) format = find_chat_format(stored.empty() ? "plain" : stored);
  if (format == nullptr)
    throw Error(Code::config,
                fmt::format("{} = \"{}\": unknown; formats that fit: {}", setting, stored, fitting_formats(tokenizer)));
  if (const std::vector<std::string> missing = missing_tokens(*format, tokenizer); !missing.empty())
    throw Error(Code::config, fmt::format("{} = \"{}\": the tokenizer has no special token {}; formats that fit: {}",
                                          setting, format->name, fmt::join(missing, ", "), fitting_formats(tokenizer)));
  return *format;
}

std::string exported_template(const SpecialTokens& special, const Tokenizer& tokenizer, std::string_view bos,
                              std::string_view eos) {
  std::string kept = chat_template(special);
  const ChatFormat* const trained = find_chat_format(special.chat_format);
  if (trained == nullptr) return kept;
  const auto differs = [&](std::string_view variable, std::string_view token, int32_t used) {
    return trained->jinja.find(variable) != std::string::npos && used >= 0 && tokenizer.name_of(used) != token;
  };
  const bool other_bos = differs("bos_token", bos, tokenizer.bos_token());
  const bool other_eos = differs("eos_token", eos, tokenizer.eos());
  if (known_template(kept).format == trained && !other_bos && !other_eos) return kept;
  log::info("the exported chat template is that of the format {}, in which the model was trained", trained->name);
  std::string jinja = trained->jinja;
  const auto name = [&](std::string_view variable, int32_t token) {
    const std::string text = "'" + tokenizer.name_of(token) + "'";
    for (size_t at = 0; (at = jinja.find(variable, at)) != std::string::npos; at += text.size())
      jinja.replace(at, variable.size(), text);
  };
  if (other_bos) name("bos_token", tokenizer.bos_token());
  if (other_eos) name("eos_token", tokenizer.eos());
  return jinja;
}

std::string chat_key(const ChatFormat& format, const Tokenizer& tokenizer) {
  std::string key =
      fmt::format("chat {} {} {}", tokenizer.bos_token(), static_cast<int>(format.strip), format.alternates);
  const Around inside = format.inside.value_or(Around{"-", "-"});
  for (const std::string_view text : {format.begin, format.system.before, format.system.after, format.user.before,
                                      format.user.after, format.prompt, format.lead, format.end, format.tail,
                                      format.last, format.default_system.value_or("-"), inside.before, inside.after})
    key += fmt::format("|{}", text);
  return key;
}

ChatEncoder::ChatEncoder(const ChatFormat& format, const Tokenizer& tokenizer) : format_(format), encoder_(tokenizer) {
  std::vector<std::string> missing;
  specials_ = special_ids(format, tokenizer, missing);
  TRAINER_CHECK(missing.empty(), "the tokenizer has no {}", fmt::join(missing, ", "));
}

int32_t ChatEncoder::end() const {
  const std::vector<ChatSegment> parts = split_specials(format_, format_.end);
  return specials_.at(parts.back().text);
}

std::string ChatEncoder::before_end() const {
  const std::vector<ChatSegment> parts = split_specials(format_, format_.end);
  return parts.front().special ? "" : parts.front().text;
}

void ChatEncoder::append(const std::vector<ChatSegment>& segments, std::vector<int32_t>& ids,
                         std::vector<int64_t>& spans) {
  // Models with a dummy prefix were trained with one at the start of a text, which may follow BOS.
  bool starts = true;
  for (const ChatSegment& segment : segments) {
    const int64_t begin = std::ssize(ids);
    if (segment.special)
      ids.push_back(specials_.at(segment.text));
    else
      encoder_.append(segment.text, ids, starts);
    starts = segment.special && segment.text == kBos;
    if (!segment.trained) continue;
    if (!spans.empty() && spans.back() == begin)
      spans.back() = std::ssize(ids);
    else
      spans.insert(spans.end(), {begin, std::ssize(ids)});
  }
}

void ChatEncoder::append(const Conversation& conversation, std::vector<int32_t>& ids, std::vector<int64_t>& spans) {
  append(render(format_, conversation), ids, spans);
}

std::vector<int32_t> ChatEncoder::prompt(const Conversation& conversation) {
  std::vector<int32_t> ids;
  std::vector<int64_t> spans;
  append(render(format_, conversation, true), ids, spans);
  return ids;
}

}  // namespace trainer::data
