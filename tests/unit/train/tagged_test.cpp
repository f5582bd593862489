// Whole models under tables of tags: beside one rank, beside Megatron-1D, beside themselves, and bytes.
#include "parallel/tagged.h"

#include "config/layouts.h"
#include "config/text.h"
#include "parallel/megatron1d.h"
#include "rigs/axonn.h"
#include "rigs/megatron.h"
#include "rigs/optimus.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Recompute;
using parallel::LayerTags;
using parallel::TagTable;

struct Table {
  const char* name;
  std::vector<mesh::MeshAxis> axes;  // without "data"
  TagTable tags;
  int64_t kv_heads = 2;  // of Llama
  bool tied = true;      // of GPT-2; Llama's tables are two
};
std::ostream& operator<<(std::ostream& out, const Table& table) { return out << table.name; }

mesh::MeshShape shape_of(const Table& table, int64_t data) {
  std::vector<mesh::MeshAxis> axes = {{"data", static_cast<int>(data)}};
  axes.insert(axes.end(), table.axes.begin(), table.axes.end());
  return mesh::MeshShape(axes);
}

HowToRun by(const Table& table, HowToRun how = {}) {
  how.factory = {[table](const config::Config& c, int) { return shape_of(table, c.parallel.data); },
                 [table](const config::Config& c, mesh::Mesh& mesh, params::ParamStore& store) {
                   return std::make_unique<parallel::Tagged>(mesh, store, table.tags, c);
                 }};
  return how;
}

/// Two layers; a batch of four sequences, as two micro-batches of two for each of `data` replicas, or one.
config::Config configure(const Table& table, Arch arch, int64_t data = 1) {
  config::Config c = configure(Layout{.data = data, .arch = arch});
  c.model.n_kv_head = arch == Arch::llama ? table.kv_heads : 24;
  c.model.tie_embeddings = arch == Arch::gpt2 && table.tied;
  c.parallel.tensor = shape_of(table, 1).world_size();
  return c;
}

const LayerTags kMegatron{"rr", "cc", "cc", "cc", "kk", "cc", "kk"};
const LayerTags kOptimus{"rc", "rc", "rc", "fc", "fc", "fc", "fk"};
const LayerTags kAxonn{"r-c", "rc-", "rc-", "fck", "fkc", "fck", "fkc"};

const Table kTables[] = {
    {"Megatron", {{"kv", 2}, {"rep", 2}}, {{kMegatron, kMegatron}, "rr", "vv"}},
    {"Optimus", {{"row", 2}, {"col", 2}}, {{kOptimus, kOptimus}, "rc", "fv"}},
    {"Axonn", {{"z", 2}, {"x", 2}, {"y", 2}}, {{kAxonn, kAxonn}, "r-c", "fvh"}},
    {"AxonnUneven", {{"z", 1}, {"x", 3}, {"y", 2}}, {{kAxonn, kAxonn}, "r-c", "fvh"}, 3},
    // The final norm and the head have whole rows, and the table is in pieces over all that cut rows.
    {"AxonnWholeColumns", {{"z", 2}, {"x", 2}, {"y", 2}}, {{kAxonn, kAxonn}, "r-r", "fvf"}},
    // A layer as Megatron has it over both axes, then one as Optimus has it.
    {"Mixed", {{"a", 2}, {"b", 2}}, {{kMegatron, kOptimus}, "rc", "fv"}},
    // Neighbours agree in nothing.
    {"Crossed",
     {{"a", 2}, {"b", 2}},
     {{{"-c", "cr", "c-", "ck", "rf", "kk", "rr"}, {"cc", "cc", "cc", "kr", "ff", "fc", "kc"}}, "rr", "fv"}},
    {"Contrary",
     {{"a", 2}, {"b", 3}},
     {{{"cr", "r-", "rc", "kc", "ck", "fr", "cc"}, {"rc", "-c", "-r", "rk", "kf", "k-", "-k"}}, "r-", "fh"},
     3,
     false},
};

class TaggedModels : public testing::TestWithParam<Table> {};

TEST_P(TaggedModels, FollowOneRankInDoublePrecision) {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const config::Config c = configure(GetParam(), arch);
    const int64_t steps = arch == Arch::gpt2 ? 20 : 5;
    const Result one = train(on_one_rank(c), DType::f64, steps), many = train(c, DType::f64, steps, by(GetParam()));
    EXPECT_TRUE(many.start == one.start) << "initial weights";
    expect_same_run(many, one);
  }
}

TEST_P(TaggedModels, ComputeTheSameBitsUnderOtherSchedulesAndSendWhatWasPredicted) {
  for (const DType compute : {DType::f64, DType::bf16}) {
    const Arch arch = compute == DType::f64 ? Arch::gpt2 : Arch::llama;
    config::Config c = configure(GetParam(), arch);
    const Result usual = train(c, compute, 2, by(GetParam()));
    expect_predicted_bytes(usual, 2);
    config::Config other = c;
    other.debug.overlap = false;
    expect_same_bits(train(other, compute, 2, by(GetParam(), {.delay = 0.0005})), usual);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      other = c;
      other.train.recompute = recompute;
      const Result again = train(other, compute, 2, by(GetParam()));
      expect_same_bits(again, usual);
      expect_predicted_bytes(again, 2);
    }
    other = c;
    other.parallel.cache_layers = 1;
    const Result kept = train(other, compute, 2, by(GetParam()));
    expect_same_bits(kept, usual);
    expect_predicted_bytes(kept, 2);
    other = c;
    other.parallel.zero_stage = 1;
    other.parallel.data = 2;
    other.train.global_batch = 4;
    const Result split = train(other, compute, 2, by(GetParam()));
    other.parallel.zero_stage = 0;
    expect_same_bits(split, train(other, compute, 2, by(GetParam())));
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, TaggedModels, testing::ValuesIn(kTables),
                         [](const auto& info) { return std::string(info.param.name); });

/// Megatron-1D as a table, on its own mesh.
HowToRun as_megatron(const Layout& l) {
  HowToRun how;
  how.factory.mesh_shape = [](const config::Config& c, int world) {
    return parallel::Megatron1D::mesh_shape(world, static_cast<int>(c.parallel.tensor), c.model.n_kv_head);
  };
  how.factory.strategy = [l](const config::Config& c, mesh::Mesh& mesh, params::ParamStore& store) {
    const auto of = [&](char tag) { return std::string(static_cast<size_t>(mesh.shape().axes() - 1), tag); };
    const std::string stream = of(l.sequence_parallel ? 'r' : '-');
    const LayerTags layer{stream, of('c'), of('c'), of('c'), of('k'), of('c'), of('k')};
    return std::make_unique<parallel::Tagged>(mesh, store, TagTable{{layer, layer}, stream, of('v')}, c);
  };
  return how;
}

TEST(TaggedMegatron, ComputesTheSameBitsWithTheSameOperations) {
  for (const Layout& l :
       {Layout{2, 1, false}, Layout{2, 1, true}, Layout{3, 1, true, Arch::llama, 1}, Layout{4, 1, false, Arch::llama},
        Layout{4, 1, true, Arch::gpt2, 4, 2}, Layout{2, 2, true, Arch::llama}})
    for (const auto& [compute, recompute] :
         {std::pair{DType::f64, Recompute::full}, {DType::f32, Recompute::selective}, {DType::bf16, Recompute::none}}) {
      SCOPED_TRACE(to_string(l) + " " + std::string(name_of(compute)));
      config::Config c = configure(l);
      c.train.recompute = recompute;
      c.parallel.zero_stage = l.data == 2;
      const Result named = train(c, compute, 2), tagged = train(c, compute, 2, as_megatron(l));
      expect_same_bits(tagged, named);
      expect_same_counts(tagged, named);
    }
}

/// The bytes of each axis, by the names of strategy "autoddl".
std::map<std::string, int64_t> bytes_by_axis(const measure::CommBytes& bytes, const config::TagLayout& names) {
  std::map<std::string, int64_t> all;
  for (const auto& [axis, operations] : bytes) {
    std::string renamed;
    for (size_t begin = 0; begin <= axis.size(); begin = axis.find('+', begin) + 1) {
      const std::string name = axis.substr(begin, axis.find('+', begin) - begin);
      const auto found = std::ranges::find(names.axes, name, &config::TagAxis::name);
      const std::string own = found == names.axes.end() ? name : std::string(1, 'a' + (found - names.axes.begin()));
      renamed += (renamed.empty() ? "" : "+") + own;
      if (axis.find('+', begin) == std::string::npos) break;
    }
    for (const auto& [operation, sent] : operations) all[renamed] += sent;
  }
  return all;
}

TEST(Autoddl, IsEveryNamedStrategyByItsTags) {
  std::vector<config::Config> named;
  for (const Layout& l : {Layout{2, 1, true}, Layout{4, 1, false}, Layout{2, 2, true, Arch::llama}})
    named.push_back(configure(l));
  for (const char* panels : {"gather", "ring"})
    for (const Square& s :
         {Square{2, 1, 1, Arch::gpt2, "auto", {1, 1}, panels}, Square{2, 1, 2, Arch::llama, "paper", {1, 1}, panels}})
      named.push_back(configure(s));
  for (const Grid& g : {Grid{2, 2, 1, 1}, Grid{1, 2, 2, 2}, Grid{2, 2, 2, 1, Arch::gpt2, "xyzd"},
                        Grid{2, 1, 2, 1, Arch::llama, "zxyd"}})
    named.push_back(configure(g));
  named.push_back(configure(Grid{2, 1, 2, 1}));
  named.back().parallel.cache_layers = 2;
  for (config::Config c : named) {
    SCOPED_TRACE(c.parallel.strategy + " " + config::layout_text(c));
    c.model.n_layer = 3;
    config::TagLayout layout = config::tag_layout(c);
    config::Config tagged = c;
    config::set_tag_layout(tagged, layout);
    std::erase_if(layout.axes, [](const config::TagAxis& axis) { return axis.size == 1; });
    const Result by_name = train(c, DType::f64, 3), by_tags = train(tagged, DType::f64, 3);
    expect_same_gradients(by_tags.gradients, by_name.gradients, 1e-12);
    for (size_t n = 0; n < by_name.losses.size(); ++n)
      EXPECT_NEAR(by_tags.losses[n], by_name.losses[n], 1e-12 * by_name.losses[n]);
    // Tags gather panels. A ring of them is another schedule: where the input stays it sends one dY for both products.
    if (c.parallel.strategy == "optimus-2d" && c.parallel.panels == "ring") continue;
    EXPECT_EQ(bytes_by_axis(by_tags.measured, layout), bytes_by_axis(by_name.measured, layout));
    EXPECT_EQ(bytes_by_axis(by_tags.predicted, layout), bytes_by_axis(by_name.predicted, layout));
  }
}

/// Letters of a random legal table of tags for three layers on 2 x 2 ranks, or 4.
config::Config random_tags(uint64_t seed) {
  const PhiloxKey key = philox_key(seed, "tags");
  uint64_t next = 0;
  for (;;) {
    config::Config c = configure(Layout{.data = 1, .arch = seed % 2 == 0 ? Arch::gpt2 : Arch::llama, .micro_batch = 4});
    c.model.n_layer = 3;
    c.model.n_kv_head = c.model.arch == Arch::llama ? 4 : 24;
    c.parallel.strategy = "autoddl";
    c.parallel.axes = seed % 5 == 0 ? std::vector<int64_t>{4} : std::vector<int64_t>{2, 2};
    const auto word = [&](const char* letters) {
      std::string tags;
      for (size_t i = 0; i < c.parallel.axes.size(); ++i)
        tags += letters[philox_at(key, next++) % std::string_view(letters).size()];
      return tags;
    };
    for (int64_t layer = 0; layer < 3; ++layer) {
      config::LayerTags tags{.layers = 1};
      for (const config::TagMember& member : config::kTagMembers) tags.*member.member = word(member.letters);
      c.parallel.layer.push_back(tags);
    }
    c.parallel.head = word(config::kSpreadLetters);
    c.parallel.table = word(config::kTableLetters);
    if (config::layout_fits(c)) return c;
  }
}

TEST(Autoddl, SendsWhatWasPredictedInRandomLegalLayouts) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const config::Config c = random_tags(seed);
    SCOPED_TRACE(format("seed {}: {}", seed, config::to_toml(config::Value(c.parallel.layer))));
    const Result many = train(c, DType::f64, 2), one = train(on_one_rank(c), DType::f64, 2);
    expect_same_gradients(many.gradients, one.gradients, 1e-12);
    expect_predicted_bytes(many, 2);
  }
}

TEST(TaggedNumbers, StayNearOneRankInSinglePrecision) {
  for (const size_t index : {1, 2, 6}) {
    SCOPED_TRACE(kTables[index]);
    config::Config c = configure(kTables[index], Arch::gpt2);
    c.model.init_std = 0.02;
    const Result one = train(on_one_rank(c), DType::f32, 10), many = train(c, DType::f32, 10, by(kTables[index]));
    expect_same_gradients(many.gradients, one.gradients, 1e-5);
    EXPECT_NEAR(many.losses[9], one.losses[9], 1e-6 * one.losses[9]);
  }
}

TEST(TaggedGeneration, ContinuesAsOneRankDoes) {
  for (const size_t index : {1, 2, 4, 6}) {
    SCOPED_TRACE(kTables[index]);
    const config::Config c = configure(kTables[index], Arch::llama);
    const auto logits_of = [](Tiny& run) {
      model::Transformer::Cache cache(run.device, run.trainer.model());
      Arena heap(run.device, Arena::Mode::heap);
      Meter meter;
      Exec ex{run.device, heap, meter};
      std::vector<double> all;
      for (std::vector<int32_t> ids : {std::vector<int32_t>{3, 1, 4, 1, 5}, {9}, {2}}) {
        const auto n = static_cast<int64_t>(ids.size());
        const Tensor tokens{reinterpret_cast<std::byte*>(ids.data()), {n}, DType::i32};
        const Scratch out = run.trainer.model().extend(
            ex, {.ids = tokens, .sequences = 1, .seq_len = n, .first_position = cache.used}, cache);
        for (int64_t v = 0; v < kTinyVocab; ++v) all.push_back(out.tensor().as<double>()[v]);
      }
      return all;
    };
    Tiny alone(on_one_rank(c), DType::f64, 1);
    const std::vector<double> expected = logits_of(alone);
    comm::run_on_threads(static_cast<int>(c.parallel.tensor), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f64, std::make_unique<device::CpuDevice>(1), {}, by(kTables[index]).factory);
      EXPECT_LE(distance(logits_of(run), expected), 1e-12);
    });
  }
}

TEST(TaggedRules, NameWhatDoesNotDivideAndWhatWould) {
  const auto first_broken = [](const Table& table, const config::Config& c) -> std::string {
    for (const config::LayoutRule& rule : parallel::tag_rules(shape_of(table, 1), table.tags, c))
      if (!rule.holds) return rule.text;
    return "";
  };
  for (const Table& table : kTables)
    for (const Arch arch : {Arch::gpt2, Arch::llama}) EXPECT_EQ(first_broken(table, configure(table, arch)), "");
  const Table& optimus = kTables[1];
  const auto broken = [&](const std::function<void(config::Config&, Table&)>& change) {
    Table table = optimus;
    config::Config c = configure(table, Arch::llama);
    change(c, table);
    return first_broken(table, c);
  };
  EXPECT_EQ(
      broken([](auto& c, auto&) { c.model.d_ff = 71; }),
      "blocks.0: d_ff = 71 does not divide over 2 ranks along col, which cut columns between up and down; 70 or 72 "
      "fits");
  EXPECT_EQ(broken([](auto& c, auto&) { c.train.micro_batch = 3; }),
            "blocks.0: micro_batch = 3 does not divide over 2 ranks along row, which share out whole sequences; 2 or 4 "
            "fits");
  EXPECT_EQ(
      broken([](auto& c, auto&) { c.model.n_kv_head = 3; }),
      "blocks.0: n_kv_head = 3 heads neither divide over the 2 ranks along col nor are they as many as the groups "
      "that outer axes of these make");
  EXPECT_EQ(
      broken([](auto&, auto& table) { table.tags.last = "-c"; }),
      "the table is in flat pieces along row: at the head its ranks do not all have rows of their own, which are cut "
      "along no axis");
  EXPECT_EQ(broken([](auto& c, auto& table) {
              table.tags.last = "rr";
              table.tags.vocab = "--";
              c.model.tie_embeddings = true;
            }),
            "one table for embedding and head, beside rows cut along row at the one and along row+col at the other; "
            "tie_embeddings = false has two");
  EXPECT_EQ(broken([](auto&, auto& table) { table.tags.layers.pop_back(); }), "tags of 1 layers for n_layer = 2");
}

}  // namespace
}  // namespace trainer::tests
