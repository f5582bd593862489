// Whole models under tables of tags: beside one rank, beside Megatron-1D, beside themselves, and bytes.
#include "parallel/tagged.h"
#include "parallel/megatron1d.h"
#include "unit/train/megatron.h"

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
    const auto expect_predicted = [](Result result) {
      for (auto& [axis, operations] : result.predicted)
        for (auto& [operation, bytes] : operations) bytes *= 2;
      EXPECT_EQ(result.measured, result.predicted);
    };
    expect_predicted(usual);
    config::Config other = c;
    other.debug.overlap = false;
    expect_same_bits(train(other, compute, 2, by(GetParam(), {.delay = 0.0005})), usual);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      other = c;
      other.train.recompute = recompute;
      const Result again = train(other, compute, 2, by(GetParam()));
      expect_same_bits(again, usual);
      expect_predicted(again);
    }
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

}  // namespace
}  // namespace trainer::tests
