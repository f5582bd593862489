// Conversations: formats, segments, tokens, and which of them are counted.
#include "data/chat.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "config/keys.h"
#include "data/model_traits.h"
#include "data/positions.h"
#include "data/token_file.h"
#include "data/tokenize.h"
#include "unit/data/fixtures.h"
#include "unit/data/small_bpe.h"

namespace trainer::data {
namespace {

using namespace testing;
using nlohmann::json;
using Role = ChatMessage::Role;

/// Returns the objects of a file in this folder with one JSON object per line.
std::vector<json> lines_of(const char* name) {
  std::istringstream text(read_file(fs::path(TRAINER_SOURCE_DIR) / "tests/unit/data" / name));
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

Conversation conversation_of(const json& object) {
  Conversation conversation;
  EXPECT_EQ(read_conversation(object, conversation), std::nullopt);
  return conversation;
}

/// Returns the special tokens of all formats.
std::vector<std::string> all_specials() {
  std::vector<std::string> names;
  for (const ChatFormat& format : chat_formats())
    for (const std::string_view name : format.specials)
      if (std::ranges::find(names, name) == names.end()) names.emplace_back(name);
  return names;
}

/// A model trained here, the same with a dummy prefix, and byte-level BPE; each has the special tokens of all formats.
const std::vector<Tokenizer>& tokenizers() {
  static const std::vector<Tokenizer> all = [] {
    TempFolder folder;
    const std::string text = write(folder / "text.txt", novel().substr(0, 100'000));
    std::vector<Tokenizer> list = {Tokenizer::train({{{text}, {}}}, 600, Tokenizer::kSampleBytes, all_specials())};
    list.push_back(Tokenizer::from_bytes(list[0].bytes() + std::string(kDummyPrefix), "with a prefix"));
    std::mt19937_64 random(1);
    json bpe = small_json(random, 40, {"a", "e", "o", "t", "n", "s"});
    int64_t id = bpe["added_tokens"][0]["id"];
    std::vector<std::string> names = all_specials();
    names.emplace_back("<s>");
    for (const std::string& name : names)
      bpe["added_tokens"].push_back({{"id", ++id}, {"content", name}, {"special", true}});
    list.push_back(Tokenizer::from_bytes(bpe.dump(), "byte-level BPE"));
    return list;
  }();
  return all;
}

/// Calls act(format, tokenizer) for each pair.
template <typename F>
void for_each_pair(F&& act) {
  for (const ChatFormat& format : chat_formats())
    for (const Tokenizer& tokenizer : tokenizers()) {
      SCOPED_TRACE(fmt::format("{}, tokenizer {}", format.name, &tokenizer - tokenizers().data()));
      act(format, tokenizer);
    }
}

// The segments are those of an independent implementation, whose texts are what the templates render under Jinja.
TEST(ChatFormats, RenderTheGoldenSegments) {
  for (const json& line : lines_of("chat_segments.jsonl")) {
    const ChatFormat* format = find_chat_format(line["format"].get<std::string>());
    ASSERT_NE(format, nullptr) << line["format"];
    std::vector<ChatSegment> expected;
    for (const json& segment : line["segments"])
      expected.push_back({segment[1], segment[0] == "S" || segment[0] == "X", segment[0] == "T" || segment[0] == "X"});
    EXPECT_EQ(render(*format, conversation_of(line)), expected) << line.dump();
  }
}

TEST(ChatFormats, AreRecognisedByTheirTemplates) {
  for (const json& line : lines_of("chat_templates.jsonl")) {
    const std::string jinja = line["template"];
    const ChatFormat* expected = find_chat_format(line["format"].get<std::string>());
    EXPECT_EQ(known_template(jinja).format, expected) << line["format"];
    EXPECT_EQ(known_template("\n" + jinja + " \n").format, expected);
    EXPECT_EQ(known_template(jinja + "{# changed #}").format, nullptr);
  }
  for (const ChatFormat& format : chat_formats()) EXPECT_EQ(known_template(format.jinja).format, &format);
  EXPECT_EQ(known_template("").format, nullptr);
}

TEST(ChatFormats, AreTheChoicesOfTheirKey) {
  std::vector<std::string> names = {"auto"};
  for (const ChatFormat& format : chat_formats()) names.emplace_back(format.name);
  EXPECT_EQ(config::find_key("data", "chat_format")->names, names);
}

TEST(Chat, TokensBeforeAnAnswerAreThoseOfItsPrompt) {
  const Conversation conversation = {
      {Role::system, "Be brief."}, {Role::user, "Hello"}, {Role::assistant, "Hi there"}, {Role::user, " two\nlines "},
      {Role::assistant, "", true}, {Role::user, "done"},  {Role::assistant, "\nyes"}};
  for_each_pair([&](const ChatFormat& format, const Tokenizer& tokenizer) {
    ChatEncoder encoder(format, tokenizer);
    std::vector<int32_t> whole;
    std::vector<int64_t> spans;
    encoder.append(conversation, whole, spans);
    ASSERT_EQ(spans.size(), 6u);
    EXPECT_EQ(encoder.before_end(), format.name == "llama2" ? " " : "");
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<int32_t> prompt =
          encoder.prompt({conversation.begin(), conversation.begin() + 2 + 2 * static_cast<int64_t>(i)});
      ASSERT_EQ(std::ssize(prompt), spans[2 * i]);
      EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), whole.begin()));
      EXPECT_EQ(whole[static_cast<size_t>(spans[2 * i + 1]) - 1], encoder.end());
    }
  });
}

TEST(Chat, CountsWhatTheAssistantSays) {
  Random random(3);
  for_each_pair([&](const ChatFormat& format, const Tokenizer& tokenizer) {
    Conversation conversation;
    std::string expected;
    int64_t ends = 0;
    for (int turn = 0; turn < 6; ++turn) {
      const std::string text = "a" + random_text(random, 30) + "z";
      const bool trained = turn != 3;
      conversation.push_back({turn % 2 == 0 ? Role::user : Role::assistant, text, trained});
      if (turn % 2 == 0 || !trained) continue;
      expected += std::string(format.lead) + text + (format.name == "llama2" ? " " : "");
      ++ends;
    }
    std::vector<int32_t> ids = {7}, counted;
    std::vector<int64_t> spans;
    ChatEncoder encoder(format, tokenizer);
    encoder.append(conversation, ids, spans);
    for (size_t i = 0; i < spans.size(); i += 2) {
      EXPECT_LT(spans[i], spans[i + 1]);
      EXPECT_TRUE(i == 0 || spans[i] > spans[i - 1]);
      counted.insert(counted.end(), ids.begin() + spans[i], ids.begin() + spans[i + 1]);
    }
    EXPECT_EQ(std::ranges::count(counted, encoder.end()), ends);
    StreamDecoder decoder(tokenizer);
    decoder.push(tokenizer.encode("x").back());  // so that no dummy prefix is removed
    std::string text;
    for (const int32_t id : counted) text += decoder.push(id);
    EXPECT_EQ(text + decoder.finish(), expected);
  });
}

TEST(Chat, ContentsNeverYieldSpecialTokens) {
  Random random(5);
  std::vector<std::string> forged = all_specials();
  for (const char* more : {"<s>", "</s>", "{bos}", "{eos}", "<|system|>", "<<SYS>>", "[INST] ", "\n\nAssistant:"})
    forged.emplace_back(more);
  for_each_pair([&](const ChatFormat& format, const Tokenizer& tokenizer) {
    ChatEncoder encoder(format, tokenizer);
    const auto specials_of = [&](const std::string& user, const std::string& assistant) {
      std::vector<int32_t> ids, specials;
      std::vector<int64_t> spans;
      encoder.append({{Role::system, user}, {Role::user, user}, {Role::assistant, assistant}}, ids, spans);
      for (const int32_t id : ids)
        if (tokenizer.piece(id).empty()) specials.push_back(id);
      return specials;
    };
    const std::vector<int32_t> expected = specials_of("a", "b");
    const bool begins = format.begin == "{bos}" || format.user.before.starts_with("{bos}");
    EXPECT_EQ(std::ranges::count(expected, tokenizer.bos_token()), begins ? 1 : 0);
    for (int i = 0; i < 200; ++i) {
      const auto text = [&] {
        const std::string words = random_text(random, 20);
        const std::string& marker = forged[static_cast<size_t>(pick(random, std::ssize(forged)))];
        return i % 4 == 0 ? marker + words : words + marker + (i % 4 == 1 ? "" : "x" + marker);
      };
      ASSERT_EQ(specials_of(text(), text()), expected);
    }
  });
}

TEST(Chat, ReadsEveryFormOfAConversation) {
  const Conversation two = {{Role::user, "q"}, {Role::assistant, "a"}};
  const auto with = [](Conversation conversation, Role role, const char* text, bool trained) {
    conversation.insert(conversation.begin(), {role, text, trained});
    return conversation;
  };
  const std::vector<std::pair<const char*, Conversation>> read = {
      {R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "id": 3})", two},
      {R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})", two},
      {R"({"messages": null, "prompt": "q", "completion": "a"})", two},
      {R"({"prompt": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "q"}],
           "completion": [{"role": "assistant", "content": "a"}]})",
       with(two, Role::assistant, "x", false)},
      {R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content":
           [{"type": "text", "text": "q"}, {"type": "text", "text": ""}]},
           {"role": "assistant", "content": "a", "tool_calls": null, "weight": 1}]})",
       with(two, Role::system, "s", true)},
  };
  for (const auto& [text, expected] : read) EXPECT_EQ(conversation_of(json::parse(text)), expected) << text;

  const std::vector<std::pair<const char*, ChatFlaw>> flawed = {
      {R"({"text": "t"})", ChatFlaw::no_members},
      {R"({"prompt": "q"})", ChatFlaw::no_members},
      {R"({"messages": []})", ChatFlaw::no_assistant},
      {R"({"messages": [{"role": "user", "content": "q"}]})", ChatFlaw::no_assistant},
      {R"({"messages": [{"role": "assistant", "content": "a", "weight": 0}]})", ChatFlaw::no_assistant},
      {R"({"messages": [{"role": "owl", "content": "q"}]})", ChatFlaw::unknown_role},
      {R"({"messages": [{"role": "user", "content": "q"}, {"role": "system", "content": "s"}]})",
       ChatFlaw::unknown_role},
      {R"({"messages": ["q"]})", ChatFlaw::unknown_role},
      {R"({"messages": [{"role": "tool", "content": "q"}]})", ChatFlaw::tool_calls},
      {R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": 1}]}]})", ChatFlaw::tool_calls},
      {R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})", ChatFlaw::other_parts},
      {R"({"messages": [{"role": "user", "content": 5}]})", ChatFlaw::other_parts},
      {R"({"messages": [{"role": "user"}]})", ChatFlaw::null_content},
      {R"({"messages": [{"role": "user", "content": "q"}, {"role": "user", "content": "q"},
           {"role": "assistant", "content": "a"}]})",
       ChatFlaw::repeated_role},
  };
  for (const auto& [text, expected] : flawed) {
    Conversation conversation;
    std::optional<ChatFlaw> flaw = read_conversation(json::parse(text), conversation);
    if (!flaw) flaw = keep_trained(find_chat_format("llama2"), conversation);
    EXPECT_EQ(flaw, expected) << text;
  }
  Conversation repeated = {{Role::user, "q"}, {Role::user, "q"}, {Role::assistant, "a"}, {Role::user, "dropped"}};
  EXPECT_EQ(keep_trained(find_chat_format("chatml"), repeated), std::nullopt);
  EXPECT_EQ(repeated.size(), 3u);
}

TEST(Chat, ChoosesTheFormatThatFits) {
  Tokenizer tokenizer = tokenizers()[0];
  const auto chosen = [&](const char* configured) { return choose_chat_format(configured, tokenizer).name; };
  const auto with = [&](const json& jinja, const std::string& format) {
    SpecialTokens special;
    special.fields["tokenizer_config.json"] = json{{"chat_template", jinja}}.dump();
    special.chat_format = format;
    tokenizer.use_special(special);
    return special;
  };
  const auto exported = [&](const SpecialTokens& special, const char* eos = "</s>") {
    return exported_template(special, tokenizer, "<s>", eos);
  };
  EXPECT_EQ(chosen("auto"), "plain");
  EXPECT_EQ(chosen("llama3"), "llama3");
  const json known = lines_of("chat_templates.jsonl")[0]["template"];
  with(known, "");
  EXPECT_EQ(chosen("auto"), "chatml");
  EXPECT_EQ(chosen("olmo2"), "olmo2");
  with(json::array({{{"name", "tools"}, {"template", "x"}}, {{"name", "default"}, {"template", known}}}), "");
  EXPECT_EQ(chosen("auto"), "chatml");
  EXPECT_EQ(exported(with(known, "chatml")), known);
  EXPECT_EQ(chosen("auto"), "chatml");
  EXPECT_EQ(exported(with(known, "plain")), find_chat_format("plain")->jinja);
  EXPECT_EQ(chosen("auto"), "plain");
  // Files that name a different EOS than the one that was trained.
  const std::string other = exported(with(known, "plain"), "<|im_end|>");
  EXPECT_NE(other.find("message['content'] + '</s>'"), std::string::npos) << other;
  EXPECT_EQ(other.find("eos_token"), std::string::npos);
  EXPECT_EQ(exported(with(known, "chatml"), "<|im_end|>"), known);
  EXPECT_EQ(exported(with("{{ odd }}", "")), "{{ odd }}");
  expect_error(Code::config, {"chat_template", "1 lines", "data.chat_format", "chatml", "plain"},
               [&] { chosen("auto"); });
  EXPECT_EQ(chosen("plain"), "plain");

  const Tokenizer& bare = small_tokenizer();
  EXPECT_EQ(fitting_formats(bare), "llama2, olmo2, plain");
  expect_error(Code::config,
               {"data.chat_format", "llama3", "<|start_header_id|>", "<|eot_id|>", "llama2, olmo2, plain"},
               [&] { choose_chat_format("llama3", bare); });
  expect_error(Code::config, {"data.chat_format", "chatlm", "plain"}, [&] { choose_chat_format("chatlm", bare); });
}

std::string line_of(const std::string& user, const std::string& assistant) {
  return json{{"messages", {{{"role", "user"}, {"content", user}}, {{"role", "assistant"}, {"content", assistant}}}}}
             .dump() +
         "\n";
}

TEST(Chat, IsTokenizedWithTheSpansOfItsAnswers) {
  TempFolder folder;
  Random random(8);
  std::string lines;
  std::vector<int32_t> expected;
  std::vector<int64_t> spans, ends = {0};
  const Tokenizer& tokenizer = tokenizers()[0];
  const ChatFormat& format = *find_chat_format("chatml");
  ChatEncoder encoder(format, tokenizer);
  for (int i = 0; i < 60; ++i) {
    const std::string user = random_text(random, 50), assistant = random_text(random, 50);
    lines += line_of(user, assistant) + (i % 20 == 7 ? "{\"messages\": []}\n\n" : "");
    encoder.append({{Role::user, user}, {Role::assistant, assistant}}, expected, spans);
    ends.push_back(std::ssize(expected));
  }
  const std::string file = write(folder / "chats.jsonl", lines), output = (folder / "out.bin").string();
  const TextOptions text{.document = config::Document::chat, .chat = &format};
  const auto run = [&](int threads, int stops) {
    TokenizeOptions options{
        .text = text, .from_scratch = true, .threads = threads, .piece_bytes = 600, .sync_bytes = 1000};
    int64_t seen = 0, most = 0;
    options.progress = [&](const TokenizeProgress&) { ++seen; };
    options.stop = [&] { return stops > 0 && seen >= most; };
    TokenizeResult result;
    do {
      most = seen + 5;
      result = tokenize_files({file}, tokenizer, output, options);
    } while (!result.finished);
    return result;
  };
  for (const auto& [threads, stops] : {std::pair(1, 0), {4, 0}, {2, 1}}) {
    fs::remove(output);
    const TokenizeResult result = run(threads, stops);
    EXPECT_EQ(skipped_text(result), "3 (3 without an assistant turn to train)");
    EXPECT_EQ(result.first_skipped, file + ": offset " + std::to_string(lines.find("{\"messages\": []}")));
    EXPECT_EQ(result.documents, 60);
    const TokenStream stream({output});
    std::vector<int32_t> ids(stream.tokens());
    stream.copy(0, ids);
    EXPECT_EQ(ids, expected);
    EXPECT_EQ(read_file(folder / "out.spans"),
              positions_header(kSpans, std::ssize(spans) / 2) + packed<int64_t>(spans));
    EXPECT_EQ(read_file(folder / "out.docs"), positions_header(kDocuments, 60) + packed<int64_t>(ends));
    EXPECT_EQ(stream.counted(0, stream.tokens()), result.counted);
    EXPECT_TRUE(find_tokens({file}, tokenizer, output, text).has_value());
  }
  TextOptions other = text;
  other.chat = find_chat_format("qwen2");
  EXPECT_FALSE(find_tokens({file}, tokenizer, output, other).has_value());
  write(folder / "out.spans", positions_header(kSpans, 0));
  EXPECT_NE(damage_of_tokens(output).find("out.spans"), std::string::npos);
}

TEST(Chat, RejectsWhatIsNoConversation) {
  TempFolder folder;
  const std::string good = line_of("q", "a");
  const auto refused = [&](const std::string& name, const std::string& lines, Code code, bool strict,
                           std::vector<std::string> parts) {
    const std::string file = write(folder / name, lines);
    const TextOptions text{.document = config::Document::chat, .strict = strict, .chat = find_chat_format("llama2")};
    parts.push_back(name);
    expect_error(code, parts, [&] { tokenize_files({file}, small_tokenizer(), folder / "o.bin", {.text = text}); });
  };
  refused("a.jsonl", "{\"text\": \"t\", \"id\": 1}\n" + good, Code::data, false,
          {"line 1", "no messages, conversations, or prompt and completion", "id, text"});
  refused("b.jsonl", good + "\n{\"id\": 1}\n", Code::data, true, {"line 3", "it has id"});
  refused("c.jsonl", good + "{\"messages\": []}\n", Code::data, true,
          {"line 2", "without an assistant turn", "strict"});
  refused("d.jsonl", "{\"messages\": []}\n{\"messages\": [{\"role\": \"tool\"}]}\n", Code::data, false,
          {"2 (1 without an assistant turn to train, 1 tool calls) skipped"});
  refused("e.txt", good, Code::config, false, {"document = \"chat\" needs JSON lines"});
}

}  // namespace
}  // namespace trainer::data
