#include "report/events_json.h"

#include <toml++/toml.h>
#include <cmath>
#include <ctime>
#include <sstream>

#include "report/json_fields.h"

namespace trainer::report {
namespace {

/// Returns the config as a JSON object, so that readers of the log need no TOML. Text that is no TOML stays text.
Json config_json(const std::string& toml_text) {
  try {
    const toml::table table = toml::parse(toml_text);
    std::ostringstream text;
    text << toml::json_formatter(table);
    return Json::parse(text.str());
  } catch (const toml::parse_error&) {
    return toml_text;
  }
}

double ratio(double measured, double predicted) {
  return predicted > 0 && measured > 0 ? measured / predicted : kUnknown;
}

Json to_json(const Estimate& estimate) {
  Json memory = estimate.memory_bytes;
  if (estimate.memory_bytes <= 0) memory = nullptr;
  return {{"step_ms", estimate.step_ms},
          {"wait_ms", estimate.wait_ms},
          {"memory_bytes", memory},
          {"comm_bytes", estimate.comm_bytes}};
}

Json ratio_json(const Estimate& measured, const Estimate& predicted) {
  Json comm = Json::object();
  for (const auto& [axis, operations] : predicted.comm_bytes) {
    for (const auto& [operation, bytes] : operations) {
      const auto found = measured.comm_bytes.find(axis);
      int64_t sent = 0;
      if (found != measured.comm_bytes.end() && found->second.contains(operation)) sent = found->second.at(operation);
      comm[axis][operation] = ratio(static_cast<double>(sent), static_cast<double>(bytes));
    }
  }
  return {
      {"step_ms", ratio(measured.step_ms, predicted.step_ms)},
      {"memory_bytes", ratio(static_cast<double>(measured.memory_bytes), static_cast<double>(predicted.memory_bytes))},
      {"comm_bytes", comm}};
}

Estimate estimate_from(const Json& object) {
  Estimate estimate;
  estimate.step_ms = number_of(object, "step_ms");
  estimate.wait_ms = number_of(object, "wait_ms");
  const double memory = number_of(object, "memory_bytes");
  if (!std::isnan(memory)) estimate.memory_bytes = static_cast<int64_t>(memory);
  estimate.comm_bytes = object.value("comm_bytes", measure::CommBytes());
  return estimate;
}

/// Reads the peak of a start or end event.
measure::PeakReport peak_from(const Json& object) {
  measure::PeakReport peak;
  const Json& json = child(object, "peak");
  if (json.empty()) {  // written by a version that measured once
    read(object, "peak_flops", peak.flops);
    read(object, "peak_origin", peak.origin);
    return peak;
  }
  peak.flops = number_of(json, "tflops") * 1e12;
  read(json, "origin", peak.origin);
  read(json, "unit", peak.unit);
  read(json, "windows", peak.windows);
  peak.median_flops = number_of(json, "median_tflops") * 1e12;
  peak.lowest_flops = number_of(json, "lowest_tflops") * 1e12;
  read(json, "raised_by", peak.raised_by);
  return peak;
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string to_line(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

double number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? kUnknown : found->get<double>();
}

Json to_json(const StartReport& start) {
  const Environment& env = start.environment;
  return {{"event", "start"},
          {"step", start.step},
          {"name", start.name},
          {"time", start.time},
          {"model",
           {{"arch", start.arch},
            {"n_layer", start.n_layer},
            {"n_head", start.n_head},
            {"n_kv_head", start.n_kv_head},
            {"d_model", start.d_model},
            {"d_ff", start.d_ff},
            {"seq_len", start.seq_len},
            {"vocab_size", start.vocab_size}}},
          {"compute", start.compute},
          {"parameters", start.parameters},
          {"total_steps", start.total_steps},
          {"global_batch", start.global_batch},
          {"micro_batch", start.micro_batch},
          {"accumulation", start.accumulation},
          {"data_replicas", start.data_replicas},
          {"train_tokens", start.train_tokens},
          {"val_tokens", start.val_tokens},
          {"windows", start.windows},
          {"unigram_entropy", start.unigram_entropy},
          {"flops_per_token",
           {{"definition", measure::kFlopsDefinition},
            {"full", start.flops.full()},
            {"causal", start.flops.causal()},
            {"hardware", start.flops.hardware()},
            {"matmul", start.flops.matmul},
            {"attention", start.flops.attention},
            {"recomputed", start.flops.recomputed}}},
          {"peak", to_json(start.peak)},
          {"predicted", to_json(start.predicted)},
          {"environment",
           {{"version", env.version},
            {"commit", env.commit},
            {"device", env.device},
            {"isa", env.isa},
            {"product_path", env.product_path},
            {"ranks", env.ranks},
            {"threads", env.threads}}},
          {"config", config_json(start.config_toml)}};
}

Json to_json(const measure::PhaseMs& phase) {
  return {{"data", phase.data},
          {"forward", phase.forward},
          {"backward", phase.backward},
          {"optimizer", phase.optimizer},
          {"comm_exposed", phase.comm_exposed}};
}

Json to_json(const measure::PeakReport& peak) {
  Json json = {{"tflops", peak.flops / 1e12}, {"origin", peak.origin}};
  if (!peak.unit.empty()) json["unit"] = peak.unit;
  if (peak.windows > 0) {
    json["windows"] = peak.windows;
    json["median_tflops"] = peak.median_flops / 1e12;
    json["lowest_tflops"] = peak.lowest_flops / 1e12;
  }
  if (!peak.raised_by.empty()) json["raised_by"] = peak.raised_by;
  return json;
}

Json to_json(const StepReport& step) {
  Json json = {{"event", "step"},
               {"step", step.step},
               {"tokens", step.tokens},
               {"loss", step.loss},
               {"lr", step.lr},
               {"grad_norm", step.grad_norm},
               {"skipped", step.skipped},
               {"step_ms", step.step_ms},
               {"tokens_per_s", step.tokens_per_s},
               {"tflops_per_device", step.tflops_per_device},
               {"mfu", step.mfu},
               {"mfu_causal", step.mfu_causal},
               {"hfu", step.hfu},
               {"peak_tflops", step.peak_tflops},
               {"phase_ms", to_json(step.phase_ms)},
               {"comm_bytes", step.comm_bytes},
               {"comm_wait_ms", step.comm_wait_ms},
               {"memory_bytes", step.memory_bytes},
               {"data_position", step.data_position},
               {"epoch", step.epoch}};
  if (step.skipped) json["bad_tensor"] = step.bad_tensor;
  if (step.offload) json["offload"] = to_json(*step.offload);
  if (step.gpu)
    json["gpu"] = {{"watts", step.gpu->watts}, {"sm_mhz", step.gpu->sm_mhz}, {"celsius", step.gpu->celsius}};
  return json;
}

Json to_json(const EvalReport& eval) {
  return {{"event", "eval"},
          {"step", eval.step},
          {"loss", eval.loss},
          {"perplexity", eval.perplexity},
          {"bits_per_byte", eval.bits_per_byte.value_or(kUnknown)},
          {"tokens", eval.tokens}};
}

Json to_json(const CheckpointReport& checkpoint) {
  return {{"event", "checkpoint"},     {"step", checkpoint.step},       {"path", checkpoint.path},
          {"bytes", checkpoint.bytes}, {"seconds", checkpoint.seconds}, {"best", checkpoint.best}};
}

Json to_json(const WarningReport& warning) {
  return {{"event", "warning"}, {"step", warning.step}, {"message", warning.message}};
}

Json to_json(const EndReport& end) {
  return {{"event", "end"},
          {"step", end.step},
          {"tokens", end.tokens},
          {"outcome", end.outcome},
          {"wall_s", end.wall_s},
          {"predicted", to_json(end.predicted)},
          {"measured", to_json(end.measured)},
          {"ratio", ratio_json(end.measured, end.predicted)},
          {"peak", to_json(end.peak)}};
}

StartReport start_from(const Json& object) {
  StartReport start;
  read(object, "step", start.step);
  read(object, "name", start.name);
  read(object, "time", start.time);
  const Json& model = child(object, "model");
  read(model, "arch", start.arch);
  read(model, "n_layer", start.n_layer);
  read(model, "n_head", start.n_head);
  read(model, "n_kv_head", start.n_kv_head);
  read(model, "d_model", start.d_model);
  read(model, "d_ff", start.d_ff);
  read(model, "seq_len", start.seq_len);
  read(model, "vocab_size", start.vocab_size);
  read(object, "compute", start.compute);
  read(object, "parameters", start.parameters);
  read(object, "total_steps", start.total_steps);
  read(object, "global_batch", start.global_batch);
  read(object, "micro_batch", start.micro_batch);
  read(object, "accumulation", start.accumulation);
  read(object, "data_replicas", start.data_replicas);
  read(object, "train_tokens", start.train_tokens);
  read(object, "val_tokens", start.val_tokens);
  read(object, "windows", start.windows);
  read(object, "unigram_entropy", start.unigram_entropy);
  const Json& flops = child(object, "flops_per_token");
  read(flops, "matmul", start.flops.matmul);
  read(flops, "attention", start.flops.attention);
  read(flops, "recomputed", start.flops.recomputed);
  start.peak = peak_from(object);
  start.predicted = estimate_from(child(object, "predicted"));
  const Json& env = child(object, "environment");
  read(env, "version", start.environment.version);
  read(env, "commit", start.environment.commit);
  read(env, "device", start.environment.device);
  read(env, "isa", start.environment.isa);
  read(env, "product_path", start.environment.product_path);
  read(env, "ranks", start.environment.ranks);
  read(env, "threads", start.environment.threads);
  return start;
}

StepReport step_from(const Json& object) {
  StepReport step;
  read(object, "step", step.step);
  read(object, "tokens", step.tokens);
  read(object, "loss", step.loss);
  read(object, "lr", step.lr);
  read(object, "grad_norm", step.grad_norm);
  read(object, "skipped", step.skipped);
  read(object, "bad_tensor", step.bad_tensor);
  read(object, "step_ms", step.step_ms);
  read(object, "tokens_per_s", step.tokens_per_s);
  read(object, "tflops_per_device", step.tflops_per_device);
  read(object, "mfu", step.mfu);
  read(object, "mfu_causal", step.mfu_causal);
  read(object, "hfu", step.hfu);
  read(object, "peak_tflops", step.peak_tflops);
  const Json& phase = child(object, "phase_ms");
  read(phase, "data", step.phase_ms.data);
  read(phase, "forward", step.phase_ms.forward);
  read(phase, "backward", step.phase_ms.backward);
  read(phase, "optimizer", step.phase_ms.optimizer);
  read(phase, "comm_exposed", step.phase_ms.comm_exposed);
  read(object, "comm_bytes", step.comm_bytes);
  read(object, "comm_wait_ms", step.comm_wait_ms);
  read(object, "memory_bytes", step.memory_bytes);
  read(object, "data_position", step.data_position);
  read(object, "epoch", step.epoch);
  if (const Json& offload = child(object, "offload"); !offload.empty()) step.offload = offload_from(offload);
  if (const Json& gpu = child(object, "gpu"); !gpu.empty()) {
    step.gpu.emplace();
    read(gpu, "watts", step.gpu->watts);
    read(gpu, "sm_mhz", step.gpu->sm_mhz);
    read(gpu, "celsius", step.gpu->celsius);
  }
  return step;
}

EvalReport eval_from(const Json& object) {
  EvalReport eval;
  read(object, "step", eval.step);
  read(object, "loss", eval.loss);
  read(object, "perplexity", eval.perplexity);
  const double bits = number_of(object, "bits_per_byte");
  if (!std::isnan(bits)) eval.bits_per_byte = bits;
  read(object, "tokens", eval.tokens);
  return eval;
}

CheckpointReport checkpoint_from(const Json& object) {
  CheckpointReport checkpoint;
  read(object, "step", checkpoint.step);
  read(object, "path", checkpoint.path);
  read(object, "bytes", checkpoint.bytes);
  read(object, "seconds", checkpoint.seconds);
  read(object, "best", checkpoint.best);
  return checkpoint;
}

WarningReport warning_from(const Json& object) {
  WarningReport warning;
  read(object, "step", warning.step);
  read(object, "message", warning.message);
  return warning;
}

EndReport end_from(const Json& object) {
  EndReport end;
  read(object, "step", end.step);
  read(object, "tokens", end.tokens);
  read(object, "outcome", end.outcome);
  read(object, "wall_s", end.wall_s);
  end.predicted = estimate_from(child(object, "predicted"));
  end.measured = estimate_from(child(object, "measured"));
  end.peak = peak_from(object);
  return end;
}

}  // namespace trainer::report
