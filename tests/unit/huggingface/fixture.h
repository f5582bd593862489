#pragma once
// Checkpoints and exported folders of small models, whose values are functions of tensor and index.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/model_keys.h"
#include "config/families.h"
#include "config/load.h"
#include "config/text.h"
#include "huggingface/float_types.h"
#include "huggingface/safetensors.h"
#include "unit/checkpoint/fixture.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;
using checkpoint::content_of;
using checkpoint::TempFolder;
using checkpoint::write;
using tests::expect_error;
using tests::expect_parts;

constexpr int64_t kVocab = 29;

/// Families with experts have 5 of width 32, and qwen2_moe a shared one of width 48.
inline config::Config config_of(const std::vector<std::string>& sets) {
  std::vector<std::string> all{"model.n_layer=2",     "model.n_head=6",        "model.d_model=24", "model.seq_len=10",
                               "model.norm_eps=3e-6", "model.init_std=0.0123", "model.dropout=0.1"};
  const auto given = [&](std::string_view text) {
    return std::ranges::any_of(sets, [&](const std::string& set) { return set.starts_with(text); });
  };
  const bool experts = std::ranges::any_of(config::families(), [&](const config::Family& family) {
    return family.facts.experts && std::ranges::count(sets, format("model.arch={}", family.name)) > 0;
  });
  if (!experts || given("model.moe_every=")) all.emplace_back("model.d_ff=40");
  if (experts) all.insert(all.end(), {"model.n_expert=5", "model.d_expert=32"});
  if (given("model.arch=qwen2_moe")) all.emplace_back("model.d_shared=48");
  all.insert(all.end(), sets.begin(), sets.end());
  return config::load_text("", "x", all, {.files = false});
}
inline config::Config gpt2() { return config_of({"model.arch=gpt2"}); }
inline config::Config llama() { return config_of({"model.arch=llama", "model.n_kv_head=3", "model.rope_theta=5e5"}); }

/// Returns a value that identifies tensor and index; exact in fp32, not in bf16.
inline float value_of(const std::string& tensor, int64_t index) {
  const auto name = static_cast<int64_t>(std::hash<std::string>{}(tensor) % 4093);
  return static_cast<float>(name * 4096 + index % 4096) * 0x1p-22f - 2.0f;
}

/// Returns the shapes of this program's tensors, from the definition of the model.
inline std::map<std::string, Shape> shapes_of(const config::Model& m) {
  const bool is_gpt2 = m.arch == config::Arch::gpt2, plain = is_gpt2 || m.arch == config::Arch::gpt_neox;
  const int64_t d = m.d_model, head = m.head_dim > 0 ? m.head_dim : d / m.n_head, queries = head * m.n_head,
                kv = head * m.n_kv_head;
  std::map<std::string, Shape> shapes{{"wte", {kVocab, d}}};
  const auto norm = [&](const std::string& name) {
    shapes[name + ".gain"] = {d};
    if (m.bias.value()) shapes[name + ".bias"] = {d};
  };
  const std::string attn =
      m.attn_bias ? config::kAttentionBiasNames[static_cast<size_t>(*m.attn_bias)]
                  : std::string(m.bias.value()                                                       ? "all"
                                : m.arch == config::Arch::qwen2 || m.arch == config::Arch::qwen2_moe ? "qkv"
                                                                                                     : "none");
  const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    shapes[name + ".weight"] = {in, out};
    const bool mlp = name.find(".mlp.") != name.npos, output = name.ends_with("attn.o");
    if (mlp ? m.mlp_bias.value_or(m.bias.value()) : attn == "all" || (attn == "qkv" && !output))
      shapes[name + ".bias"] = {out};
  };
  const bool gemma = m.arch == config::Arch::gemma3;
  if (is_gpt2) shapes["wpe"] = {m.seq_len, d};
  for (int64_t l = 0; l < m.n_layer; ++l) {
    const std::string block = format("blocks.{}.", l);
    norm(block + "norm1");
    linear(block + "attn.q", d, queries);
    linear(block + "attn.k", d, kv);
    linear(block + "attn.v", d, kv);
    linear(block + "attn.o", queries, d);
    if (m.qk_norm ? *m.qk_norm == config::QkNorm::head
                  : m.arch == config::Arch::qwen3 || m.arch == config::Arch::qwen3_moe || gemma)
      shapes[block + "attn.q_norm.gain"] = shapes[block + "attn.k_norm.gain"] = {head};
    if (m.arch == config::Arch::olmo2 || m.arch == config::Arch::olmo3 || m.arch == config::Arch::olmoe) {
      shapes[block + "attn.q_norm.gain"] = {queries};
      shapes[block + "attn.k_norm.gain"] = {kv};
    }
    norm(block + "norm2");
    if (gemma)
      for (const char* after : {"norm1_post", "norm2_post"}) norm(block + after);
    if (m.n_expert > 0 && (l + 1) % m.moe_every == 0) {
      const std::string mlp = block + "mlp.", experts = mlp + "experts.", shared = mlp + "shared.";
      shapes[mlp + "router.weight"] = {d, m.n_expert};
      shapes[experts + "gate.weight"] = shapes[experts + "up.weight"] = {m.n_expert, d, m.d_expert};
      shapes[experts + "down.weight"] = {m.n_expert, m.d_expert, d};
      if (m.d_shared == 0) continue;
      shapes[shared + "gate.weight"] = shapes[shared + "up.weight"] = {d, m.d_shared};
      shapes[shared + "down.weight"] = {m.d_shared, d};
      shapes[mlp + "shared_gate.weight"] = {d, 1};
      continue;
    }
    if (!plain) linear(block + "mlp.gate", d, m.d_ff);
    linear(block + "mlp.up", d, m.d_ff);
    linear(block + "mlp.down", m.d_ff, d);
  }
  norm("norm_f");
  if (!m.tie_embeddings.value()) shapes["head.weight"] = {kVocab, d};
  return shapes;
}

/// Saves a checkpoint of the model with moments, in one shard.
inline fs::path save(const fs::path& folder, const config::Config& config, DType dtype = DType::f32) {
  checkpoint::Snapshot snapshot;
  snapshot.config_toml = config::to_toml(config);
  snapshot.model_keys = checkpoint::model_keys(config.model, kVocab);
  snapshot.tied = config.model.tie_embeddings.value();
  snapshot.compute = dtype == DType::f64 ? "fp64" : "bf16";
  std::vector<std::vector<std::byte>> memory;
  for (const auto& [name, shape] : shapes_of(config.model)) {
    for (const char* suffix : {"", "#m", "#v"}) {
      const int64_t count = shape.count();
      memory.emplace_back(static_cast<size_t>(count * size_of(dtype)));
      const Tensor local{memory.back().data(), {count}, dtype};
      for (int64_t i = 0; i < count; ++i) {
        if (dtype == DType::f64)
          local.as<double>()[i] = static_cast<double>(value_of(name + suffix, i));
        else
          local.as<float>()[i] = value_of(name + suffix, i);
      }
      snapshot.tensors.push_back({name + suffix, shape, local, {{0, 0, count}}});
    }
  }
  return checkpoint::CheckpointStore(folder, {}).save(snapshot);
}

/// A tensor of an exported folder, converted to fp32.
struct Exported32 {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
inline std::map<std::string, Exported32> read_all(const fs::path& folder) {
  std::map<std::string, Exported32> all;
  for (const fs::directory_entry& each : fs::directory_iterator(folder)) {
    if (each.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(each.path());
    for (const TensorEntry& entry : file.tensors()) {
      std::vector<std::byte> bytes(static_cast<size_t>(entry.end - entry.begin));
      file.read(entry, 0, bytes);
      const FloatType type = *find_stored(entry.dtype);
      Exported32 tensor{entry.shape, std::vector<float>(bytes.size() / static_cast<size_t>(size_of(type)))};
      to_float(type, bytes, tensor.values);
      all[entry.name] = std::move(tensor);
    }
  }
  return all;
}

inline std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& each : fs::directory_iterator(folder))
    files[each.path().filename().string()] = content_of(each.path());
  return files;
}

/// Changes the tensors of a model (by name). rewrite() applies it to a copy of an exported folder.
using Edit = std::function<void(std::map<std::string, Exported32>&)>;
inline void rewrite(const fs::path& from, const fs::path& to, const Edit& edit) {
  auto all = read_all(from);
  edit(all);
  fs::create_directories(to);
  fs::copy_file(from / "config.json", to / "config.json");
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : all) entries.push_back({name, "F32", tensor.shape, 0, 0});
  SafetensorsWriter writer(to / "model.safetensors", entries);
  for (const auto& [name, tensor] : all) writer.write(std::as_bytes(std::span(tensor.values)));
  writer.finish();
}

}  // namespace trainer::huggingface
