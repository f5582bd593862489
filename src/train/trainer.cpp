#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

#include "base/clock.h"
#include "device/stream.h"
#include "offload/make.h"
#include "parallel/loss.h"
#include "train/phase_clock.h"
#include "train/spikes.h"

namespace trainer::train {

Trainer::Trainer(device::Device& device, comm::World& world, const config::Config& config, int64_t vocab, DType compute,
                 std::optional<sharding::ModelSharding> sharding)
    : ModelRunner(Unallocated{}, device, world, config, vocab, compute, std::move(sharding)),
      rules_(optim::make_rules(config_, compute)) {
  if (config.offload.optimizer != config::OffloadOptimizer::none) {
    state_home_ = device::make_host(device, config.offload.pinned);
    store_.keep_state_on(*state_home_);
  }
  optim::keep_states(store_, rules_);
  const bool overlaps = device.kind() == device::DeviceKind::cpu && optim::overlaps_forward(config, device.threads());
  // With offload, too, updates overlap with the next forward pass.
  using Gradients = params::ParamStore::Gradients;
  const bool once = accumulation() == 1 && state_home_ == nullptr && !overlaps && !has_stages();
  if (config.train.z_loss > 0) terms_.push_back(&Outcome::z_loss);
  if (const config::Model& model = config.model; model.n_expert > 0) {
    routing_.emplace(device, store_.state_dtype(), moe_layers(model), model.n_expert);
    routing_->per_sequence = config.train.balance == config::Balance::sequence;
    if (config.debug.check_replicas_every > 0) hash_choices();
  }
  // All batches of a step are copied before its first action: a copy between two actions would stop a GPU's host.
  const int64_t in_memory = memory_of(accumulation() - 1) + 1;
  allocate(once ? Gradients::arena : Gradients::own_memory, std::ssize(terms_), in_memory);
  loaded_.resize(static_cast<size_t>(in_memory));
  sorted_ = Buffer(device, "data", {in_memory * batch().ids.count()}, DType::i32);
  loss_scale_ = Buffer(device, "data", {1}, DType::f64);
  if (restarts_positions()) {
    sorted_positions_ = Buffer(device, "data", sorted_.tensor().shape, DType::i32);
  } else {
    ops::RowsByToken sorted;
    model_->sort_positions(row_order_.positions(), sorted);
    sorted_positions_ = on_device(sorted.rows);
  }
  store_.weights().expect_micro_batches(accumulation());
  // If any layer is recomputed, the first one is.
  if (recompute_of(config.train, 0) != config::Recompute::none) store_.weights().save_memory_if_few();
  actions_ = sharding::list_of(sharding_.stages, accumulation(), has_stages() ? mesh_.index("stage") : 0);
  if (has_stages() && !device.dry())  // once per run: a plan makes many dry ones
    sharding::check(sharding::lists_of(sharding_.stages, accumulation()), sharding_.stages, accumulation());
  frames_ = sharding::frames_of(actions_);
  params::GradSink::Options options{.overlap = config.debug.overlap && config.parallel.overlap_reduce_scatter,
                                    .apart = sharding_.stage_axis()};
  if (compute == DType::bf16 && config.parallel.rs_dtype == DType::bf16) options.scatters = DType::bf16;
  grads_ = std::make_unique<params::GradSink>(store_, options);
  share_table();
  if (state_home_ == nullptr) {
    optimizer_ = optim::make_optimizer(store_, rules_, overlaps);
    return;
  }
  world.control().barrier();  // so that all ranks of a host measure its rates at the same time
  std::unique_ptr<offload::Engine> engine = offload::make_engine(store_, rules_, config_);
  offload_ = engine.get();
  optimizer_ = std::move(engine);
  grads_->on_group_reduced([this](Exec& ex, int group) { optimizer_->gradient_complete(ex, group); });
}

void Trainer::share_table() {
  const int last = static_cast<int>(sharding_.stages.count) - 1, own = has_stages() ? mesh_.index("stage") : 0;
  if (last == 0 || !config_.model.tie_embeddings.value() || (own != 0 && own != last)) return;
  comm::Communicator& to_last = mesh_.link(sharding_.stage_axis(), 0, comm::Way::back);
  comm::Communicator& to_first = mesh_.link(sharding_.stage_axis(), last, comm::Way::forward);
  for (params::SlotId slot = 0; slot < store_.slots(); ++slot)
    if (store_.parts_of(slot).front().name == parallel::kTableName)
      grads_->add_other_rank(slot, own == 0 ? to_last : to_first, own == 0 ? to_first : to_last);
}

Trainer::Outcome Trainer::step(const StepWork& work, const BatchSource& batches, const std::function<bool()>& stop) {
  Outcome outcome;
  PhaseClock clock(device_, outcome.phase_ms, meter_.trace);
  gradients(work, batches, stop, outcome, clock);
  if (!outcome.interrupted) update(work, outcome, clock);
  return outcome;
}

Trainer::Outcome Trainer::gradients(const StepWork& work, const BatchSource& batches) {
  Outcome outcome;
  PhaseClock clock(device_, outcome.phase_ms, meter_.trace);
  gradients(work, batches, {}, outcome, clock);
  return outcome;
}

void Trainer::update(const StepWork& work, Outcome& outcome) {
  PhaseClock clock(device_, outcome.phase_ms, meter_.trace);
  update(work, outcome, clock);
}

void Trainer::gradients(const StepWork& work, const BatchSource& batches, const std::function<bool()>& stop,
                        Outcome& outcome, PhaseClock& clock) {
  Exec ex = exec();
  const int64_t rows = work.micro_batches * replicas() * micro_batch() * config_.model.seq_len;
  const int64_t tokens = work.unmasked_tokens > 0 ? work.unmasked_tokens : rows;
  std::array<double, RankScalars::kMost> all_sums{};
  const std::span sums = std::span(all_sums).first(terms_.size() + has_stages());  // with stages, also of busy seconds
  VisiblePairs pairs;
  TRAINER_CHECK(has_stages() ? work.micro_batches == accumulation() : work.micro_batches <= accumulation(),
                "planned for {} micro-batches per step, not {}", accumulation(), work.micro_batches);
  grads_->begin_step();
  optimizer_->begin_step();
  store_.weights().forget_kept();
  begin_routing(work.step, rows);
  set_loss_scale(tokens);
  const auto load_one = [&](int64_t micro) {
    clock.charge(&PhaseMs::backward);  // the wait for the other ranks' answer to stop(): only reading counts as data
    const parallel::Batch& batch = loaded_[static_cast<size_t>(memory_of(micro))] = load(work, micro, batches);
    if (batch.first_key) pairs.add(config_.model, first_keys());
    clock.charge(&PhaseMs::data);
  };
  const auto add_losses = [&](int64_t micro) {
    for (size_t t = 0; t < terms_.size(); ++t)
      sums[t] += parallel::sum_of_losses(ex, losses(static_cast<int64_t>(t), memory_of(micro)));
  };
  for (int64_t micro = 0; has_stages() && micro < work.micro_batches; ++micro) load_one(micro);
  links_.begin_list(actions_);
  double begin = now_seconds();
  const double waited = seconds_waited();
  for (size_t a = 0; a < (has_stages() ? actions_.size() : static_cast<size_t>(work.micro_batches)); ++a) {
    const int64_t micro = actions_[a].micro;
    if (stop && (a == 0 || !has_stages()) && scalars_->is_true_on_any_rank(stop())) {
      optimizer_->discard();
      outcome.interrupted = true;
      return;
    }
    if (a == 0) begin = now_seconds();  // on all ranks at about the same time
    if (!has_stages()) load_one(micro);
    const double begin_action = clock.last();
    links_.begin(ex, a);
    run(ex, {a, sharding::kind_of(actions_[a], work.micro_batches)}, loaded_[static_cast<size_t>(memory_of(micro))],
        clock);
    if (!has_stages()) {
      draw_ahead(first_sample(work, micro + 1), batches);
      add_losses(micro);
    }
    clock.charge(actions_[a].passes == sharding::kForward ? &PhaseMs::forward : &PhaseMs::backward, has_stages());
    if (has_stages()) clock.name(titles_[a], begin_action);
  }
  links_.end_list(ex);
  if (has_stages()) clock.charge(&PhaseMs::backward);  // GPUs have launched all actions by now
  if (has_stages()) sums.back() = now_seconds() - begin - (seconds_waited() - waited);
  for (int64_t micro = 0; has_stages() && micro < work.micro_batches; ++micro) add_losses(micro);
  const int ranks = scalars_->sum_over_rows(sums);
  if (has_stages() && device_.kind() == device::DeviceKind::cpu)
    outcome.bubble = now_seconds() - begin - sums.back() / ranks;
  for (size_t t = 0; t < terms_.size(); ++t) outcome.*terms_[t] = sums[t] / static_cast<double>(tokens);
  end_routing(rows, outcome);
  if (pairs.together > 0) outcome.visible_share = pairs.separate / pairs.together;
  outcome.norm = grads_->finish(ex);
}

double Trainer::seconds_waited() const {
  double seconds = 0;
  for (const auto& [key, count] : meter_.comm())
    if (key.op == CommOp::send && key.axes == sharding_.stage_axis()) seconds += count.wait_seconds;
  return seconds;
}

void Trainer::update(const StepWork& work, Outcome& outcome, PhaseClock& clock) {
  outcome.skipped = !outcome.norm.is_finite() || !std::isfinite(outcome.loss);
  if (!outcome.skipped) outcome.spike = spike_of(work, outcome);
  outcome.skipped |= outcome.spike.has_value();
  if (outcome.skipped) {
    optimizer_->discard();
  } else {
    const optim::Update update = agreed_update(work, outcome.norm);
    Exec ex = exec();
    arena_.begin(update_key_);
    optimizer_->step(ex, update);
    arena_.end();
  }
  clock.charge(&PhaseMs::optimizer);
}

optim::Update Trainer::agreed_update(const StepWork& work, const params::GradNorm& norm) {
  const auto [first, second] = optim::agreed(rules_, work.adam_step);
  double values[] = {work.lr, norm.clip_factor(config_.optim.grad_clip), first, second};
  scalars_->take_from_first_rank(values);
  return {.lr = values[0], .t = work.adam_step, .gradient_scale = values[1], .agreed = {values[2], values[3]}};
}

std::optional<Trainer::Outcome::Spike> Trainer::spike_of(const StepWork& work, const Outcome& outcome) const {
  const double sigma = config_.train.skip_sigma;
  if (sigma == 0) return std::nullopt;
  using Spike = Outcome::Spike;
  for (const auto& [spike, history] : {std::pair{Spike{"the loss", outcome.loss, 0}, work.losses},
                                       {Spike{"the gradient norm", outcome.norm.norm, 0}, work.norms}})
    if (const double limit = spike_limit(history, sigma); spike.value > limit)
      return Spike{spike.what, spike.value, limit};
  return std::nullopt;
}

void Trainer::set_loss_scale(int64_t tokens) {
  const double scale = 1.0 / static_cast<double>(tokens);
  device_.copy_to_device(loss_scale_.tensor().data, &scale, sizeof scale);
}

int64_t Trainer::first_sample(const StepWork& work, int64_t micro) const {
  return work.first_sample + (micro * replicas() + replica()) * micro_batch();
}

void Trainer::draw(int64_t first_sample, const BatchSource& batches) {
  batches(first_sample, micro_batch(), host_);
  model_->sort(row_order_.stored(host_.ids, stored_ids_), host_sorted_);
  if (!restarts_positions()) return;
  fill_first_keys(host_, drawn_first_keys_);
  model_->sort_positions(
      row_order_.stored(positions_in_documents(drawn_first_keys_, host_.seq_len, drawn_positions_), stored_ids_),
      host_sorted_positions_);
}

void Trainer::draw_ahead(int64_t first_sample, const BatchSource& batches) {
  if (device_.kind() != device::DeviceKind::cuda) return;  // on a CPU, the compute threads would have to draw the batch
  draw(first_sample, batches);
  ahead_ = first_sample;
}

parallel::Batch Trainer::load(const StepWork& work, int64_t micro, const BatchSource& batches) {
  const int64_t first = first_sample(work, micro);
  {
    const TraceScope reading(meter_.trace, "read", -1, Span::Kind::input);
    if (std::exchange(ahead_, std::nullopt) != first) draw(first, batches);
  }
  upload(host_, memory_of(micro));
  parallel::Batch batch = training_batch(micro);
  const auto copy = [&](const Tensor& to, const std::vector<int32_t>& rows) {
    device_.copy_to_device(to.data, rows.data(), std::ssize(rows) * size_of(DType::i32));
  };
  copy(batch.sorted, host_sorted_.rows);
  if (restarts_positions()) copy(batch.sorted_positions, host_sorted_positions_.rows);
  batch.first_sample = first - work.first_sample;  // index within the step's batch
  batch.step = static_cast<uint32_t>(work.step);
  return batch;
}

parallel::Batch Trainer::training_batch(int64_t micro) {
  parallel::Batch batch = this->batch(memory_of(micro));
  const auto own = [&](const Tensor& all) {
    return all.range(memory_of(micro) * batch.ids.count(), batch.ids.count());
  };
  batch.sorted = own(sorted_);
  batch.sorted_positions = restarts_positions() ? own(sorted_positions_) : sorted_positions_.tensor();
  batch.loss_scale = loss_scale_;
  batch.z_loss = config_.train.z_loss;
  batch.dropout = true;
  batch.routing = routing();
  return batch;
}

void Trainer::run(Exec& ex, const Run& of, const parallel::Batch& batch, PhaseClock& clock) {
  const MicroGraphs::Kind of_graph{of.kind.first, of.kind.last};
  switch (graphs_->next(ex, of_graph)) {
    case MicroGraphs::Next::launch:
      launch(ex, of, batch, &clock);
      return;
    case MicroGraphs::Next::record:
      graphs_->record(of_graph, [&] { launch(ex, of, batch, nullptr); });
      break;
    case MicroGraphs::Next::repeat:
      grads_->mark_all_written();
      break;
  }
  graphs_->run(of_graph);
}

void Trainer::launch(Exec& ex, const Run& of, const parallel::Batch& batch, PhaseClock* clock) {
  begin(ex, programs_[of.action], frames_.slots[of.action]);
  run_passes(ex, of, batch, clock);
  end();
}

void Trainer::run_passes(Exec& ex, const Run& of, const parallel::Batch& loaded, PhaseClock* clock) {
  const sharding::Action& action = actions_[of.action];
  parallel::Batch batch = loaded;
  batch.late = sharding_.stages.schedule == sharding::PipelineSchedule::zb_h1 && !action.has(sharding::kWeights);
  model::Transformer::Saved& saved = saved_of(of.action);
  Scratch passed = links_.take(ex, action);
  if (action.has(sharding::kForward)) {
    passed = model_->forward(ex, batch, saved, std::move(passed));
    if (clock != nullptr) clock->charge(&PhaseMs::forward, has_stages());
  }
  if (action.has(sharding::kBackward) || action.has(sharding::kWeights)) grads_->begin_micro(of.kind.last);
  if (action.has(sharding::kBackward)) {
    const auto term = [&](size_t t) {
      return t < terms_.size() ? losses(static_cast<int64_t>(t), memory_of(action.micro)) : Tensor();
    };
    passed = model_->loss_backward(ex, batch, saved, {term(0), term(1)}, *grads_, std::move(passed));
  } else if (action.has(sharding::kWeights)) {
    model_->weight_gradients(ex, batch, saved, *grads_);
  }
  links_.send(ex, action, std::move(passed));
}

std::vector<size_t> Trainer::sequence_of(int64_t micro, int64_t chunk) const {
  std::vector<size_t> found;
  for (size_t a = 0; a < actions_.size(); ++a)
    if (actions_[a].micro == micro && actions_[a].chunk == chunk) found.push_back(a);
  return found;
}

model::Transformer::Saved& Trainer::saved_of(size_t action) {
  // By the frames that are in use from a sequence's first program to its last one.
  const size_t pool = frames_.counts[1] > 0 ? 1 : 0;
  return saved_[static_cast<size_t>(actions_[action].chunk / sharding_.stages.count)]
               [static_cast<size_t>(frames_.slots[action][pool])];
}

void Trainer::plan(const ProgramRecorders& recorders) {
  scalars_->make_communicators();
  grads_->prepare(device_);
  plan_training(recorders);
  ModelRunner::plan();
}

void Trainer::plan_training(const ProgramRecorders& recorders) {
  const int64_t micro_batches = accumulation(), stages = sharding_.stages.count, first = actions_.front().chunk;
  const parallel::Batch batch = training_batch(0);
  const std::unique_ptr<device::Device> dry = device::make_dry(device_);
  for (const sharding::Action& action : actions_) {
    programs_.push_back(stages == 1 ? "train" : sharding::text_of(action));
    if (stages > 1) titles_.push_back(sharding::title_of(action, sharding_.stages));
  }
  // The order of gathers is the same in all actions of a program.
  for (const model::Chunk& chunk : model_->chunks()) {
    const int64_t of_chunk = first + std::ssize(saved_) * stages;
    saved_.emplace_back();
    for (int64_t i = 0; i < std::max<int64_t>(1, std::ranges::max(frames_.counts)); ++i)
      saved_.back().emplace_back(chunk);
    std::vector<Body> bodies;
    for (const size_t a : sequence_of(0, of_chunk)) {
      Run any{a, sharding::kind_of(actions_[a], micro_batches)};
      any.kind.last = false;
      bodies.push_back({programs_[a], [this, any, &batch](Exec& ex) { run_passes(ex, any, batch); }});
    }
    record_gathers(bodies);
  }
  // The rest counts a whole step: each kind of action once, its communication as often as it runs. The programs of a
  // micro-batch run one after another, since a backward pass needs what the forward pass saved. Those of the last
  // micro-batch, with the reductions, also record the memory.
  store_.weights().weights_changed();
  grads_->begin_step();
  Arena heap(*dry, Arena::Mode::heap);
  const auto scalars = [&](Recorder* recorder, auto record) {
    Meter not_counted;
    not_counted.recorder = recorder;
    Exec apart{*dry, heap, not_counted};
    record(apart);
  };
  std::map<CommKey, CommCount> step;
  bool communicates = false, last_communicates = false, begun = false;
  const auto record = [&](int64_t micro, int64_t chunk, int64_t count) {
    const bool last = micro + 1 == micro_batches;
    Meter once;
    Meter& meter = last ? meter_ : once;
    std::vector<Arena::Member> members;
    for (const size_t a : sequence_of(micro, chunk))
      members.push_back({programs_[a], [&, a] {
                           const Run of{a, sharding::kind_of(actions_[a], micro_batches)};
                           if (recorders) meter.recorder = recorders(of.kind, count);
                           if (!std::exchange(begun, has_stages()))
                             scalars(meter.recorder, [&](Exec& apart) { scalars_->record_stop(apart); });
                           Exec ex{*dry, last ? arena_ : heap, meter};
                           run_recorded(ex, programs_[a], [&](Exec& of_pass) { run_passes(of_pass, of, batch); });
                         }});
    if (last) {
      arena_.record_sequence(members, frames_.counts);
    } else {
      for (const Arena::Member& member : members) member.body();
      for (const auto& [key, sent] : meter.comm()) step[key].wire_bytes += count * sent.wire_bytes;
    }
    (last ? last_communicates : communicates) |= !meter.comm().empty();
  };
  // In the order of the last actions.
  const auto record_chunks = [&](int64_t micro, int64_t count) {
    for (size_t i = saved_.size(); i-- > 0;) record(micro, first + static_cast<int64_t>(i) * stages, count);
  };
  if (micro_batches > 1) record_chunks(0, 1);
  if (micro_batches > 2) record_chunks(1, micro_batches - 2);
  record_chunks(micro_batches - 1, 1);
  if (recorders) meter_.recorder = recorders({.last = true}, 1);
  scalars(meter_.recorder, [&](Exec& apart) {
    scalars_->record_loss(apart, std::ssize(terms_) + has_stages());
    if (routing_) scalars_->record_sum(apart, 2);
  });
  Exec ex{*dry, arena_, meter_};
  grads_->finish(ex);
  const optim::Update update = optim::make_update(rules_, /*lr=*/0, /*t=*/1, /*gradient_scale=*/1);
  scalars(meter_.recorder, [&](Exec& apart) { scalars_->record_update(apart, 2 + std::ssize(update.agreed)); });
  const std::map<CommKey, CommCount> before = meter_.comm();
  arena_.record(
      update_key_, [&] { optimizer_->step(ex, update); }, has_stages() ? "" : programs_.back());
  update_cost_ = cost_of_update(before);
  meter_.recorder = nullptr;
  for (const auto& [key, sent] : meter_.comm()) step[key].wire_bytes += sent.wire_bytes;
  comm_bytes_per_step_ = comm_bytes(step);
  graphs_ = std::make_unique<MicroGraphs>(device_, config_, communicates, last_communicates);
}

UpdateCost Trainer::cost_of_update(const std::map<CommKey, CommCount>& before) const {
  UpdateCost cost{.flops = meter_.of(OpKind::orthogonalize).flops};
  for (const OpKind kind : {OpKind::grad_norm, OpKind::optimizer, OpKind::orthogonalize})
    cost.bytes += meter_.of(kind).bytes;
  for (const auto& [key, count] : meter_.comm()) {
    const auto known = before.find(key);
    const int64_t sent = count.wire_bytes - (known == before.end() ? 0 : known->second.wire_bytes);
    if (sent > 0) cost.sent += static_cast<double>(sent) / mesh_.shape().group_size(key.axes);
  }
  return cost;
}

CommBytes Trainer::comm_bytes(const std::map<CommKey, CommCount>& counts) const {
  CommBytes bytes;
  for (const auto& [key, count] : counts)
    if (key.axes != mesh::kControlAxes)
      bytes[mesh_.shape().name_of(key.axes)][std::string(name_of(key.op))] += count.wire_bytes;
  return bytes;
}

}  // namespace trainer::train
