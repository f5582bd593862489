#include "huggingface/gguf.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/step_files.h"
#include "config/families.h"
#include "huggingface/export_source.h"
#include "huggingface/gguf_tokenizer.h"
#include "huggingface/model_config.h"
#include "model/rope.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;

namespace {

constexpr size_t kGgufChunk = size_t{1} << 18;  // elements converted at a time; whole blocks

[[noreturn]] void cannot_run(const std::string& key, const std::string& value, const std::string& reason) {
  throw Error(Code::checkpoint, format("model.{} = {} cannot be exported as GGUF: {}", key, value, reason));
}

/// A tensor of the file: one of Hugging Face's layout, in another order of elements, or those of all experts of a
/// layer, one after the other.
struct Item {
  std::vector<const MappedTensor*> sources;
  GgufTensor tensor;
  bool transposed = false;
  int64_t heads = 0;  // > 0: heads whose rows are reordered from RoPE halves to adjacent pairs
  float gain_offset = 0;
};

std::vector<Item> items_of(const ExportSource& source, GgufType type) {
  const bool pairs = config::family_of(source.config.model).gguf.turns_pairs;
  std::vector<Item> items;
  bool wide = false;
  for (const MappedTensor& tensor : source.tensors) {
    if (tensor.slice > 0) {
      const auto all = std::ranges::find_if(items.rbegin(), items.rend(),
                                            [&](const Item& item) { return item.tensor.name == tensor.gguf; });
      all->sources.push_back(&tensor);
      continue;
    }
    Item item{{&tensor}, {tensor.gguf, tensor.shape, GgufType::f32}, tensor.in_first};
    const std::string& name = item.tensor.name;
    if (!tensor.parts.empty() && tensor.parts.front().name.ends_with(".gain"))
      item.gain_offset = static_cast<float>(source.config.model.family.gain_offset);
    if (item.transposed) item.tensor.shape = {tensor.shape[1], tensor.shape[0]};
    if (pairs) item.heads = tensor.rotated_heads;
    if (tensor.slices > 0) item.tensor.shape = {tensor.slices, tensor.shape[0], tensor.shape[1]};
    const bool routes = name.find(".ffn_gate_inp") != std::string::npos;  // stays fp32, as llama.cpp's converter does
    if (routes && tensor.shape[0] == 1) item.tensor.shape = {tensor.shape[1]};
    if (tensor.shape.dims() == 2 && !routes && !name.starts_with("position_embd.")) {
      const bool blocks = item.tensor.shape[-1] % kGgufBlock == 0;
      if (type != GgufType::q8_0 || blocks) item.tensor.type = type;
      wide = wide || (type == GgufType::q8_0 && !blocks);
    }
    items.push_back(std::move(item));
  }
  if (wide)
    log::info("q8_0 has blocks of {} elements: matrices whose rows are not whole blocks are written as fp32",
              kGgufBlock);
  return items;
}

/// Returns the elements of one of a tensor's sources in the order of the file, gains with their offset.
std::span<const float> read(const Item& item, const MappedTensor& source, TensorSource& weights,
                            std::vector<float>& memory) {
  const std::span<const float> values = weights.read(source);
  if (item.gain_offset != 0) {
    memory.assign(values.begin(), values.end());
    for (float& value : memory) value += item.gain_offset;
    return memory;
  }
  if (!item.transposed && item.heads == 0) return values;
  memory.resize(values.size());
  const auto rows = static_cast<size_t>(source.shape[0]), width = values.size() / rows;
  if (item.transposed) {
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < width; ++j) memory[j * rows + i] = values[i * width + j];
    return memory;
  }
  const size_t head = rows / static_cast<size_t>(item.heads), half = head / 2;
  for (size_t row = 0; row < rows; ++row) {
    const size_t first = row / head * head, place = row % head;
    const size_t to = first + 2 * (place % half) + place / half;
    std::ranges::copy(values.subspan(row * width, width), memory.begin() + static_cast<std::ptrdiff_t>(to * width));
  }
  return memory;
}

constexpr double kBetaFast = 32, kBetaSlow = 1;  // llama.cpp reads others for few architectures only

/// True unless the model uses YaRN in a form that llama.cpp does not compute from its metadata.
bool is_plain_yarn(const config::Model& m) {
  return m.rope_type != config::RopeType::yarn ||
         (m.rope_truncate && m.rope_beta_fast == kBetaFast && m.rope_beta_slow == kBetaSlow);
}

/// Throws for experts of which llama.cpp would compute something else without an error.
void require_runnable_experts(const config::Model& m, const config::GgufFamily& theirs) {
  if (m.moe_every > 1)
    cannot_run("moe_every", format("{}", m.moe_every),
               format("llama.cpp's {} has experts in all layers", theirs.architecture));
  if (normalizes_topk(m) != theirs.norm_topk)
    cannot_run("norm_topk", format("{}", normalizes_topk(m)),
               format("llama.cpp's {} {} normalizes", theirs.architecture, theirs.norm_topk ? "always" : "never"));
  if (query_key_norm(m) == config::QkNorm::full && m.n_kv_head != m.n_head)
    cannot_run("n_kv_head", format("{}", m.n_kv_head),
               format("llama.cpp's {} normalizes as many keys as queries ({})", theirs.architecture, m.n_head));
}

/// Throws for models that Hugging Face's library can represent, but llama.cpp cannot.
void require_runnable(const ExportSource& source) {
  using config::RopeType;
  const config::Model& m = source.config.model;
  const config::GgufFamily& theirs = config::family_of(m).gguf;
  const auto fields = nlohmann::json::parse(to_config_json(m, source.vocab, source.special, FloatType::f32));
  for (const char* field : {"sliding_window", "final_logit_softcapping"})
    if (const auto found = fields.find(field);
        found != fields.end() && !found->is_null() && !(theirs.windows && field == std::string("sliding_window")))
      cannot_run(field == std::string("sliding_window") ? "window" : "logit_softcap", found->dump(),
                 "llama.cpp has none for this architecture");
  const bool biases = attention_bias(m) == config::AttentionBias::all;
  if (!theirs.has_biases && biases)
    cannot_run("attn_bias", "\"all\"", format("llama.cpp's {} has no biases", theirs.architecture));
  if (theirs.needs_biases && !biases)
    cannot_run("attn_bias", "\"none\"", format("llama.cpp's {} has biases", theirs.architecture));
  if (!theirs.ties && m.tie_embeddings.value())
    cannot_run("tie_embeddings", "true", format("llama.cpp's {} has a head of its own", theirs.architecture));
  if (m.rope_type == RopeType::llama3 && !theirs.turns_pairs)
    cannot_run("rope_type", "\"llama3\"", "llama.cpp has it for llama and mistral only");
  if (theirs.full_every > 0 && m.window > 0 && m.window_full_every != theirs.full_every)
    cannot_run(
        "window_full_every", format("{}", m.window_full_every),
        format("llama.cpp's {} has windows in all but every {}th layer", theirs.architecture, theirs.full_every));
  // For models of 62 layers llama.cpp assumes Gemma 3 27B.
  const double scalar = m.n_layer == 62 ? static_cast<double>(m.d_model / m.n_head) : static_cast<double>(head_size(m));
  if (m.family.scales_embedding && score_scalar(m) != scalar)
    cannot_run("attn_scalar", format("{}", score_scalar(m)),
               format("llama.cpp's {} divides scores by the square root of {}", theirs.architecture, scalar));
  if (theirs.fixed_heads && attention_width(m) != m.d_model)
    cannot_run("head_dim", format("{}", head_size(m)),
               format("llama.cpp's {} requires n_head * head_dim = d_model, here {} * {} and {}; its qwen3 does not",
                      theirs.architecture, m.n_head, head_size(m), m.d_model));
  if (activation_of(m) == config::Activation::gelu_erf)
    log::warning(
        "llama.cpp computes GELU in its tanh form, whose values differ from those of gelu_erf by up to 4.8e-4");
  if (m.n_expert > 0) require_runnable_experts(m, theirs);
  if (is_plain_yarn(m)) return;
  if (theirs.turns_pairs)
    return log::warning(
        "this form of YaRN (rope_beta_fast, rope_beta_slow, rope_truncate) is written as a tensor of frequencies, "
        "rope_freqs.weight, which llama.cpp uses; a program that ignores it computes something else");
  const char* reason = "llama.cpp uses 32 and 1 for this architecture, and rounds the ends of YaRN's ramp";
  if (!m.rope_truncate) cannot_run("rope_truncate", "false", reason);
  if (m.rope_beta_fast != kBetaFast) cannot_run("rope_beta_fast", format("{}", m.rope_beta_fast), reason);
  cannot_run("rope_beta_slow", format("{}", m.rope_beta_slow), reason);
}

/// True if the frequencies are written as numbers that divide those of plain RoPE.
bool divides_frequencies(const config::Model& m) {
  return m.rope_type == config::RopeType::llama3 || !is_plain_yarn(m);
}

void add_rope_keys(const config::Model& m, const std::string& arch, GgufMetadata& metadata) {
  using config::RopeType;
  metadata.emplace_back(arch + ".rope.dimension_count", static_cast<uint32_t>(rotary_size(m)));
  metadata.emplace_back(arch + ".rope.freq_base", static_cast<float>(m.rope_theta));
  if (m.window_rope_theta > 0)
    metadata.emplace_back(arch + ".rope.freq_base_swa", static_cast<float>(m.window_rope_theta));
  const std::string scaling = arch + ".rope.scaling.";
  if (m.rope_type == RopeType::yarn && divides_frequencies(m))
    metadata.emplace_back(scaling + "attn_factor", static_cast<float>(ops::rope_magnitude(model::rope_scaling(m))));
  if (divides_frequencies(m) || m.rope_type == RopeType::plain) return;
  metadata.emplace_back(scaling + "type", std::string(config::kRopeNames[static_cast<size_t>(m.rope_type)]));
  metadata.emplace_back(scaling + "factor", static_cast<float>(m.rope_factor));
  if (m.rope_type != RopeType::yarn) return;
  metadata.emplace_back(scaling + "original_context_length", static_cast<uint32_t>(m.rope_original));
  metadata.emplace_back(scaling + "yarn_beta_fast", static_cast<float>(m.rope_beta_fast));
  metadata.emplace_back(scaling + "yarn_beta_slow", static_cast<float>(m.rope_beta_slow));
  if (m.rope_attention > 0) {  // llama.cpp multiplies its own factor, the default, by this one
    ops::RopeScaling plain{.kind = ops::RopeScaling::Kind::yarn, .factor = m.rope_factor};
    metadata.emplace_back(scaling + "attn_factor", static_cast<float>(m.rope_attention / ops::rope_magnitude(plain)));
  }
}

GgufMetadata metadata_of(const ExportSource& source, GgufType type) {
  const config::Model& m = source.config.model;
  const config::Family& family = config::family_of(m);
  if (family.gguf.architecture == nullptr)
    cannot_run("arch", format("\"{}\"", family.name),
               "use gemma3, gpt2, gpt_neox, llama, mistral, olmo3, qwen2, qwen3 or a family with experts");
  const std::string arch = family.gguf.architecture;
  const auto number = [](int64_t value) { return static_cast<uint32_t>(value); };
  // Numbers of llama.cpp's file types.
  const uint32_t file_type = type == GgufType::f32 ? 0 : type == GgufType::f16 ? 1 : type == GgufType::q8_0 ? 7 : 32;
  const std::string& name = source.config.run.name;
  GgufMetadata metadata{{"general.architecture", arch},
                        {"general.type", std::string("model")},
                        {"general.name", name.empty() ? source.reader.folder().filename().string() : name},
                        {"general.file_type", file_type},
                        {"general.quantization_version", uint32_t{2}},
                        {arch + ".vocab_size", number(source.vocab)},
                        {arch + ".context_length", number(has_rope_positions(m) ? longest_text(m) : m.seq_len)},
                        {arch + ".embedding_length", number(m.d_model)},
                        {arch + ".block_count", number(m.n_layer)},
                        {arch + ".feed_forward_length", number(m.d_ff > 0 ? m.d_ff : m.d_expert)},
                        {arch + ".attention.head_count", number(m.n_head)},
                        {arch + ".attention.head_count_kv", number(m.n_kv_head)}};
  if (m.n_expert > 0) {
    metadata.emplace_back(arch + ".expert_count", number(m.n_expert));
    metadata.emplace_back(arch + ".expert_used_count", number(m.experts_per_token));
    metadata.emplace_back(arch + ".expert_feed_forward_length", number(m.d_expert));
    if (m.d_shared > 0) metadata.emplace_back(arch + ".expert_shared_feed_forward_length", number(m.d_shared));
  }
  const char* const epsilon = m.family.norm == config::NormKind::rms ? "layer_norm_rms_epsilon" : "layer_norm_epsilon";
  metadata.emplace_back(format("{}.attention.{}", arch, epsilon), static_cast<float>(m.norm_eps));
  if (family.gguf.windows && m.window > 0) {
    metadata.emplace_back(arch + ".attention.sliding_window", number(m.window));
    metadata.emplace_back(arch + ".attention.sliding_window_pattern", number(m.window_full_every));
  }
  if (has_rope_positions(m)) {
    metadata.emplace_back(arch + ".attention.key_length", number(head_size(m)));
    metadata.emplace_back(arch + ".attention.value_length", number(head_size(m)));
    add_rope_keys(m, arch, metadata);
    if (family.hugging_face.form == config::FileForm::gpt_neox)
      metadata.emplace_back(arch + ".use_parallel_residual", has_parallel_residual(m));
  }
  add_tokenizer(source.tokenizer, source.special, source.vocab, metadata);
  return metadata;
}

/// Returns the numbers by which llama.cpp divides the frequencies of plain RoPE; empty: it does not.
std::vector<float> frequency_divisors(const config::Model& m) {
  if (!divides_frequencies(m)) return {};
  const std::vector<double> plain = ops::rope_frequencies(rotary_size(m), m.rope_theta, {}),
                            scaled = ops::rope_frequencies(rotary_size(m), m.rope_theta, model::rope_scaling(m));
  std::vector<float> divisors;
  for (size_t i = 0; i < plain.size(); ++i) divisors.push_back(static_cast<float>(plain[i] / scaled[i]));
  return divisors;
}

}  // namespace

Exported export_gguf(const fs::path& path, const fs::path& output, const GgufOptions& options) {
  ExportSource source(path, options.allow_nonfinite);
  for (MappedTensor& tensor : source.tensors) tensor.block = 0;  // llama.cpp has all of q, then k, then v
  require_runnable(source);
  source.weights.require_parts(source.tensors);
  const GgufMetadata metadata = metadata_of(source, options.type);
  const std::vector<Item> items = items_of(source, options.type);
  const std::vector<float> divisors = frequency_divisors(source.config.model);
  std::vector<GgufTensor> tensors;
  if (!divisors.empty())
    tensors.push_back({"rope_freqs.weight", {static_cast<int64_t>(divisors.size())}, GgufType::f32});
  for (const Item& item : items) tensors.push_back(item.tensor);
  Exported done{source.reader.folder(), {output.filename().string()}, static_cast<int64_t>(tensors.size()), 0};
  for (const GgufTensor& tensor : tensors) done.bytes += gguf_bytes(tensor.type, tensor.shape.count());
  checkpoint::write_new_file(output, [&](const fs::path& file) {
    GgufWriter writer(file, metadata, tensors);
    if (!divisors.empty()) writer.write(std::as_bytes(std::span(divisors)));
    std::vector<std::byte> bytes;
    std::vector<float> memory;
    for (const Item& item : items)
      for (const MappedTensor* each : item.sources) {
        const std::span<const float> values = read(item, *each, source.weights, memory);
        for (size_t at = 0; at < values.size(); at += kGgufChunk) {
          const std::span<const float> chunk = values.subspan(at, std::min(kGgufChunk, values.size() - at));
          if (const size_t lost = gguf_convert(chunk, item.tensor.type, bytes); lost < chunk.size())
            source.weights.refuse(
                each->parts.front().name,
                format("a weight of {} is too large for this type; use --dtype bf16 or fp32", chunk[lost]));
          writer.write(bytes);
        }
      }
    writer.finish();
  });
  return done;
}

}  // namespace trainer::huggingface
