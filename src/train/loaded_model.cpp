#include "train/loaded_model.h"

#include "config/load.h"
#include "train/run_state.h"

namespace trainer::train {
namespace {

config::Compute compute_named(const std::string& name, const std::filesystem::path& folder) {
  if (name == name_of(DType::bf16)) return config::Compute::bf16;
  if (name == name_of(DType::f32)) return config::Compute::fp32;
  if (name == name_of(DType::f64)) return config::Compute::fp64;
  throw Error(Code::checkpoint, format("{}: compute type \"{}\", expected bf16, fp32 or fp64", folder.string(), name));
}

int64_t vocabulary(const checkpoint::Snapshot& header, const std::filesystem::path& folder) {
  const auto it = header.model_keys.find("vocab_size");
  if (it == header.model_keys.end())
    throw Error(Code::checkpoint, format("{}: the manifest does not say vocab_size", folder.string()));
  return std::stoll(it->second);
}

}  // namespace

LoadedModel load_model(comm::World& world, const std::filesystem::path& path, int threads) {
  const checkpoint::Reader reader(path);
  const checkpoint::Snapshot& header = reader.header();
  LoadedModel loaded;
  loaded.folder = reader.folder();
  loaded.step = header.state.step;
  loaded.config =
      config::load_text(header.config_toml, (reader.folder() / "config.toml").string(), {}, {.files = false});
  loaded.config.precision.compute = compute_named(header.compute, reader.folder());
  if (threads > 0) loaded.config.run.threads = threads;
  loaded.config.parallel.tensor = 1;
  loaded.config.parallel.data = world.size();
  loaded.tokenizer_hash = header.tokenizer_hash;
  if (!header.tokenizer.empty())
    loaded.tokenizer.emplace(
        data::Tokenizer::from_bytes(header.tokenizer, (reader.folder() / "tokenizer.model").string()));
  loaded.machine = choose_machine(loaded.config, world);
  const int64_t vocab = vocabulary(header, reader.folder());
  require_memory(plan_run(loaded.config, vocab, loaded.machine, false), loaded.config, vocab, loaded.machine);
  loaded.device = std::make_unique<device::CpuDevice>(loaded.machine.threads, loaded.machine.isa);
  loaded.trainer =
      std::make_unique<Trainer>(*loaded.device, world, loaded.config, vocab, loaded.machine.compute, false);
  load_weights(*loaded.trainer, reader);
  loaded.trainer->plan();
  return loaded;
}

}  // namespace trainer::train
