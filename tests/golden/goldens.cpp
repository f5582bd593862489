#include "golden/goldens.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "checkpoint/param_slices.h"
#include "rigs/tiny.h"

namespace trainer::goldens {
namespace {

using config::Arch;
using config::Recompute;
using tests::kTinyVocab;
using tests::Tiny;

constexpr int64_t kSteps = 2;

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
uint64_t mix(std::string_view text) {
  uint64_t hash = 0;
  for (const char c : text) hash = mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}
uint64_t bits_of(const Tensor& t, int64_t i) {
  uint64_t bits = 0;
  std::memcpy(&bits, t.data + i * size_of(t.dtype), static_cast<size_t>(size_of(t.dtype)));
  return bits;
}

/// A sum over elements of hashes of (tensor, global index, bits): the same however ranks share the tensors.
uint64_t hash_of(const checkpoint::TensorSlice& slice) {
  const uint64_t name = mix(slice.name);
  uint64_t sum = 0;
  for (const mesh::Run& run : slice.runs)
    for (int64_t i = 0; i < run.length; ++i)
      sum += mix(mix(name + static_cast<uint64_t>(run.global + i)) ^ bits_of(slice.local, run.local + i * run.stride));
  return sum;
}

uint64_t over_ranks(comm::World& world, uint64_t own) {
  uint64_t sum = 0;
  for (const std::string& each : world.control().gather(format("{}", own))) sum += std::stoull(each);
  return sum;
}

std::string state_hash(comm::World& world, Tiny& run) {
  uint64_t own = 0;
  for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), true))
    own += hash_of(slice);
  return format("{:016x}", over_ranks(world, own));
}

std::string gradient_hash(comm::World& world, Tiny& run) {
  uint64_t own = 0;
  for (const params::Param& param : run.trainer.store().params()) {
    if (!param.primary) continue;
    const params::Group& group = run.trainer.store().groups()[static_cast<size_t>(param.group)];
    own += hash_of({param.name, param.shape, group.grad.range(group.owned.begin, group.owned.count),
                    mesh::clip_runs(param.runs, group.owned.begin, group.owned.count), nullptr});
  }
  return format("{:016x}", over_ranks(world, own));
}

std::string counts(Tiny& run, const std::map<CommKey, CommCount>& counted) {
  std::string text;
  for (const auto& [key, count] : counted)
    if (key.axes != mesh::kControlAxes && count.calls > 0)
      text += format("{}{}.{}.{}={}/{}/{}", text.empty() ? "" : " ", run.trainer.store().mesh_shape().name_of(key.axes),
                     name_of(key.op), name_of(key.dtype), count.calls, count.elements, count.wire_bytes);
  return text.empty() ? "none" : text;
}

/// Returns Σ of the losses of a batch, some of whose rows are masked.
double masked_loss(Tiny& run) {
  data::TokenBatch batch;
  run.batches(40, run.trainer.micro_batch(), batch);
  for (size_t r = 0; r < batch.weights.size(); ++r) batch.weights[r] = r % 5 == 1 ? 0 : 1;
  return run.trainer.loss_sum(batch);
}

std::string logits_hash(Tiny& run) {
  model::Transformer::Cache cache(run.device, run.trainer.model());
  Arena heap(run.device, Arena::Mode::heap);
  Meter meter;
  Exec ex{run.device, heap, meter};
  uint64_t hash = 0;
  for (std::vector<int32_t> ids : {std::vector<int32_t>{3, 1, 4, 1, 5}, {9}, {2}}) {
    const auto n = static_cast<int64_t>(ids.size());
    const Tensor tokens{reinterpret_cast<std::byte*>(ids.data()), {n}, DType::i32};
    const Scratch out = run.trainer.model().extend(ex, {.ids = tokens, .sequences = 1, .seq_len = n}, cache);
    for (int64_t v = 0; v < kTinyVocab; ++v) hash = mix(hash ^ bits_of(out, v));
  }
  return format("{:016x}", hash);
}

struct Shape {
  int64_t tensor, data;
  bool sequence_parallel;
  Arch arch;
  int64_t micro_batch, kv_heads, zero_stage;
  bool tied;
  double dropout;
  std::vector<int64_t> grid = {};  // AxoNN-4D's, instead of `tensor`
  std::vector<int64_t> mesh = {};  // Optimus-2D's
  config::Panels panels = config::Panels::ring;
  config::Stationary stationary = config::Stationary::automatic;
};

config::Config configure(const Shape& s) {
  config::Config c = tests::tiny_config(s.arch);
  c.model.n_head = 24;
  c.model.n_kv_head = s.kv_heads;
  c.model.d_model = 48;
  c.model.d_ff = 72;
  c.model.seq_len = 24;
  c.model.vocab_multiple = 48;  // with a vocabulary of 37, eight ranks have shards with one token and with none
  c.model.tie_embeddings = s.tied;
  c.model.dropout = s.dropout;
  c.train.micro_batch = s.micro_batch;
  c.train.global_batch = 2 * s.micro_batch * s.data;
  c.optim.grad_clip = 0.1;
  c.parallel.tensor = s.tensor;
  c.parallel.data = s.data;
  c.parallel.sequence_parallel = s.sequence_parallel;
  c.parallel.zero_stage = s.zero_stage;
  if (!s.grid.empty()) {
    c.parallel.strategy = config::StrategyName::axonn_4d;
    c.parallel.grid = s.grid;
  }
  if (!s.mesh.empty()) {
    c.parallel.strategy = config::StrategyName::optimus_2d;
    c.parallel.mesh = s.mesh;
    c.parallel.panels = s.panels;
    c.parallel.stationary = s.stationary;
  }
  return c;
}

/// Returns the name of the case without recomputation: "NAME/TYPE" for "NAME/TYPE/full".
std::string plain_of(const std::string& name) { return name.substr(0, name.find('/', name.find('/') + 1)); }

}  // namespace

std::vector<Case> cases() {
  // With four sequences, an all-reduce of activations is large enough to use a ring instead of a gather.
  constexpr bool kTied = true, kSp = true;
  const std::pair<const char*, Shape> shapes[] = {
      {"serial_gpt2", {1, 1, kSp, Arch::gpt2, 2, 24, 0, kTied, 0.1}},
      {"serial_llama", {1, 1, kSp, Arch::llama, 2, 2, 0, !kTied, 0}},
      {"data2", {1, 2, kSp, Arch::gpt2, 1, 24, 0, !kTied, 0.1}},
      {"data3_zero", {1, 3, kSp, Arch::llama, 1, 2, 1, kTied, 0.1}},
      {"tensor2", {2, 1, !kSp, Arch::gpt2, 4, 24, 0, kTied, 0.1}},
      {"tensor2_sp", {2, 1, kSp, Arch::gpt2, 4, 24, 0, kTied, 0.1}},
      {"tensor3_sp_llama", {3, 1, kSp, Arch::llama, 1, 3, 0, !kTied, 0}},
      {"tensor4_sp", {4, 1, kSp, Arch::gpt2, 2, 24, 0, !kTied, 0.1}},
      {"tensor4_llama_kv2", {4, 1, !kSp, Arch::llama, 2, 2, 0, kTied, 0.1}},
      {"tensor4_sp_kv2", {4, 1, kSp, Arch::gpt2, 1, 2, 0, kTied, 0}},
      {"tensor2_data2_zero_sp", {2, 2, kSp, Arch::llama, 2, 2, 1, !kTied, 0.1}},
      {"tensor2_data2", {2, 2, !kSp, Arch::gpt2, 1, 24, 0, kTied, 0.1}},
      {"tensor8_data2_sp_kv2", {8, 2, kSp, Arch::llama, 1, 2, 0, !kTied, 0.1}},
      {"grid2x2x2", {1, 1, !kSp, Arch::gpt2, 4, 24, 0, kTied, 0.1, {2, 2, 2}}},
      {"grid4x1x2_llama_kv2", {1, 1, !kSp, Arch::llama, 2, 2, 0, !kTied, 0.1, {4, 1, 2}}},
      {"grid1x3x1_data2_zero", {1, 2, !kSp, Arch::gpt2, 2, 24, 1, !kTied, 0.1, {1, 3, 1}}},
      {"mesh2x2", {1, 1, !kSp, Arch::gpt2, 4, 24, 0, kTied, 0.1, {}, {2, 2}}},
      {"mesh2x2_gather", {1, 1, !kSp, Arch::gpt2, 4, 24, 0, kTied, 0.1, {}, {2, 2}, config::Panels::gather}},
      {"mesh3x3_llama_kv3", {1, 1, !kSp, Arch::llama, 3, 3, 0, !kTied, 0.1, {}, {3, 3}}},
      {"mesh4x4_paper_llama_kv2",
       {1, 1, !kSp, Arch::llama, 4, 2, 0, !kTied, 0, {}, {4, 4}, config::Panels::ring, config::Stationary::paper}},
      {"mesh2x2x2_zero", {1, 1, !kSp, Arch::gpt2, 4, 24, 1, !kTied, 0.1, {}, {2, 2, 2}}},
  };
  std::vector<Case> all;
  for (const auto& [name, shape] : shapes)
    for (const DType compute : {DType::f64, DType::f32, DType::bf16})
      for (const auto& [recompute, suffix] :
           {std::pair{Recompute::none, ""}, {Recompute::selective, "/selective"}, {Recompute::full, "/full"}}) {
        Case one{format("{}/{}{}", name, name_of(compute), suffix), configure(shape), compute};
        one.config.train.recompute = recompute;
        all.push_back(std::move(one));
      }
  return all;
}

Aspects run_case(comm::World& world, const Case& which) {
  Tiny run(&world, which.config, which.compute, 1, instruction_set());
  Aspects found;
  run.trainer.meter().reset();
  std::string losses, norms;
  for (int64_t n = 1; n <= kSteps; ++n) {
    const auto outcome = run.step(n);
    losses += format("{}{:a}", n > 1 ? " " : "", outcome.loss);
    norms += format("{}{:a}", n > 1 ? " " : "", outcome.norm.norm);
    if (n == 1) found["gradients"] = gradient_hash(world, run);
  }
  found["losses"] = losses;
  found["norms"] = norms;
  found["sent"] = counts(run, run.trainer.meter().comm());
  found["state"] = state_hash(world, run);
  run.trainer.meter().reset();
  found["masked"] = format("{:a}", masked_loss(run));
  found["sent_evaluating"] = counts(run, run.trainer.meter().comm());
  if (which.config.parallel.data == 1) found["logits"] = logits_hash(run);
  return world.first() ? found : Aspects();
}

device::Isa instruction_set() {
  const char* requested = std::getenv("TRAINER_ISA");
  return requested == nullptr || *requested == '\0' ? device::Isa::plain : device::detect_isa();
}

std::string library_hash() {
  uint64_t hash = 0;
  const auto add = [&](double x) {
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    hash = mix(hash ^ bits);
  };
  for (int i = 1; i <= 4096; ++i) add(std::exp(-i * 0x1.91p-9));
  for (int i = 1; i <= 16; ++i) {
    add(std::pow(0.9, i));
    add(std::pow(0.95, i));
  }
  return format("{:016x}", hash);
}

Goldens read(const std::string& path) {
  Goldens goldens;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string name, aspect, value;
    words >> name >> aspect >> std::ws;
    std::getline(words, value);
    goldens[name][aspect] = value;
  }
  return goldens;
}

Aspects expected(const Goldens& goldens, const std::string& name) {
  Aspects all;
  for (const std::string& each : {name, plain_of(name)})
    if (goldens.contains(each)) all.insert(goldens.at(each).begin(), goldens.at(each).end());
  return all;
}

void write(const std::string& path, const Goldens& goldens) {
  std::ofstream file(path);
  file << "# What training computes (tests/golden/goldens.h). Written by TRAINER_WRITE_GOLDENS=this file; a commit "
          "that\n"
          "# changes a line says why.\n";
  for (const auto& [name, aspects] : goldens) {
    const Aspects shared = plain_of(name) == name ? Aspects() : goldens.at(plain_of(name));
    for (const auto& line : aspects)
      if (!shared.contains(line.first) || shared.at(line.first) != line.second)
        file << name << ' ' << line.first << ' ' << line.second << '\n';
  }
}

std::string golden_file(const std::string& source_dir) {
  const char* given = std::getenv("TRAINER_GOLDENS");
  return given != nullptr && *given != '\0' ? given : source_dir + "/tests/golden/layouts.txt";
}

}  // namespace trainer::goldens
