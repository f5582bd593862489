// Ranks that share sequences, as keys of [parallel]: how many exchange heads, what the log says, and the layouts that
// the program chooses itself.
#include "config/context.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/format.h"
#include "config/layout_choices.h"
#include "config/layouts.h"
#include "config/load.h"
#include "config/sharding_spec.h"
#include "config/strategies.h"

namespace trainer::config {
namespace {

using Sets = std::vector<std::string>;

Config configure(const Sets& sets) {
  return load_text(
      "[model]\nn_layer = 2\nn_head = 8\nd_model = 64\nd_ff = 128\nvocab_multiple = 64\nseq_len = 64\n"
      "[train]\nglobal_batch = 16\nmicro_batch = 4\n",
      "context.toml", sets, {.files = false, .warns = false, .plans = true});
}

Config shared(int64_t heads, int64_t kv, int64_t ranks, int64_t length = 1 << 20) {
  Config c;
  c.model.n_head = heads;
  c.model.n_kv_head = kv;
  c.model.seq_len = length;
  c.parallel.context = ranks;
  return c;
}

TEST(ContextHeads, SendTheFewestBytes) {
  struct Row {
    int64_t heads, kv, expected[6];  // on 2, 4, 8, 16, 32 and 64 ranks
  };
  for (const auto& [heads, kv, expected] : {Row{12, 12, {2, 4, 4, 4, 4, 4}},
                                            {12, 0, {2, 4, 4, 4, 4, 4}},  // 0: as many as query heads
                                            {32, 8, {1, 4, 8, 16, 32, 32}},
                                            {64, 8, {1, 1, 8, 16, 32, 64}},
                                            {32, 1, {1, 1, 1, 1, 32, 32}}})
    for (int i = 0; i < 6; ++i)
      EXPECT_EQ(context_heads(shared(heads, kv, 2 << i)), expected[i]) << heads << "/" << kv << " on " << (2 << i);
}

TEST(ContextHeads, AreTheGivenOnesOrOnesThatFit) {
  Config given = shared(12, 12, 8);
  given.parallel.context_heads = 1;
  EXPECT_EQ(context_heads(given), 1);
  EXPECT_EQ(context_heads(shared(12, 4, 2)), 2) << "equal bytes: the larger number";
  EXPECT_EQ(context_heads(shared(24, 6, 8)), 2) << "4 and 8 ranks can neither split nor share 6 key heads";
  EXPECT_EQ(context_heads(shared(32, 8, 2, 1001)), 2) << "two ranks cannot split 1001 tokens into 4 segments";
  EXPECT_EQ(context_heads(shared(64, 8, 4, 12)), 2) << "four cannot split 12 tokens into 8";
}

TEST(ContextLengths, AreTheNearestThatTheMostRanksCanShare) {
  const auto text = [](int64_t length, int64_t devices) { return nearest_lengths(shared(8, 8, 1, length), devices); };
  EXPECT_EQ(text(100000, 64),
            "parallel.context: seq_len = 100000 cannot be split into 2 x 64 equal segments; use seq_len = 99968 or "
            "100096");
  EXPECT_EQ(text(100000, 8), "") << "16 segments of 6250 tokens";
  EXPECT_EQ(text(100001, 8), text(100001, 8 * 101)) << "101 ranks would have fewer than 1024 tokens each";
  EXPECT_NE(text(100001, 8).find("2 x 8 equal segments; use seq_len = 100000 or 100016"), std::string::npos);
  EXPECT_EQ(text(1001, 8), "") << "too short to be shared in a search";
  EXPECT_EQ(text(100001, 1), "");
  Config given = shared(8, 8, 1, 100001);
  given.origins["parallel.context"] = {};
  EXPECT_EQ(nearest_lengths(given, 8), "") << "the layout's own message says it";
}

TEST(ContextText, NamesTheFactorsTheExchangeAndTheSizes) {
  struct Case {
    Sets sets;
    const char *text, *sizes;
  };
  for (const auto& [sets, text, sizes] : {
           Case{{"parallel.tensor=2"}, "", ""},
           {{"parallel.strategy=fsdp", "parallel.shards=4", "parallel.context=4", "parallel.context_heads=4"},
            "",
            "4 sequences of 64 tokens per replica, 64 tokens per rank"},
           {{"parallel.strategy=fsdp", "parallel.shards=4", "parallel.context=4", "parallel.context_heads=1",
             "parallel.context_kv=ring"},
            " (ring)",
            "4 sequences of 64 tokens per replica, 64 tokens per rank"},
           {{"parallel.strategy=fsdp", "parallel.shards=16", "parallel.context=16", "parallel.context_heads=8",
             "parallel.context_kv=gather"},
            " (heads 8 x tokens 2, gather)",
            "4 sequences of 64 tokens per replica, 16 tokens per rank"},
           {{"parallel.strategy=fsdp", "parallel.shards=8", "parallel.context=4", "parallel.context_heads=2"},
            " (heads 2 x tokens 2)",
            "4 sequences of 64 tokens per replica, 32 tokens per rank"},
           {{"parallel.tensor=8", "parallel.context=8", "parallel.context_kv=ring", "parallel.sequence_parallel=true",
             "model.seq_len=1048576", "train.micro_batch=1"},
            " (ring)",
            "1 sequence of 1048576 tokens per replica, 131072 tokens per rank"},
           {{"parallel.strategy=optimus-2d", "parallel.mesh=[2, 2, 2]", "parallel.context=2",
             "parallel.context_kv=gather"},
            " (gather)",
            "4 sequences of 64 tokens per replica, 64 tokens per rank"},
           {{"parallel.strategy=axonn-4d", "parallel.grid=[1, 2, 4]", "parallel.context=2",
             "parallel.context_kv=gather"},
            " (gather)",
            "4 sequences of 64 tokens per replica, 64 tokens per rank"},
       }) {
    const Config c = configure(sets);
    EXPECT_EQ(context_text(c), text) << layout_text(c);
    const std::string line = format("context {}{}: {}", c.parallel.context, text, sizes);
    EXPECT_EQ(context_line(c), c.parallel.context == 1 ? "" : line) << layout_text(c);
  }
}

/// Returns the values of panels and context_kv among which the memory decides, as "gather ring".
Sets choices_of(const Config& config) {
  static constexpr const char* kNames[] = {"auto", "gather", "ring"};
  const auto name = [](Panels value) { return kNames[static_cast<size_t>(value)]; };
  Sets all;
  Config chosen = config;
  for (const Parallel& parallel : choices_by_memory(config)) {
    chosen.parallel = parallel;
    all.push_back(format("{} {}", name(parallel.panels), name(parallel.context_kv)));
    const bool ring = sharding_of(chosen).layers.front().context.schedule == sharding::Transfer::ring;
    EXPECT_EQ(ring, parallel.context_kv == Panels::ring) << all.back();
  }
  return all;
}

TEST(ContextChoices, AreAGatherUnlessMemoryDecidesOrNothingOverlapsIt) {
  struct Case {
    Sets sets, expected;
  };
  const Sets fsdp = {"parallel.strategy=fsdp", "parallel.shards=4", "parallel.context=4"};
  const auto with = [](Sets sets, const Sets& more) {
    sets.insert(sets.end(), more.begin(), more.end());
    return sets;
  };
  const Sets square = {"parallel.strategy=optimus-2d", "parallel.mesh=[2, 2]"};
  for (const auto& [sets, expected] : {
           Case{with(fsdp, {"parallel.context_heads=1"}), {"auto gather", "auto ring"}},
           {with(fsdp, {"parallel.context_heads=1", "parallel.context_kv=gather"}), {"auto gather"}},
           {with(fsdp, {"parallel.context_heads=1", "model.n_kv_head=1"}), {"auto ring"}},
           {with(fsdp, {"parallel.context_heads=2", "model.n_kv_head=4"}), {"auto gather", "auto ring"}},
           {with(fsdp, {"parallel.context_heads=2", "model.n_kv_head=2"}), {"auto ring"}},
           {with(fsdp, {"parallel.context_heads=4"}), {"auto auto"}},
           {{"parallel.tensor=4", "parallel.context=2", "model.n_kv_head=4"}, {"auto ring"}},
           {{"parallel.tensor=2", "parallel.context=2"}, {"auto gather", "auto ring"}},
           {{"parallel.tensor=2"}, {"auto auto"}},
           {square, {"gather auto", "ring auto"}},
           {with(square, {"parallel.context=2"}), {"gather gather", "gather ring", "ring gather", "ring ring"}},
       })
    EXPECT_EQ(choices_of(configure(sets)), expected) << layout_text(configure(sets));

  Config tables = configure({"parallel.tensor=2", "parallel.context=2"});
  set_tables(tables, sharding_of(tables));
  EXPECT_EQ(tables.parallel.context_kv, Panels::gather);
  tables.parallel.context_kv = Panels::automatic;
  EXPECT_EQ(choices_of(tables), (Sets{"auto gather", "auto ring"}));
}

TEST(ContextChoices, OfEvaluationAndGenerationShareNoSequencesExceptTheLayoutOfTheRun) {
  struct Case {
    Sets sets;
    const char* own;
  };
  for (const Case& one :
       {Case{{"parallel.tensor=2", "parallel.context=2"}, "2 x context = 2 x tensor = 2"},
        {{"parallel.strategy=fsdp", "parallel.shards=4", "parallel.context=2", "parallel.context_heads=1"},
         "2 x shards = 4"}}) {
    Config c = configure(one.sets);
    const Config trained = c;
    const auto texts = [&](const std::vector<Parallel>& layouts) {
      Sets all;
      for (const Parallel& layout : layouts) {
        c.parallel = layout;
        all.push_back(format("{} x {}", layout.data, replica_text(c)));
        EXPECT_EQ(layout.context, all.back() == one.own ? 2 : 1) << all.back();
      }
      return all;
    };
    EXPECT_EQ(texts(replica_layouts(trained, 8)),
              (Sets{"8 x tensor = 1", one.own, "4 x tensor = 2", "2 x tensor = 4", "1 x tensor = 8"}));
    EXPECT_EQ(texts(generation_layouts(trained, 8)), (Sets{"1 x tensor = 8", one.own}));
  }
}

}  // namespace
}  // namespace trainer::config
