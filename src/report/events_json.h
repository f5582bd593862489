#pragma once
// Conversion of metrics.jsonl's events to and from JSON. fields() lists each field of a struct once, in the order of
// the keys; a Writer or a Reader visits them. Constants and derived numbers are written but not read.
#include <cmath>
#include <concepts>
#include <functional>

#include "base/json.h"
#include "report/events.h"

namespace trainer::report {

using Json = nlohmann::ordered_json;
constexpr int64_t kLogFormat = 2;  // format of metrics.jsonl, in start events; values may be absent if unused

/// Returns a value as text: a string without its quotes, null as an empty string.
std::string to_text(const Json& value);

/// Calls use(name, value) for each value in an object and in nested objects. Names in nested objects are prefixed with
/// the object's name: "a.b" if `separator` is '.'.
void flatten(const Json& object, const std::string& prefix, char separator,
             const std::function<void(const std::string& name, const Json& value)>& use);

/// Returns the configuration as a JSON object, so that readers of the log need not parse TOML; text that is not valid
/// TOML as a JSON string.
Json config_json(const std::string& toml_text);

/// Returns the ratios of measured to predicted memory, step time, and bytes of each operation along each axis.
Json ratios(const Estimate& measured, const Estimate& predicted);

template <typename T>
Json to_json(const T& value);
/// Reads a struct. Fields whose keys are missing keep their defaults, and unknown keys are ignored; a number that is
/// missing or null becomes NaN. Throws Json::exception if a value has the wrong type.
template <typename T>
T from_json(const Json& object);

struct Writer {
  static constexpr bool kReads = false;
  Json& json;

  template <typename T, typename... More>
  void operator()(const char* key, const T& value, const More&... more) {
    if constexpr (std::invocable<const T&, Writer&>) {
      Writer inner{json[key] = Json::object()};
      value(inner);
    } else if constexpr (std::same_as<T, std::optional<double>>) {
      json[key] = value.value_or(kUnknown);
    } else if constexpr (requires { fields(*this, value); }) {
      json[key] = to_json(value);
    } else if constexpr (requires { fields(*this, *value); }) {
      if (value) json[key] = to_json(*value);
    } else {
      json[key] = value;
    }
    if constexpr (sizeof...(more) > 0) (*this)(more...);
  }
  /// Writes a number of bytes; 0 means "not known" and becomes null.
  void bytes(const char* key, int64_t value) { json[key] = value > 0 ? Json(value) : Json(); }
  void tera(const char* key, double value) { json[key] = value / 1e12; }
};

struct Reader {
  static constexpr bool kReads = true;
  const Json& json;

  double number(const char* key) const {
    const auto found = json.find(key);
    return found == json.end() || found->is_null() ? kUnknown : found->template get<double>();
  }
  const Json& child(const char* key) const {
    static const Json empty = Json::object();
    const auto found = json.find(key);
    return found == json.end() ? empty : *found;
  }
  template <typename T, typename... More>
  void operator()(const char* key, T&& value, More&&... more) {
    using Value = std::remove_reference_t<T>;
    if constexpr (std::invocable<T, Reader&>) {
      Reader inner{child(key)};
      value(inner);
    } else if constexpr (!std::is_lvalue_reference_v<T> || std::is_const_v<Value>) {  // written but not read
    } else if constexpr (std::same_as<Value, double>) {
      value = number(key);
    } else if constexpr (std::same_as<Value, std::optional<double>>) {
      if (const double known = number(key); !std::isnan(known)) value = known;
    } else if constexpr (requires { fields(*this, value); }) {
      value = from_json<Value>(child(key));
    } else if constexpr (requires { fields(*this, *value); }) {
      if (const Json& inner = child(key); !inner.empty()) value = from_json<typename Value::value_type>(inner);
    } else if (const auto found = json.find(key); found != json.end()) {
      value = found->template get<Value>();
    }
    if constexpr (sizeof...(more) > 0) (*this)(std::forward<More>(more)...);
  }
  void bytes(const char* key, int64_t& value) {
    if (const double known = number(key); !std::isnan(known)) value = static_cast<int64_t>(known);
  }
  void tera(const char* key, double& value) { value = number(key) * 1e12; }
};

template <typename T>
Json to_json(const T& value) {
  Json json = Json::object();
  Writer writer{json};
  fields(writer, value);
  return json;
}

template <typename T>
T from_json(const Json& object) {
  T value;
  Reader reader{object};
  fields(reader, value);
  return value;
}

/// A struct as the visitor V takes it: const for a Writer.
template <typename V, typename T>
using In = std::conditional_t<V::kReads, T, const T>;

template <typename V>
void fields(V& v, In<V, PhaseMs>& p) {
  v("data", p.data, "forward", p.forward, "backward", p.backward, "optimizer", p.optimizer);
  v("comm_exposed", p.comm_exposed);
}

template <typename V>
void fields(V& v, In<V, config::FlopsPerToken>& f) {
  v("definition", config::kFlopsDefinition, "full", f.full(), "causal", f.causal(), "hardware", f.hardware());
  v("matmul", f.matmul, "attention", f.attention, "recomputed", f.recomputed);
  if (V::kReads || f.attention_causal != f.attention / 2) v("attention_causal", f.attention_causal);
  if constexpr (V::kReads)
    if (std::isnan(f.attention_causal)) f.attention_causal = f.attention / 2;
}

template <typename V>
void fields(V& v, In<V, setup::PeakReport>& p) {
  v.tera("tflops", p.flops);
  v("origin", p.origin);
  if (V::kReads || !p.unit.empty()) v("unit", p.unit);
  if (V::kReads || p.windows > 0) {
    v("windows", p.windows);
    v.tera("median_tflops", p.median_flops);
    v.tera("lowest_tflops", p.lowest_flops);
  }
  if (V::kReads || !p.raised_by.empty()) v("raised_by", p.raised_by);
}

template <typename V>
void fields(V& v, In<V, device::PowerMeter::Reading>& r) {
  v("watts", r.watts, "sm_mhz", r.sm_mhz, "celsius", r.celsius);
}

template <typename V>
void fields(V& v, In<V, Estimate>& e) {
  v("step_ms", e.step_ms, "wait_ms", e.wait_ms);
  v.bytes("memory_bytes", e.memory_bytes);
  v("comm_bytes", e.comm_bytes);
  if (V::kReads || !std::isnan(e.bubble)) v("bubble", e.bubble);
}

template <typename V>
void fields(V& v, In<V, Environment>& e) {
  v("version", e.version, "commit", e.commit, "device", e.device, "isa", e.isa, "product_path", e.product_path);
  v("ranks", e.ranks, "threads", e.threads);
}

template <typename V>
void fields(V& v, In<V, Sample>& s) {
  v("step", s.step, "prompt", s.prompt, "text", s.text);
}

template <typename V>
void fields(V& v, In<V, OffloadReport>& o) {
  v("gpu_fraction", o.device_share);
  v("parameters", [&](V& p) { p("host", o.host, "streamed", o.streamed, "resident", o.resident); });
  v("bytes", o.bytes, "exposed_ms", o.exposed_ms, "busy_ms", o.busy_ms, "update_ms", o.update_ms);
  v("plan", [&](V& p) {
    p("subgroups", o.subgroups, "largest", o.largest_subgroup, "resident", o.resident_subgroups, "slots", o.slots);
    p("host_memory", o.host_memory);
  });
  if (V::kReads || std::isfinite(o.emulated_ms))
    v("emulated", [&](V& e) { e("update_ms", o.emulated_ms, "predicted_ms", o.predicted_ms); });
  if (std::isfinite(o.emulated_ms)) return;
  v("predicted_ms", o.predicted_ms, "parameters_per_s", o.parameters_per_s);
  v("overlapped", o.overlapped, "memory_share", o.memory_share);
}

template <typename V>
void fields(V& v, In<V, StartReport>& s) {
  v("event", "start", "format", kLogFormat, "step", s.step, "name", s.name, "time", s.time);
  v("model", [&](V& m) {
    m("arch", s.arch, "n_layer", s.model.n_layer, "n_head", s.model.n_head, "n_kv_head", s.model.n_kv_head);
    m("d_model", s.model.d_model, "d_ff", s.model.d_ff, "seq_len", s.model.seq_len, "vocab_size", s.vocab_size);
    if (V::kReads || s.model.n_expert > 0)
      m("n_expert", s.model.n_expert, "experts_per_token", s.model.experts_per_token, "d_expert", s.model.d_expert,
        "d_shared", s.model.d_shared, "moe_every", s.model.moe_every);
  });
  v("compute", s.compute, "parameters", s.parameters, "total_steps", s.total_steps, "global_batch", s.global_batch);
  v("micro_batch", s.micro_batch, "accumulation", s.accumulation, "data_replicas", s.data_replicas);
  v("train_tokens", s.train_tokens, "val_tokens", s.val_tokens, "windows", s.windows);
  if (V::kReads || !s.sources.empty()) v("sources", s.sources);
  if (V::kReads || !s.source_samples.empty()) v("source_samples", s.source_samples);
  v("unigram_entropy", s.unigram_entropy, "flops_per_token", s.flops);
  v("peak", s.peak, "predicted", s.predicted);
  if (V::kReads || !s.predicted_by.empty()) v("predicted_by", s.predicted_by);
  if (V::kReads || !s.stages.empty()) v("stages", s.stages);
  v("environment", s.environment, "config", config_json(s.config_toml));
}

template <typename V>
void fields(V& v, In<V, ExpertsReport>& e) {
  v("load_max", e.load_max, "load_layer", e.load_layer, "idle", e.idle, "entropy", e.entropy);
  v("rounds", e.rounds);
}

template <typename V>
void fields(V& v, In<V, StepReport>& s) {
  v("event", "step", "step", s.step, "tokens", s.tokens, "loss", s.loss, "lr", s.lr, "grad_norm", s.grad_norm);
  v("skipped", s.skipped, "step_ms", s.step_ms, "tokens_per_s", s.tokens_per_s);
  v("tflops_per_device", s.tflops_per_device, "mfu", s.mfu, "mfu_causal", s.mfu_causal, "hfu", s.hfu);
  v("peak_tflops", s.peak_tflops, "phase_ms", s.phase_ms, "comm_bytes", s.comm_bytes, "comm_wait_ms", s.comm_wait_ms);
  v("memory_bytes", s.memory_bytes, "data_position", s.data_position, "epoch", s.epoch);
  if (V::kReads || !s.sources.empty()) v("sources", s.sources);
  if (V::kReads || s.skipped) v("bad_tensor", s.bad_tensor);
  if (V::kReads || s.loss_tokens >= 0) v("loss_tokens", s.loss_tokens);
  if (V::kReads || !std::isnan(s.z_loss)) v("z_loss", s.z_loss);
  if (V::kReads || s.experts || !std::isnan(s.balance_loss))
    v("balance_loss", s.balance_loss, "router_z_loss", s.router_z_loss, "experts", s.experts);
  if (V::kReads || s.optimizer_flops > 0) v("optimizer_flops", s.optimizer_flops);
  if (V::kReads || !std::isnan(s.bubble)) v("bubble", s.bubble);
  v("offload", s.offload, "gpu", s.gpu);
}

template <typename V>
void fields(V& v, In<V, SetReport>& s) {
  v("loss", s.loss, "perplexity", s.perplexity, "bits_per_byte", s.bits_per_byte, "tokens", s.tokens);
  v("data", s.data);
}

template <typename V>
void fields(V& v, In<V, EvalReport>& e) {
  v("event", "eval", "step", e.step, "loss", e.loss, "perplexity", e.perplexity);
  v("bits_per_byte", e.bits_per_byte, "tokens", e.tokens, "data", e.data);
  if (V::kReads || !e.set.empty()) v("set", e.set);
  if constexpr (V::kReads) {
    for (const auto& [name, numbers] : v.child("sets").items()) {
      e.sets.push_back(from_json<SetReport>(numbers));
      e.sets.back().name = name;
    }
  } else if (!e.sets.empty()) {
    v("sets", [&](V& all) {
      for (const SetReport& set : e.sets) all(set.name.c_str(), set);
    });
  }
}

template <typename V>
void fields(V& v, In<V, TaskReport>& t) {
  v("score", t.score, "centred", t.centred, "loss", t.loss, "questions", t.questions);
}

template <typename V>
void fields(V& v, In<V, TasksReport>& r) {
  v("event", "tasks", "step", r.step);
  if constexpr (V::kReads) {
    for (const auto& [name, numbers] : v.child("tasks").items()) {
      r.tasks.push_back(from_json<TaskReport>(numbers));
      r.tasks.back().name = name;
    }
  } else {
    v("tasks", [&](V& all) {
      for (const TaskReport& task : r.tasks) all(task.name.c_str(), task);
    });
  }
  if (V::kReads || !std::isnan(r.core)) v("core", r.core);
}

template <typename V>
void fields(V& v, In<V, CheckpointReport>& c) {
  v("event", "checkpoint", "step", c.step, "path", c.path, "bytes", c.bytes, "seconds", c.seconds);
  v("wait_seconds", c.wait_seconds, "best", c.best);
}

template <typename V>
void fields(V& v, In<V, RanksReport>& r) {
  v("event", "ranks", "step", r.step, "median_ms", r.median_ms, "p90_ms", r.p90_ms, "max_ms", r.max_ms);
  v("slowest", r.slowest, "host", r.host, "stages", r.stages, "own_ms", r.own_ms);
}

template <typename V>
void fields(V& v, In<V, WarningReport>& w) {
  v("event", "warning", "step", w.step, "message", w.message);
}

template <typename V>
void fields(V& v, In<V, EndReport>& e) {
  v("event", "end", "step", e.step, "tokens", e.tokens, "outcome", e.outcome, "wall_s", e.wall_s);
  v("predicted", e.predicted, "measured", e.measured, "ratio", ratios(e.measured, e.predicted));
  v("peak", e.peak);
  if (V::kReads || !e.choices.empty()) v("choices", e.choices);
}

}  // namespace trainer::report
