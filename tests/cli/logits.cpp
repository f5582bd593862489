// Writes a checkpoint's logits at every position of a text, for comparison with a different program:
//   logits CHECKPOINT TOKENS OUTPUT
// The file TOKENS has at most seq_len int32 numbers; OUTPUT will have [tokens, vocabulary] in fp32.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "run/loaded_model.h"

#include "config/layout_choices.h"
#include "tensor/host_copy.h"

using namespace trainer;

namespace {

std::vector<int32_t> read_tokens(const char* path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
  std::copy_n(bytes.data(), tokens.size() * sizeof(int32_t), reinterpret_cast<char*>(tokens.data()));
  return tokens;
}

void write_logits(comm::World& world, const char* checkpoint, const std::vector<int32_t>& tokens, std::ofstream out) {
  run::LoadedModel loaded = run::load_model(world, checkpoint, config::generation_layouts);
  train::ModelRunner& runner = *loaded.runner;
  model::Transformer::Cache cache(runner.device(), runner.model());
  Buffer id(runner.device(), "data", {1}, DType::i32);
  const auto extend = [&](Exec& ex) {
    return runner.model().extend(ex, {.ids = id.tensor(), .sequences = 1, .seq_len = 1}, cache);
  };
  Meter nobodys;
  runner.record(
      "logits", [&](Exec& ex) { cache.used = 0, extend(ex); }, nobodys);
  cache.used = 0;
  runner.arena().seal();
  for (const int32_t token : tokens) {
    Exec ex = runner.exec();
    runner.device().copy_to_device(id.tensor().data, &token, sizeof token);
    runner.begin(ex, "logits");
    {
      const Scratch logits = extend(ex);
      const HostCopy host(ex.device, logits);
      const Tensor row = host.tensor();
      TRAINER_CHECK(row.dtype == DType::f32, "logits are {}", name_of(row.dtype));
      out.write(reinterpret_cast<const char*>(row.data), runner.vocab() * size_of(DType::f32));
    }
    runner.end();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    comm::run_on_threads(1, {}, [&](comm::World& world) {
      write_logits(world, argv[1], read_tokens(argv[2]), std::ofstream(argv[3], std::ios::binary));
    });
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_status(error.code());
  }
  return 0;
}
