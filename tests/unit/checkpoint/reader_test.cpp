#include "checkpoint/reader.h"

#include <gtest/gtest.h>

#include "checkpoint/shard.h"
#include "fixture.h"

namespace trainer::checkpoint {
namespace {

fs::path save_model(const fs::path& folder, const std::vector<Spec>& specs, bool tied = false, int64_t step = 1) {
  CheckpointStore store(folder, {});
  Tensors tensors(specs);
  tensors.fill(static_cast<uint64_t>(step));
  Snapshot snapshot = snapshot_of(tensors, step);
  snapshot.tied = tied;
  return store.save(snapshot);
}

std::vector<Spec> random_model(Random& random) {
  std::vector<Spec> specs;
  const DType types[] = {DType::f64, DType::f32, DType::bf16, DType::u8};
  for (int64_t i = 0, n = pick(random, 1, 8); i < n; ++i) {
    Spec spec{format("tensor.{}", i), {}, types[pick(random, 0, 3)]};
    switch (pick(random, 1, 4)) {
      case 1:
        spec.shape = {pick(random, 1, 4000)};
        break;
      case 2:
        spec.shape = {pick(random, 1, 60), pick(random, 1, 60)};
        break;
      case 3:
        spec.shape = {pick(random, 1, 12), pick(random, 1, 12), pick(random, 1, 12)};
        break;
      default:
        spec.shape = {pick(random, 1, 5), pick(random, 1, 5), pick(random, 1, 5), pick(random, 1, 5)};
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

TEST(Reader, GivesEqualBitsUnderEveryLayout) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    Random random(seed);
    TempFolder folder;
    const std::vector<Spec> specs = random_model(random);
    Tensors saved(specs, random);
    saved.fill(seed);
    CheckpointStore store(folder, {});
    const Reader reader(store.save(snapshot_of(saved, 5)));
    const int64_t ranks = pick(random, 1, 4);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Tensors loaded(specs, random, rank, ranks);
      reader.load(loaded.slices, {});
      ASSERT_EQ(loaded.difference(seed), "");
    }
  }
}

TEST(Reader, StreamsTensorsOfManyChunksAndColumnsOfThem) {
  TempFolder folder;
  const std::vector<Spec> specs{{"large", {1111, 2222}}, {"behind", {5}}};  // 9.9 MB: three chunks
  const Reader reader(save_model(folder, specs));
  ASSERT_EQ(reader.manifest().tensors[0].pieces[0].chunks.size(), 3u);
  EXPECT_EQ(load_newest(folder, specs), 1);

  std::vector<float> memory(1111 * 7);
  TensorSlice columns{"large", {1111, 2222}, {reinterpret_cast<std::byte*>(memory.data()), {1111, 7}, DType::f32}, {}};
  for (int64_t row = 0; row < 1111; ++row) columns.runs.push_back({row * 2222 + 1000, row * 7, 7});
  std::vector<float> rest(5);
  TensorSlice behind{"behind", {5}, {reinterpret_cast<std::byte*>(rest.data()), {5}, DType::f32}, {{0, 0, 5}}};
  reader.load(std::vector{columns, behind}, {});
  for (int64_t i = 0; i < 1111 * 7; ++i) {
    for (int64_t b = 0; b < 4; ++b) {
      ASSERT_EQ(columns.local.data[4 * i + b], expected_byte("large", 1, i / 7 * 2222 + 1000 + i % 7, b)) << i;
    }
  }
}

TEST(Reader, VerifiesOnlyTheChunksThatItUses) {
  TempFolder folder;
  const std::vector<Spec> specs{{"large", {3 << 20}}};
  const Reader reader(save_model(folder, specs));
  const fs::path shard = reader.folder() / "rank-00000.shard";
  std::string bytes = content_of(shard);
  bytes[(8 << 20) + 12345] ^= 4;
  write(shard, bytes);
  std::vector<float> memory(1000);
  TensorSlice part{
      "large", {3 << 20}, {reinterpret_cast<std::byte*>(memory.data()), {1000}, DType::f32}, {{500, 0, 1000}}};
  reader.load(std::span(&part, 1), {});
  part.runs = {{2 << 20, 0, 1}};
  expect_error(Code::checkpoint, {shard.string(), "tensor large", "bytes 8388608 to 12582912"},
               [&] { reader.load(std::span(&part, 1), {}); });
}

TEST(Reader, JoinsThePiecesOfSeveralWriters) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    Random random(seed);
    TempFolder folder;
    const std::vector<Spec> specs{{"a", {40, 30}}, {"b", {500}, DType::bf16}};
    const int64_t ranks = pick(random, 2, 4);
    Manifest manifest;
    manifest.header = snapshot_of(Tensors(specs), 9);
    std::map<std::string, StoredTensor> tensors;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Random same_cuts(seed + 1000);  // the ranks agree on the cuts
      Tensors part(specs, same_cuts, rank, ranks);
      part.fill(9);
      WrittenShard shard = write_shard(folder / format("rank-{:05}.shard", rank), rank, part.slices);
      manifest.shards.push_back(shard.file);
      for (StoredTensor& tensor : shard.tensors) {
        StoredTensor& joined =
            tensors.try_emplace(tensor.name, StoredTensor{tensor.name, tensor.dtype, tensor.shape, {}}).first->second;
        joined.pieces.push_back(tensor.pieces[0]);
      }
    }
    for (const auto& [name, tensor] : tensors) manifest.tensors.push_back(tensor);
    manifest.files.push_back({"config.toml", 0, checksum_of("")});
    write(folder / "config.toml", "");
    write(folder / "manifest.json", to_json(manifest));
    write(folder / "COMPLETE", completion_mark(to_json(manifest)));
    const Reader reader(folder);
    Tensors loaded(specs, random);
    reader.load(loaded.slices, {});
    ASSERT_EQ(loaded.difference(9), "");
  }
}

TEST(Reader, FindsTheCheckpointInAStepACheckpointsAndARunFolder) {
  TempFolder run;
  const fs::path step = save_model(run / "checkpoints", small_model(), false, 100);
  for (const fs::path& path : {step, step / "", run / "checkpoints", run.path(), run / "checkpoints/latest"}) {
    EXPECT_EQ(Reader(path).header().state.step, 100) << path;
  }
  fs::rename(step, run / "moved elsewhere");
  EXPECT_EQ(Reader(run / "moved elsewhere").header().state.step, 100);
  expect_error(Code::checkpoint, {"not found"}, [&] { Reader reader(run / "absent"); });
  expect_error(Code::checkpoint, {"no checkpoint found"}, [&] { Reader reader(run / "checkpoints"); });
}

TEST(Reader, TakesTheNewestCompleteOneWhenLatestIsMissingOrWrong) {
  TempFolder folder;
  for (const int64_t step : {100, 300, 200}) save_model(folder, small_model(), false, step);  // 200 was saved last
  for (const char* latest : {"", "step-00000900\n", "step-00000100\n", "\xff\n/../..", "../../etc/passwd"}) {
    Warnings warnings;
    write(folder / "latest", latest);
    EXPECT_EQ(load_newest(folder, small_model()), 200);
    EXPECT_EQ(warnings.lines.size(), 1u);
  }
  Warnings warnings;
  fs::remove(folder / "latest");
  fs::remove(folder / "step-00000200" / "COMPLETE");
  fs::resize_file(folder / "step-00000300" / "rank-00000.shard", 10);
  EXPECT_EQ(load_newest(folder, small_model()), 100);
  EXPECT_EQ(warnings.lines.size(), 3u);
  fs::remove(folder / "step-00000100" / "manifest.json");
  expect_error(Code::checkpoint, {"none of its 3 checkpoints can be read"}, [&] { complete_checkpoints(folder); });
  EXPECT_TRUE(complete_checkpoints(folder / "absent").empty());
}

TEST(Reader, ListsEveryDifferenceOfTheTensors) {
  TempFolder folder;
  const Reader reader(save_model(folder, {{"same", {4}}, {"shape", {4, 2}}, {"type", {3}}, {"left over", {2}}}));
  Tensors run({{"same", {4}}, {"shape", {2, 4}}, {"type", {3}, DType::f64}, {"new", {2}}});
  expect_error(
      Code::checkpoint,
      {"shape: [4, 2] in the checkpoint, the run has [2, 4]", "type: fp32 in the checkpoint, but fp64 in the run",
       "new: not in the checkpoint", "left over: not in the run's model"},
      [&] { reader.load(run.slices, {}); });
}

TEST(Reader, LoadsWeightsWithoutMoments) {
  TempFolder folder;
  const Reader reader(save_model(folder, {{"w", {4}}, {"w#m", {4}}, {"w#v", {4}}}));
  Tensors weights({{"w", {4}}});
  reader.load(weights.slices, {.weights_only = true});
  EXPECT_EQ(weights.difference(1), "");
  expect_error(Code::checkpoint, {"w#m: not in the run's model"}, [&] { reader.load(weights.slices, {}); });
}

TEST(Reader, ConvertsWeightsButNoMoments) {
  const std::vector<double> values = {1 + 0x1p-8, -1 - 0x1.8p-7, 0x1p-140, 3.4e38, 1e-300, 1 + 0x1p-24 + 0x1p-50};
  const Shape shape{3, 2};
  for (const DType stored : {DType::f32, DType::f64})
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
      TempFolder folder;
      Tensors saved({{"w", shape, stored}, {"w#m", shape, stored}});
      Tensors state({{"w", shape, type}, {"w#m", shape, type}});
      with_type(stored, [&](auto zero) {
        using T = decltype(zero);
        for (size_t i = 0; i < values.size(); ++i) saved.slices[0].local.as<T>()[i] = static_cast<T>(values[i]);
      });
      CheckpointStore store(folder, {}, fast_calls());
      const Reader reader(store.save(snapshot_of(saved, 1)));
      // Part of the matrix, with a stride in the run's memory; other elements there are unchanged.
      std::vector<std::byte> memory(8 * static_cast<size_t>(size_of(type)), std::byte{0x55});
      const TensorSlice column{
          "w",
          shape,
          {memory.data(), {8}, type},
          {{.global = 0, .local = 1, .length = 1}, {.global = 2, .local = 3, .length = 2, .stride = 4}}};
      reader.load(std::span(&column, 1), {.weights_only = true});
      reader.load(std::span(state.slices).first(1), {.weights_only = true});
      with_type(type, [&](auto zero) {
        using T = decltype(zero);
        const auto expected = [&](size_t i) {
          const double value = stored == DType::f64 ? values[i] : static_cast<double>(static_cast<float>(values[i]));
          return std::is_same_v<T, double> ? static_cast<T>(value) : static_cast<T>(static_cast<float>(value));
        };
        const auto same = [](T found, T value) { return std::memcmp(&found, &value, sizeof(T)) == 0; };
        for (size_t i = 0; i < values.size(); ++i)
          EXPECT_TRUE(same(state.slices[0].local.as<T>()[i], expected(i))) << name_of(type) << " " << values[i];
        T untouched;
        std::memset(&untouched, 0x55, sizeof(T));
        for (size_t i = 0; i < 8; ++i) {
          const T* const found = column.local.as<T>() + i;
          EXPECT_TRUE(same(*found, i == 1   ? expected(0)
                                   : i == 3 ? expected(2)
                                   : i == 7 ? expected(3)
                                            : untouched))
              << name_of(type) << " " << i;
        }
      });
      if (type == stored) continue;
      expect_error(Code::checkpoint,
                   {format("w#m: {} in the checkpoint, but {} in the run", name_of(stored), name_of(type))},
                   [&] { reader.load(state.slices, {}); });
    }
}

TEST(Reader, CopiesATiedHeadAndDoesNotTieTwoTensors) {
  TempFolder folder;
  const std::vector<Spec> tied{{"wte", {5, 3}}, {"wte#m", {5, 3}}},
      untied{{"wte", {5, 3}}, {"wte#m", {5, 3}}, {"head.weight", {5, 3}}, {"head.weight#m", {5, 3}}};
  const Reader reader(save_model(folder / "tied", tied, true));
  Tensors run(untied);
  reader.load(run.slices, {.tied = false});
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(std::memcmp(run.slices[i].local.data, run.slices[i + 2].local.data, 60), 0);
    for (int64_t e = 0; e < 15; ++e)
      EXPECT_EQ(run.slices[i + 2].local.data[4 * e], expected_byte(tied[i].name, 1, e, 0));
  }
  const Reader other(save_model(folder / "untied", untied, false));
  Tensors tied_run(tied);
  expect_error(Code::checkpoint, {"model.tie_embeddings = false"},
               [&] { other.load(tied_run.slices, {.tied = true}); });
}

TEST(Reader, ExpertsAreCopiesOfADenseMlp) {
  TempFolder folder;
  const Reader reader(save_model(folder, {{"blocks.0.attn.q.weight", {4, 4}},
                                          {"blocks.0.mlp.gate.weight", {4, 6}},
                                          {"blocks.0.mlp.down.weight", {6, 4}}}));
  std::vector<float> q(16), gate(3 * 24, -1), down(24, -1), router(12, -1);
  const auto slice = [](const char* name, const Shape& shape, std::vector<float>& memory, std::vector<mesh::Run> runs) {
    const Tensor local{reinterpret_cast<std::byte*>(memory.data()), {std::ssize(memory)}, DType::f32};
    return TensorSlice{name, shape, local, std::move(runs)};
  };
  // This rank has all experts' gates, of which the runs join, and the last two columns of expert 2's down.
  std::vector<TensorSlice> slices = {slice("blocks.0.attn.q.weight", {4, 4}, q, {{0, 0, 16}}),
                                     slice("blocks.0.mlp.router.weight", {4, 3}, router, {{0, 0, 12}}),
                                     slice("blocks.0.mlp.experts.gate.weight", {3, 4, 6}, gate, {{0, 0, 72}}),
                                     slice("blocks.0.mlp.experts.down.weight", {3, 6, 4}, down, {})};
  for (int64_t row = 0; row < 6; ++row) slices[3].runs.push_back({48 + 4 * row + 2, 2 * row, 2});
  reader.load(slices, {.weights_only = true, .upcycles = true});
  const auto expect = [&](const std::vector<float>& memory, int64_t at, const char* name, int64_t index) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&memory[static_cast<size_t>(at)]);
    for (int64_t b = 0; b < 4; ++b) ASSERT_EQ(bytes[b], expected_byte(name, 1, index, b)) << name << " " << at;
  };
  for (int64_t i = 0; i < 72; ++i) expect(gate, i, "blocks.0.mlp.gate.weight", i % 24);
  for (int64_t i = 0; i < 12; ++i) expect(down, i, "blocks.0.mlp.down.weight", i / 2 * 4 + 2 + i % 2);
  EXPECT_EQ(router, std::vector<float>(12, -1)) << "not filled";
  slices[2].shape = {3, 4, 5};
  expect_error(Code::checkpoint, {"blocks.0.mlp.gate.weight: [4, 6] in the checkpoint, the run has [4, 5]"},
               [&] { reader.load(slices, {.weights_only = true, .upcycles = true}); });
}

TEST(Reader, AnotherOptimizersStateIsRefusedWithAWayOut) {
  Snapshot stored, run;
  stored.optimizer = "muon";
  expect_error(Code::checkpoint, {"optim.name = \"muon\"", "\"adamw\"", "start from its weights: model.init_from"},
               [&] { require_compatible(stored, run, "step-1", false); });
  expect_error(Code::checkpoint, {"optim.name = \"adamw\"", "\"muon\""},
               [&] { require_compatible(run, stored, "step-1", true); });
  stored.optimizer = run.optimizer;
  require_compatible(stored, run, "step-1", false);
}

TEST(Compatible, ListsModelKeysThatDiffer) {
  Snapshot stored, run;
  stored.model_keys = {{"n_layer", "6"}, {"d_model", "384"}, {"bias", "true"}};
  run.model_keys = {{"n_layer", "12"}, {"d_model", "384"}, {"rope_theta", "10000"}};
  const std::string message = error_of([&] { require_compatible(stored, run, "step-1", true); }).what();
  expect_parts(message, {"n_layer: 6 in the checkpoint, the run has 12", "bias: true in the checkpoint, not in the run",
                         "rope_theta: not in the checkpoint, the run has 10000"});
  EXPECT_EQ(message.find("d_model"), std::string::npos);
  require_compatible(stored, stored, "step-1", false);
}

TEST(Compatible, RejectsOtherDataUnlessAllowed) {
  Snapshot stored, run;
  stored.tokenizer_hash = run.tokenizer_hash = "t";
  stored.data_hash = "old";
  run.data_hash = "new";
  expect_error(Code::checkpoint, {"checkpoint.allow_other_data = true"},
               [&] { require_compatible(stored, run, "step-1", false); });
  Warnings warnings;
  require_compatible(stored, run, "step-1", true);
  EXPECT_EQ(warnings.lines.size(), 1u);
  run.data_hash = "";
  require_compatible(stored, run, "step-1", false);
  run.tokenizer_hash = "u";
  expect_error(Code::checkpoint, {"tokenizer"}, [&] { require_compatible(stored, run, "step-1", false); });
}

TEST(Use, NamesEveryKeyOfADifferentModelAtOnce) {
  Snapshot stored, run;
  stored.model_keys = {{"arch", "gpt2"},
                       {"n_layer", "2"},
                       {"n_head", "4"},
                       {"d_model", "64"},
                       {"d_ff", "256"},
                       {"bias", "true"},
                       {"tie_embeddings", "false"},
                       {"seq_len", "32"},
                       {"rope_theta", "1"}};
  run.model_keys = {{"arch", "gpt2"},           {"n_layer", "3"},  {"n_head", "2"},
                    {"d_model", "32"},          {"d_ff", "128"},   {"bias", "false"},
                    {"tie_embeddings", "true"}, {"seq_len", "16"}, {"rope_theta", "2"}};
  const auto none_chosen = [](const std::string&) { return false; };
  const Error error = error_of([&] { require_same_use(stored, run, "there", none_chosen); });
  EXPECT_EQ(error.code(), Code::checkpoint);
  expect_parts(error.what(), {"there", "n_layer: 2 in the checkpoint, the run has 3", "model.n_layer=2",
                              "model.n_head=4", "model.d_model=64", "model.d_ff=256", "model.bias=true",
                              "model.tie_embeddings=false", "model.seq_len=32"});
  EXPECT_EQ(std::string(error.what()).find("rope_theta"), std::string::npos) << "GPT-2 has learned positions";
  // A Llama may have windows of a different length, and an untied head gets a copy of the embedding.
  stored.model_keys = {{"arch", "llama"}, {"seq_len", "32"}, {"tie_embeddings", "true"}};
  run.model_keys = {{"arch", "llama"}, {"seq_len", "16"}, {"tie_embeddings", "false"}};
  require_same_use(stored, run, "there", none_chosen);
}

TEST(Use, ExpertsMayBeginAsCopiesOfADenseMlp) {
  Snapshot stored, run;
  stored.model_keys = {{"arch", "llama"}, {"n_layer", "2"}, {"d_model", "64"}, {"d_ff", "96"}};
  run.model_keys = {{"arch", "mixtral"}, {"n_layer", "2"},           {"d_model", "64"},  {"d_ff", "0"},
                    {"n_expert", "8"},   {"experts_per_token", "2"}, {"d_expert", "96"}, {"norm_topk", "true"}};
  const auto check = [&] { require_same_use(stored, run, "there", [](const std::string&) { return false; }); };
  check();
  run.model_keys["d_expert"] = "48";
  expect_error(Code::checkpoint, {"d_expert: 48 in the run", "d_ff = 96", "--set model.d_expert=96"}, check);
  run.model_keys["d_expert"] = "96";
  run.model_keys["d_ff"] = "48";
  expect_error(Code::checkpoint, {"d_ff: 48 in the run, whose blocks without experts", "--set model.d_ff=96"}, check);
  run.model_keys["d_ff"] = "0";
  run.model_keys["norm_topk"] = "false";
  expect_error(Code::checkpoint, {"norm_topk: false in the run", "model.norm_topk=true"}, check);
  run.model_keys["norm_topk"] = "true";
  run.model_keys["d_shared"] = "96";
  expect_error(Code::checkpoint, {"d_shared: 96 in the run", "add to the MLP's output", "model.d_shared=0"}, check);
  run.model_keys.erase("d_shared");
  run.model_keys["d_model"] = "32";
  expect_error(Code::checkpoint, {"d_model: 64 in the checkpoint, the run has 32"}, check);
  run.model_keys["d_model"] = "64";
  stored.model_keys["arch"] = "gpt2";
  expect_error(Code::checkpoint, {"arch: gpt2 in the checkpoint"}, check);
}

}  // namespace
}  // namespace trainer::checkpoint
