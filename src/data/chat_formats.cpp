#include "data/chat_formats.h"

#include <algorithm>
#include <array>

#include "base/checksum.h"

namespace trainer::data {
namespace {

using Strip = ChatFormat::Strip;

/// OpenAI's ChatML. Without a system message, some models have a default one.
ChatFormat chatml(std::string_view name, std::optional<std::string_view> system = {}) {
  std::string jinja;
  if (system)
    jinja = "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n" + std::string(*system) +
            "<|im_end|>\\n' }}{% endif %}";
  jinja +=
      "{% for message in messages %}"
      "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  return {.name = name,
          .system = {"<|im_start|>system\n", "<|im_end|>\n"},
          .user = {"<|im_start|>user\n", "<|im_end|>\n"},
          .prompt = "<|im_start|>assistant\n",
          .end = "<|im_end|>",
          .tail = "\n",
          .last = "\n",
          .default_system = system,
          .specials = {"<|im_start|>", "<|im_end|>"},
          .jinja = std::move(jinja)};
}

constexpr const char* kLlama3Turn =
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
    "'<|eot_id|>' }}";
constexpr const char* kLlama3Prompt =
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

ChatFormat llama3() {
  return {.name = "llama3",
          .begin = "{bos}",
          .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
          .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
          .prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n",
          .end = "<|eot_id|>",
          .strip = Strip::all,
          .specials = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
          .jinja = std::string("{{ bos_token }}{% for message in messages %}") + kLlama3Turn + "{% endfor %}" +
                   kLlama3Prompt};
}

/// Also of 3.2 and 3.3. Published templates insert today's date where they can; this one, for which equal runs have
/// equal tokens, is the date that they use otherwise.
ChatFormat llama31() {
  ChatFormat format = llama3();
  format.name = "llama3.1";
  format.system.before =
      "<|start_header_id|>system<|end_header_id|>\n\n"
      "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  format.default_system = "";
  format.jinja =
      std::string(
          "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\n"
          "Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n' }}"
          "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim }}{% endif %}{{ '<|eot_id|>' }}"
          "{% for message in messages %}{% if message['role'] != 'system' %}") +
      kLlama3Turn + "{% endif %}{% endfor %}" + kLlama3Prompt;
  return format;
}

/// Returns the template of a format whose system text is put into the first user message.
std::string jinja_with_system_inside(const std::string& system, const std::string& user, const std::string& assistant) {
  return "{% for message in messages %}{% if message['role'] == 'user' %}"
         "{% if loop.index0 == 1 and messages[0]['role'] == 'system' %}{% set content = " +
         system + " + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{{ " + user +
         " }}{% elif message['role'] == 'assistant' %}{{ " + assistant + " }}{% endif %}{% endfor %}";
}

ChatFormat llama2() {
  return {.name = "llama2",
          .user = {"{bos}[INST] ", " [/INST]"},
          .lead = " ",
          .end = " {eos}",
          .inside = Around{"<<SYS>>\n", "\n<</SYS>>\n\n"},
          .strip = Strip::all,
          .alternates = true,
          .jinja = jinja_with_system_inside("'<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n'",
                                            "bos_token + '[INST] ' + content | trim + ' [/INST]'",
                                            "' ' + message['content'] | trim + ' ' + eos_token")};
}

/// Mistral v3. Its published template puts the system text into the last user message, so that the text's place changes
/// with every turn; here it stays in the first.
ChatFormat mistral() {
  return {.name = "mistral",
          .begin = "{bos}",
          .user = {"[INST] ", "[/INST]"},
          .lead = " ",
          .end = "{eos}",
          .inside = Around{"", "\n\n"},
          .strip = Strip::assistant,
          .specials = {"[INST]", "[/INST]"},
          .alternates = true,
          .jinja = "{{ bos_token }}" + jinja_with_system_inside("messages[0]['content'] + '\\n\\n'",
                                                                "'[INST] ' + content + '[/INST]'",
                                                                "' ' + message['content'] | trim + eos_token")};
}

ChatFormat olmo2() {
  return {.name = "olmo2",
          .begin = "{bos}",
          .system = {"<|system|>\n", "\n"},
          .user = {"<|user|>\n", "\n"},
          .prompt = "<|assistant|>\n",
          .end = "{eos}",
          .tail = "\n",
          .jinja =
              "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + "
              "message['content'] }}{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
              "{% if message['role'] != 'assistant' or not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"};
}

/// Needs no special token but EOS.
ChatFormat plain() {
  return {.name = "plain",
          .system = {"", "\n\n"},
          .user = {"User: ", "\n\n"},
          .prompt = "Assistant:",
          .lead = " ",
          .end = "{eos}",
          .tail = "\n\n",
          .jinja =
              "{% for message in messages %}{% if message['role'] == 'assistant' %}"
              "{{ 'Assistant: ' + message['content'] + eos_token }}{% if not loop.last %}{{ '\\n\\n' }}{% endif %}"
              "{% else %}{{ ('User: ' if message['role'] == 'user' else '') + message['content'] + '\\n\\n' }}"
              "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"};
}

/// XXH3-128 of published templates without white space at both ends, and the formats that render the same texts.
struct Published {
  std::string_view hash, format;
};
constexpr std::array kPublished = {
    Published{"577a7fce73f72e1ee2be9fd6966bb5eb", "chatml"},   // OpenHermes and many others
    Published{"e580c2da83415028d5d943bd0bd9082f", "qwen2"},    // Qwen2-Instruct
    Published{"e392aa06018503fd2469c9508f79506e", "qwen2.5"},  // Qwen2.5-Instruct, with tools
    Published{"98f63cc3d421d28f99ab995e9629dacd", "smollm2"},  // SmolLM2-Instruct
    Published{"09facc0e4aa943189799ad6e2dea0594", "llama3"},   // Llama-3-Instruct
    Published{"4adb1f81f5c508ea24f6d97f87d647f5", "llama2"},   // Llama-2-chat
    Published{"2ef1dbbe37b5241f2cf6c80e0c47b498", "olmo2"},    // OLMo-2-Instruct
};

}  // namespace

std::span<const ChatFormat> chat_formats() {
  static const std::array formats = {
      chatml("chatml"),
      chatml("qwen2", "You are a helpful assistant."),
      chatml("qwen2.5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
      chatml("smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
      llama3(),
      llama31(),
      llama2(),
      mistral(),
      olmo2(),
      plain()};
  return formats;
}

const ChatFormat* find_chat_format(std::string_view name) {
  const auto found = std::ranges::find(chat_formats(), name, &ChatFormat::name);
  return found == chat_formats().end() ? nullptr : &*found;
}

std::vector<std::string> control_symbols(std::string_view name) {
  const ChatFormat* format = find_chat_format(name);
  if (format == nullptr) return {};
  return {format->specials.begin(), format->specials.end()};
}

KnownTemplate known_template(std::string_view jinja) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  jinja.remove_prefix(std::min(jinja.find_first_not_of(kSpaces), jinja.size()));
  jinja = jinja.substr(0, jinja.find_last_not_of(kSpaces) + 1);
  std::string hash = to_string(checksum_of(jinja));
  if (const auto own = std::ranges::find(chat_formats(), jinja, &ChatFormat::jinja); own != chat_formats().end())
    return {&*own, std::move(hash)};
  const auto known = std::ranges::find(kPublished, hash, &Published::hash);
  return {known == kPublished.end() ? nullptr : find_chat_format(known->format), std::move(hash)};
}

}  // namespace trainer::data
