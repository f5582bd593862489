// Random legal sharding specs have the gradients of one rank and send the predicted bytes.
#include <algorithm>
#include <cstdlib>

#include "config/keys.h"
#include "config/layouts.h"
#include "config/sharding_spec.h"
#include "config/text.h"
#include "parallel/row_order.h"
#include "rigs/layout_checks.h"
#include "rigs/megatron.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Config;
using config::LayerSpec;

/// Returns random legal tables for three layers on 4 or 2 x 2 ranks, some with further axes of one rank.
Config random_tables(uint64_t seed) {
  const PhiloxKey key = philox_key(seed, "tags");
  uint64_t next = 0;
  for (;;) {
    Config c = configure(MegatronLayout{.data = 1, .arch = seed % 2 == 0 ? Arch::gpt2 : Arch::llama, .micro_batch = 4});
    c.model.n_layer = 3;
    c.model.n_kv_head = c.model.arch == Arch::llama ? 4 : 24;
    c.parallel.strategy = config::StrategyName::autoddl;
    constexpr int64_t kAxes[][6] = {{4, 0}, {2, 2, 0}, {1, 2, 1, 2, 1, 0}, {2, 2, 0}, {2, 1, 1, 1, 1, 2}};
    c.parallel.axes.clear();
    for (const int64_t extent : kAxes[seed % 5])
      if (extent > 0) c.parallel.axes.push_back(extent);
    const auto word = [&](const char* letters) {
      std::string spec;
      for (size_t i = 0; i < c.parallel.axes.size(); ++i)
        spec += letters[philox_at(key, next++) % std::string_view(letters).size()];
      return spec;
    };
    for (int64_t layer = 0; layer < 3; ++layer) {
      LayerSpec spec{.layers = 1};
      for (const config::SpecMember& member : config::kSpecMembers)
        if (member.letters != nullptr) spec.*member.member = word(member.letters);
      // If ranks share sequences, all layers split the rows of attention in the same way.
      if (const std::string& first = c.parallel.layer.empty() ? spec.attention : c.parallel.layer.front().attention;
          first.find('s') != std::string::npos)
        spec.attention = first;
      else
        std::ranges::replace(spec.attention, 's', 'r');
      c.parallel.layer.push_back(spec);
    }
    c.parallel.context_kv = seed % 3 == 0 ? config::Panels::gather : config::Panels::ring;
    c.parallel.head = word(config::kSpreadLetters);
    c.parallel.table = word(config::kTableLetters);
    if (config::layout_fits(c)) return c;
  }
}

// RANDOM_LAYOUTS=700 tries that many.
TEST(RandomTables, SendWhatWasPredicted) {
  const char* const requested = std::getenv("RANDOM_LAYOUTS");
  const uint64_t count = requested == nullptr ? 24 : std::strtoull(requested, nullptr, 10);
  uint64_t shared = 0;  // layouts in which ranks share sequences
  for (uint64_t seed = 0; seed < count; ++seed) {
    Config c = random_tables(seed);
    c.parallel.cache_layers = static_cast<int64_t>(seed % 4);
    SCOPED_TRACE(format("seed {}: {}", seed, config::to_toml(config::find_key("parallel", "layer")->get(c))));
    shared += parallel::RowOrder::segments(config::sharding_on(c, ranks_of(c))) > 1;
    const Result many = train(c, DType::f64, 2);
    expect_same_gradients(many.gradients, train(on_one_rank(c), DType::f64, 2).gradients, 1e-12);
    expect_predicted_bytes(many, 2);
  }
  EXPECT_GE(shared, count / 8);
}

}  // namespace
}  // namespace trainer::tests
