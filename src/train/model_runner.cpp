#include "train/model_runner.h"

#include <algorithm>
#include <map>
#include <utility>

#include "config/layouts.h"
#include "ops/gemm.h"
#include "parallel/loss.h"

namespace trainer::train {
namespace {

/// Returns the chunks of a stage; none, which is the whole model, if there is one stage.
std::vector<model::Chunk> chunks_of(const sharding::Stages& stages, int64_t stage) {
  if (stages.count == 1) return {};
  TRAINER_CHECK(std::ssize(stages.layers) == stages.count * stages.chunks,
                "the layers of {} chunks are not chosen, found {} numbers (config::choose_stage_layers)",
                stages.count * stages.chunks, stages.layers.size());
  std::vector<model::Chunk> own;
  int64_t first = 0;
  for (int64_t chunk = 0; chunk <= stages.last_chunk(); ++chunk) {
    const int64_t end = first + stages.layers[static_cast<size_t>(chunk)];
    if (chunk % stages.count == stage)
      own.push_back({.first = first, .last = end, .embedding = chunk == 0, .head = chunk == stages.last_chunk()});
    first = end;
  }
  return own;
}

}  // namespace

ModelRunner::ModelRunner(Unallocated, device::Device& device, comm::World& world, const config::Config& config,
                         int64_t vocab, DType compute, std::optional<sharding::ModelSharding> sharding)
    : device_(device),
      config_(config),
      sharding_(sharding ? std::move(*sharding) : config::sharding_on(config, world.size())),
      micro_batch_(config.train.micro_batch / sharding_.depth()),
      row_order_(sharding_, micro_batch_, config.model.seq_len),
      arena_(device),
      mesh_(world, device, parallel::mesh_shape(sharding_)),
      store_(device, compute, &mesh_, /*split_state=*/config.parallel.zero_stage == 1),
      strategy_(mesh_, store_, sharding_, config.debug.overlap),
      links_(device, mesh_, sharding_, strategy_, {rows()}, config_.model.d_model, compute) {
  store_.weights().set_gather_ahead(config.debug.overlap && config.parallel.overlap_all_gather);
  model_ = std::make_unique<model::Transformer>(device, store_, strategy_, config.model, vocab, config.train,
                                                static_cast<uint64_t>(config.run.seed),
                                                chunks_of(sharding_.stages, stage()));
  if (config.model.n_expert > 0 && !device.dry()) require_equal_kernels();
  evaluation_ = forward_passes(1);
  for (const sharding::Action& action : evaluation_)
    evaluation_keys_.push_back(sharding_.stages.chunks == 1 ? "evaluate" : format("evaluate {}", action.chunk));
}

void ModelRunner::require_equal_kernels() const {
  const std::vector<std::string> all = mesh_.host().gather(ops::product_path(device_, store_.compute_dtype()));
  std::map<int64_t, size_t> first;  // the first rank of each replica's stage
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const int64_t part = mesh_.shape().index(static_cast<int>(rank), sharding_.data() | sharding_.stage_axis());
    const size_t other = first.try_emplace(part, rank).first->second;
    if (all[rank] == all[other]) continue;
    throw Error(Code::config,
                format("ranks {} and {} compute with different kernels ({}; {}), whose rounding would make "
                       "ranks with the same tokens choose different experts; start on equal hosts",
                       other, rank, all[other], all[rank]))
        .on(Scope::all_ranks);
  }
}

ModelRunner::ModelRunner(device::Device& device, comm::World& world, const config::Config& config, int64_t vocab,
                         DType compute, std::optional<sharding::ModelSharding> sharding)
    : ModelRunner(Unallocated{}, device, world, config, vocab, compute, std::move(sharding)) {
  allocate(params::ParamStore::Gradients::none, 1);
}

void ModelRunner::allocate(params::ParamStore::Gradients gradients, int64_t losses, int64_t batches) {
  store_.allocate(gradients);
  const Shape all{batches * rows()};
  ids_ = Buffer(device_, "data", all, DType::i32);
  targets_ = Buffer(device_, "data", all, DType::i32);
  weights_ = Buffer(device_, "data", all, store_.state_dtype());
  batches_ = batches;
  terms_of_loss_ = losses;
  losses_ = Buffer(device_, "data", {batches * losses * model_->loss_rows({rows()})}, DType::f64);
  if (config_.data.separates()) first_key_ = Buffer(device_, "data", all, DType::i32);
  order_ = on_device(row_order_.rows());
  positions_ = restarts_positions() ? Buffer(device_, "data", all, DType::i32) : on_device(row_order_.positions());
  // Stages before the last one have the losses of no rows.
  scalars_.emplace(device_, arena_, meter_, mesh_, model_->loss_axes() | sharding_.stage_axis());
}

void ModelRunner::plan() {
  scalars_->make_communicators();
  Meter uncounted;
  for (size_t i = 0; i < evaluation_.size(); ++i)
    record(
        evaluation_keys_[i], [&](Exec& ex) { evaluate(ex, evaluation_[i]); }, uncounted);
  arena_.seal();
  store_.weights().forget_kept();
  mesh_.world().connect();
}

void ModelRunner::evaluate(Exec& ex, const sharding::Action& action) {
  const auto chunk = static_cast<size_t>(action.chunk / sharding_.stages.count);
  links_.send(ex, action,
              model_->loss(ex, batch(action.micro), {losses(0, action.micro)}, {chunk, links_.take(ex, action)}));
}

std::vector<double> ModelRunner::loss_sums(std::span<const data::TokenBatch> batches) {
  const auto count = std::ssize(batches);
  TRAINER_CHECK(count <= batches_at_once(), "{} batches at once, at most {}", count, batches_at_once());
  for (int64_t i = 0; i < count; ++i) upload(batches[static_cast<size_t>(i)], i);
  Exec ex = exec();
  const std::vector<sharding::Action> passes = forward_passes(count);
  links_.begin_list(passes);
  for (size_t i = 0; i < passes.size(); ++i) {
    links_.begin(ex, i);
    begin(ex, evaluation_keys_[static_cast<size_t>(passes[i].chunk / sharding_.stages.count)]);
    evaluate(ex, passes[i]);
    end();
  }
  links_.end_list(ex);
  std::vector<double> sums;
  for (int64_t i = 0; i < count; ++i) sums.push_back(parallel::sum_of_losses(ex, losses(0, i)));
  return sums;
}

void ModelRunner::record(const std::string& program, const std::function<void(Exec&)>& body, Meter& meter) {
  record_gathers({{program, body}});
  const std::unique_ptr<device::Device> dry = device::make_dry(device_);
  Exec ex{*dry, arena_, meter};
  arena_.record(program, [&] { run_recorded(ex, program, body); });
}

void ModelRunner::record_gathers(const std::vector<Body>& programs) {
  const std::unique_ptr<device::Device> dry = device::make_dry(device_);
  Arena heap(*dry, Arena::Mode::heap);
  Meter uncounted;
  Exec ex{*dry, heap, uncounted};
  for (const Body& body : programs) store_.weights().record(body.program, [&] { body.run(ex); });
  store_.weights().forget_kept();
}

void ModelRunner::run_recorded(Exec& dry, const std::string& program, const std::function<void(Exec&)>& body) {
  store_.weights().begin(dry, program);
  body(dry);
  store_.weights().end();
}

void ModelRunner::begin(Exec& ex, const std::string& program, const Arena::PerPool& frames) {
  arena_.begin(program, frames);
  store_.weights().begin(ex, program);
}

void ModelRunner::end() {
  store_.weights().end();
  arena_.end();
}

BytesByCategory ModelRunner::memory() const {
  BytesByCategory bytes;
  for (const auto& [category, use] : device_.memory()) bytes[category] = use.peak;
  if (state_home_ != nullptr)
    for (const auto& [category, use] : state_home_->memory()) bytes["host_" + category] = use.peak;
  return bytes;
}

int64_t ModelRunner::parameter_count() const {
  if (sharding_.stages.count == 1) return store_.parameter_count();
  int64_t count = 0;
  for (const auto& [name, elements] : whole_model()) count += elements;
  return count;
}

std::set<std::string> ModelRunner::names_elsewhere() const {
  std::set<std::string> names;
  if (sharding_.stages.count == 1) return names;
  for (const auto& [name, elements] : whole_model()) names.insert(name);
  for (const params::Param& param : store_.params()) names.erase(param.name);
  return names;
}

std::map<std::string, int64_t> ModelRunner::whole_model() const {
  const std::unique_ptr<device::Device> dry = device::make_dry(device_);
  params::ParamStore store(*dry, store_.compute_dtype());
  parallel::Strategy one_rank(store, config_.model.n_layer);
  const model::Transformer model(*dry, store, one_rank, config_.model, vocab(), config_.train, /*dropout_seed=*/0);
  std::map<std::string, int64_t> elements;
  for (const params::Param& param : store.params()) elements[param.name] = param.count();
  return elements;
}

parallel::Batch ModelRunner::batch(int64_t number) const {
  const auto own = [&](const Tensor& all) { return all ? all.range(number * rows(), rows()) : Tensor(); };
  return {.ids = own(ids_),
          .targets = own(targets_),
          .weights = own(weights_),
          .first_key = own(first_key_),
          .order = order_,
          .positions = restarts_positions() ? own(positions_) : positions_.tensor(),
          .sequences = micro_batch_,
          .seq_len = config_.model.seq_len,
          .balanced_routing = config_.debug.balanced_routing};
}

Tensor ModelRunner::losses(int64_t term, int64_t number) const {
  const int64_t own = model_->loss_rows({rows()});
  return losses_.tensor().range((number * terms_of_loss_ + term) * own, own);
}

void ModelRunner::upload(const data::TokenBatch& host, int64_t number) {
  const parallel::Batch to = batch(number);
  upload(host, row_order_,
         {to.ids, to.targets, to.weights, to.first_key, restarts_positions() ? to.positions : Tensor()});
}

Buffer ModelRunner::on_device(const std::vector<int32_t>& values) {
  if (values.empty()) return {};
  Buffer buffer(device_, "data", {std::ssize(values)}, DType::i32);
  device_.copy_to_device(buffer.tensor().data, values.data(), buffer.tensor().bytes());
  return buffer;
}

void ModelRunner::upload(const data::TokenBatch& host, const parallel::RowOrder& order, const BatchTensors& to) {
  const auto rows = static_cast<size_t>(to.ids.count());
  TRAINER_CHECK(host.ids.size() == rows, "a batch of {} rows does not fit buffers of {} rows", host.ids.size(), rows);
  const TraceScope copying(device_.kind() == device::DeviceKind::cuda ? meter_.trace : nullptr, "batch to the GPU", -1,
                           Span::Kind::host_link);
  const auto copy = [&](const Tensor& there, const auto& natural, auto& memory) {
    device_.copy_to_device(there.data, order.stored(natural, memory).data(), there.bytes());
  };
  copy(to.ids, host.ids, stored_);
  copy(to.targets, host.targets, stored_);
  if (to.first_key) {
    fill_first_keys(host, first_keys_);
    copy(to.first_key, first_keys_, stored_);
    if (to.positions)
      copy(to.positions, positions_in_documents(first_keys_, host.seq_len, positions_in_documents_), stored_);
  }
  if (to.weights.dtype == DType::f64) {  // CPUs only
    std::ranges::copy(order.stored(host.weights, stored_weights_), to.weights.as<double>());
  } else {
    copy(to.weights, host.weights, stored_weights_);
  }
}

}  // namespace trainer::train
