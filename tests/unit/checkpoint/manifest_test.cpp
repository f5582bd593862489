#include "checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fixture.h"

namespace trainer::checkpoint {
namespace {

using nlohmann::json;

TEST(GroupRuns, SortsJoinsAndGroups) {
  const std::vector<RunGroup> groups =
      group_runs({{40, 0, 2}, {0, 9, 5}, {30, 3, 2}, {5, 20, 5}, {20, 30, 2}, {50, 1, 3}, {60, 50, 1}});
  ASSERT_EQ(groups.size(), 4u);
  const auto expect = [](const RunGroup& group, int64_t global, int64_t length, int64_t stride, int64_t count) {
    EXPECT_EQ(group.global, global);
    EXPECT_EQ(group.length, length);
    EXPECT_EQ(group.count, count);
    EXPECT_TRUE(count == 1 || group.stride == stride) << group.stride;
  };
  expect(groups[0], 0, 10, 0, 1);
  expect(groups[1], 20, 2, 10, 3);
  expect(groups[2], 50, 3, 0, 1);
  expect(groups[3], 60, 1, 0, 1);
}

TEST(GroupRuns, NamesTheSameElements) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    std::vector<mesh::Run> runs;
    std::vector<int64_t> elements;
    int64_t at = 0;
    for (int64_t i = 0, n = pick(random, 1, 30); i < n; ++i) {
      at += pick(random, 0, 2);
      runs.push_back({at, 0, pick(random, 1, 2)});
      for (int64_t e = 0; e < runs.back().length; ++e) elements.push_back(at++);
    }
    std::shuffle(runs.begin(), runs.end(), random);
    std::vector<int64_t> named;
    for (const RunGroup& group : group_runs(runs)) {
      for (int64_t run = 0; run < group.count; ++run) {
        for (int64_t e = 0; e < group.length; ++e) named.push_back(group.global + run * group.stride + e);
      }
    }
    ASSERT_EQ(named, elements) << "seed " << seed;
  }
}

TEST(Manifest, OfAColumnBlockIsShort) {
  const std::vector<RunGroup> groups = group_runs([] {
    std::vector<mesh::Run> runs;
    for (int64_t row = 0; row < 50257; ++row) runs.push_back({row * 768 + 96, row * 96, 96});
    return runs;
  }());
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].elements(), 50257 * 96);
}

/// A value that makes a valid manifest invalid.
struct Mistake {
  const char* pointer;
  json value;
  const char* says;
};

/// A mixture with two phases; the second begins at sample 5.
json mixture(int64_t parts, const json& slots, int64_t first) {
  return {{"parts", parts},
          {"phases",
           {{{"first_sample", first}, {"slots", slots}, {"start", json::object()}},
            {{"first_sample", 5}, {"slots", {{"a", 1}, {"b", 99'999}}}, {"start", {{"a", 5}, {"b", 0}}}}}},
          {"sources", {{"a", {{"windows", 3}, {"hash", "12ab"}}}}}};
}

TEST(Manifest, KeepsTheMixture) {
  TempFolder folder;
  json document = json::parse(content_of(save_step(folder, 1) / kManifestFile));
  EXPECT_FALSE(document.contains("mixture"));
  EXPECT_TRUE(parse_manifest(document.dump(), "m").header.mixture.phases.empty());
  document["mixture"] = mixture(100'000, {{"a", 100'000}}, 0);
  const MixtureState kept = parse_manifest(document.dump(), "m").header.mixture;
  ASSERT_EQ(kept.phases.size(), 2u);
  EXPECT_EQ(kept.phases[1], (data::MixturePhase{5, {{"a", 1}, {"b", 99'999}}, {{"a", 5}, {"b", 0}}}));
  EXPECT_EQ(kept.sources.at("a").windows, 3);
  EXPECT_EQ(to_json(kept), document["mixture"]);
}

TEST(Manifest, KeepsTheTokenThatBeginsTexts) {
  TempFolder folder;
  const std::string text = content_of(save_step(folder, 1) / kManifestFile);
  Manifest manifest = parse_manifest(text, "m");
  EXPECT_EQ(manifest.header.bos, -1);
  EXPECT_EQ(text.find("special_tokens"), text.npos);
  manifest.header.bos = 7;
  const std::string with = to_json(manifest);
  EXPECT_EQ(json::parse(with)["special_tokens"], (json{{"bos", 7}, {"add_bos", true}}));
  EXPECT_EQ(parse_manifest(with, "m").header.bos, 7);
  EXPECT_TRUE(parse_manifest(with, "m").header.special.empty());
  for (const int32_t bos : {-1, 7}) {
    manifest.header.bos = bos;
    manifest.header.special = {.eos = {3, 5, 9},
                               .bos = 7,
                               .pad = 0,
                               .unk = 2,
                               .add_eos = true,
                               .text_end = 5,
                               .fields = {{"config.json", R"({"bos_token_id":null,"eos_token_id":[3,5]})"}}};
    const Snapshot again = parse_manifest(to_json(manifest), "m").header;
    EXPECT_EQ(again.bos, bos);
    EXPECT_EQ(again.special, manifest.header.special);
  }
}

TEST(Manifest, NamesThePlaceOfEachMistake) {
  TempFolder folder;
  const json sound = json::parse(content_of(save_step(folder, 1) / kManifestFile));
  const int64_t most = std::numeric_limits<int64_t>::max();
  const Mistake mistakes[] = {
      {"/format", 1, "m: checkpoint format 1, this program reads format 2; continue the run with the program that"},
      {"/format", 3, "m: checkpoint format 3, this program reads format 2"},
      {"/format", "1", "m: format: expected an integer"},
      {"/sequence", -1, "m: sequence: -1 is outside"},
      {"/sequence", 18446744073709551615u, "m: sequence: 18446744073709551615 is outside"},
      {"/state", json::array(), "m: state: expected an object"},
      {"/state/step", 1.5, "m: state: step: expected an integer"},
      {"/state/best_val_loss", "low", "expected a number or null"},
      {"/tied", 1, "m: tied: expected true or false"},
      {"/model/n_layer", 2, "m: model: n_layer: expected a string"},
      {"/chunk_bytes", 0, "chunk_bytes: 0 is outside"},
      {"/chunk_bytes", 100, "not a multiple of 64"},
      {"/chunk_bytes", most, "is outside"},
      {"/files", json::array(), "config.toml is missing"},
      {"/files/0/name", "../config.toml", "plain name"},
      {"/files/0/xxh3", "12", "expected 32 hexadecimal digits"},
      {"/shards/0/name", "manifest.json", "the name occurs twice"},
      {"/shards/0/bytes", -5, "outside"},
      {"/shards/0/bytes", 4000, "tensors end at"},
      {"/tensors/0/name", "wte#m", "m: tensors[1]: the tensor occurs twice"},
      {"/tensors/0/dtype", "fp31", "m: tensors[0]: dtype: unknown element type \"fp31\""},
      {"/tensors/0/dtype", "fp64", "tensors overlap"},
      {"/tensors/0/shape", json::array(), "expected 1 to 4 sizes"},
      {"/tensors/0/shape", json{1, 1, 1, 1, 78}, "expected 1 to 4 sizes"},
      {"/tensors/0/shape/0", 0, "outside"},
      {"/tensors/0/shape/0", 14, "element 78 is stored nowhere"},
      {"/tensors/0/shape", json{int64_t{1} << 40, int64_t{1} << 40}, "more than"},
      {"/tensors/0/pieces", json::array(), "element 0 is stored nowhere"},
      {"/tensors/0/pieces/0/shard", 1, "outside"},
      {"/tensors/0/pieces/0/offset", 8, "not a multiple of 64"},
      {"/tensors/0/pieces/0/offset", 1 << 20, "outside"},
      {"/tensors/0/pieces/0/offset", 320, "bytes 0 to 320 belong to no tensor"},
      {"/tensors/6/pieces/0/offset", 1344, "do not fit"},
      {"/tensors/0/pieces/0/runs", json::array(), "has no runs"},
      {"/tensors/0/pieces/0/runs/0", json{0}, "expected [offset, length]"},
      {"/tensors/0/pieces/0/runs/0", json{1, 77}, "element 0 is stored nowhere"},
      {"/tensors/0/pieces/0/runs/0", json{0, 79}, "outside"},
      {"/tensors/0/pieces/0/runs/0", json{0, 1, 1, most}, "outside"},
      {"/tensors/0/pieces/0/runs/0", json{0, 3, 2, 26}, "outside"},
      {"/tensors/0/pieces/0/runs", json{{0, 40}, {39, 39}}, "not in ascending order"},
      {"/tensors/0/pieces/0/xxh3", json::array(), "0 checksums, expected 1"},
      {"/mixture", json::object(), "\"parts\" is missing"},
      {"/special_tokens", {{"bos", -1}, {"add_bos", true}}, "special_tokens: bos: -1 is outside"},
      {"/special_tokens", {{"eos", {2, "x"}}, {"add_bos", false}}, "special_tokens: eos[1]: expected an integer"},
      {"/special_tokens",
       {{"fields", {{"a", 3}}}, {"add_bos", false}},
       "special_tokens: fields: a: expected an object"},
      {"/mixture", mixture(7, {{"a", 100'000}}, 0), "parts: 7 is outside"},
      {"/mixture", mixture(100'000, {{"a", 99'999}}, 0), "phases[0]: 99999 slots, expected 100000"},
      {"/mixture", mixture(100'000, json::object(), 0), "phases[0]: 0 slots"},
      {"/mixture", mixture(100'000, {{"a", 100'000}}, 5), "phases[1]: phases are not in ascending order"},
  };
  parse_manifest(sound.dump(), "m");
  for (const Mistake& mistake : mistakes) {
    json document = sound;
    document[json::json_pointer(mistake.pointer)] = mistake.value;
    SCOPED_TRACE(mistake.pointer);
    expect_error(Code::checkpoint, {mistake.says}, [&] { parse_manifest(document.dump(), "m"); });
  }
}

TEST(Manifest, NamesAMemberThatIsMissing) {
  TempFolder folder;
  const json sound = json::parse(content_of(save_step(folder, 1) / kManifestFile));
  for (const auto& [place, parent] : {std::pair("", &sound), {"state: ", &sound["state"]}})
    for (const auto& [name, value] : parent->items()) {
      json document = sound;
      (parent == &sound ? document : document["state"]).erase(name);
      expect_error(Code::checkpoint, {format("m: {}\"{}\" is missing", place, name)},
                   [&] { parse_manifest(document.dump(), "m"); });
    }
}

TEST(Manifest, OfAnotherFormatIsRefusedByNumber) {
  TempFolder folder;
  const fs::path step = save_step(folder, 1);
  std::string manifest = content_of(step / kManifestFile);
  manifest.replace(manifest.find("\"format\":2"), 10, "\"format\":1");
  write(step / kManifestFile, manifest);
  expect_error(Code::checkpoint,
               {"manifest.json: checkpoint format 1, this program reads format 2", "export --format hf"},
               [&] { read_manifest(step); });
}

TEST(Manifest, RejectsWhatIsNotJson) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("null"), std::string("[1e999]"),
        std::string("{\"format\": \"\xff\"}"), std::string(300000, '['), std::string(1 << 20, '\0')}) {
    EXPECT_THROW(parse_manifest(text, "m"), Error);
  }
}

/// Returns JSON pointers to all values of a document.
std::vector<json::json_pointer> places_in(const json& document) {
  std::vector<json::json_pointer> places;
  const json flat = document.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    for (json::json_pointer place(pointer); !place.empty(); place.pop_back()) places.push_back(place);
  }
  return places;
}

/// After random changes of values and bytes, a manifest is rejected, or loads the right tensors.
TEST(Manifest, SurvivesRandomChanges) {
  TempFolder folder;
  const fs::path step = save_step(folder, 1);
  const std::string text = content_of(step / kManifestFile);
  const json sound = json::parse(text);
  const std::vector<json::json_pointer> places = places_in(sound);
  const json values[] = {-1,
                         0,
                         1,
                         2,
                         63,
                         64,
                         77,
                         78,
                         79,
                         4096,
                         int64_t{1} << 32,
                         int64_t{1} << 62,
                         std::numeric_limits<int64_t>::max(),
                         std::numeric_limits<int64_t>::min(),
                         1e300,
                         0.5,
                         "",
                         "fp64",
                         "bf16",
                         "rank-00000.shard",
                         "COMPLETE",
                         json::array(),
                         json::object(),
                         json{0, 1},
                         json{0, 1, 2, 39},
                         nullptr,
                         true};
  int parsed = 0, loaded = 0;
  for (uint64_t seed = 1; seed <= 6000; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    Random random(seed);
    std::string changed = text;
    if (seed % 2 == 0) {
      json document = sound;
      for (int64_t i = 0, n = pick(random, 1, 3); i < n; ++i) {
        const auto& place = places[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(places.size()) - 1))];
        try {
          json& target = document.at(place);
          if (pick(random, 0, 5) == 0) {
            target = sound.at(places[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(places.size()) - 1))]);
          } else if (target.is_number_integer() && pick(random, 0, 1) == 0) {
            // Unsigned arithmetic wraps: an earlier change may have put the smallest or largest integer there.
            target = static_cast<int64_t>(target.get<uint64_t>() + static_cast<uint64_t>(pick(random, -2, 2)));
          } else {
            target = values[pick(random, 0, std::ssize(values) - 1)];
          }
        } catch (const json::exception&) {  // an earlier change removed this value
        }
      }
      changed = document.dump();
    } else {
      for (int64_t i = 0, n = pick(random, 1, 4); i < n; ++i) {
        const size_t at = static_cast<size_t>(pick(random, 0, static_cast<int64_t>(changed.size()) - 1));
        switch (pick(random, 0, 3)) {
          case 0:
            changed[at] = static_cast<char>(random());
            break;
          case 1:
            changed.erase(at, static_cast<size_t>(pick(random, 1, 20)));
            break;
          case 2:
            changed.insert(at, changed.substr(static_cast<size_t>(pick(random, 0, static_cast<int64_t>(at))), 15));
            break;
          default:
            changed[at] = static_cast<char>('0' + pick(random, 0, 9));
        }
      }
    }
    try {
      parse_manifest(changed, "m");
      ++parsed;
      write(step / kManifestFile, changed);
      write(step / kCompleteFile, completion_mark(changed));
      const Reader reader(step);
      Tensors tensors(small_model());
      reader.load(tensors.slices, {});
      ++loaded;
      EXPECT_EQ(tensors.difference(1), "");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::checkpoint) << error.what();
    }
  }
  EXPECT_GT(parsed, 100);  // if only state, hashes or names changed
  EXPECT_GT(loaded, 20);
}

}  // namespace
}  // namespace trainer::checkpoint
