#include "train/links.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/elementwise.h"

namespace trainer::train {

using sharding::Action;
using sharding::Message;

StageLinks::StageLinks(device::Device& device, mesh::Mesh& mesh, const sharding::ModelSharding& sharding,
                       const parallel::Strategy& strategy, parallel::Rows rows, int64_t width, DType type)
    : mesh_(mesh), stages_(sharding.stages), strategy_(strategy), rows_(rows), width_(width), type_(type) {
  if (stages_.count == 1) return;
  const auto count = static_cast<int32_t>(stages_.count), stage = static_cast<int32_t>(mesh.index("stage"));
  // Every chunk's passes tell which links there are, and the largest message of each.
  std::array<std::array<int64_t, 2>, 2> largest{};
  for (int32_t chunk = stage; chunk <= stages_.last_chunk(); chunk += count)
    for (const sharding::Pass pass : {sharding::kForward, sharding::kBackward})
      for (const bool sends : {false, true}) {
        const Action action{pass, 0, chunk};
        const auto message = sends ? sent_by(action, stages_) : received_by(action, stages_);
        if (!message) continue;
        int64_t& most = largest[sends][message->to < message->from];
        most = std::max(most, form_of(*message).shape.count());
        const auto way = message->to > message->from ? comm::Way::forward : comm::Way::back;
        (sends ? sender(*message) : receiver(*message)).link =
            &mesh.link(sharding.stage_axis(), message->from % count, way);
      }
  for (const bool sends : {false, true})
    for (size_t dx = 0; dx < 2; ++dx)
      if (largest[sends][dx] > 0)
        (sends ? senders_ : receivers_)[dx].buffer = Buffer(device, "links", {largest[sends][dx]}, type);
}

StageLinks::Form StageLinks::form_of(const Message& message) const {
  const auto chunks = stages_.layers.begin() + std::max(message.from, message.to);
  const int64_t layer = std::accumulate(stages_.layers.begin(), chunks, int64_t{0});
  const sharding::Spread stream = strategy_.stream(layer);
  const sharding::Spread sent = rows_.cut ? strategy_.boundary(layer, rows_.count) : stream;
  const parallel::Tile tile = strategy_.ranks().tile(sent, rows_, width_);
  return {stream, sent, {tile.rows, tile.cols}};
}

Tensor StageLinks::part_of(const End& end, const Form& form) {
  return end.buffer.tensor().range(0, form.shape.count()).reshape(form.shape);
}

void StageLinks::begin_list(std::span<const Action> list) {
  list_ = list;
  next_ = posted_ = 0;
}

void StageLinks::begin(Exec& ex, size_t action) {
  next_ = action;
  post(ex);
}

void StageLinks::post(Exec& ex) {
  for (; posted_ < std::min(next_ + 2, list_.size()); ++posted_) {
    const auto message = received_by(list_[posted_], stages_);
    if (!message) continue;
    End& from = receiver(*message);
    if (from.ticket.is_open()) return;  // the buffer is in use
    from.ticket = from.link->send(ex, part_of(from, form_of(*message)));
  }
}

Scratch StageLinks::take(Exec& ex, const Action& action) {
  const auto message = received_by(action, stages_);
  if (!message) return {};
  const Form form = form_of(*message);
  Scratch x = ex.take("link.received", form.shape, type_);
  End& from = receiver(*message);
  if (!ex.device.dry()) from.ticket.join(ex);
  ops::run(ex, ops::Copy{part_of(from, form), x});
  if (!ex.device.dry()) post(ex);
  return strategy_.ranks().move(ex, rows_, width_, form.sent, form.stream, std::move(x));
}

void StageLinks::send(Exec& ex, const Action& action, Scratch&& x) {
  const auto message = sent_by(action, stages_);
  if (!message) return;
  const Form form = form_of(*message);
  x = strategy_.ranks().move(ex, rows_, width_, form.stream, form.sent, std::move(x));
  End& to = sender(*message);
  if (to.ticket.is_open()) to.ticket.join(ex);
  const Tensor sent = part_of(to, form);
  ops::run(ex, ops::Copy{x, sent});
  x.reset();
  // A program has no waits for messages: the list's simulation adds them.
  Recorder* const recorder = ex.device.dry() ? std::exchange(ex.meter.recorder, nullptr) : ex.meter.recorder;
  to.ticket = to.link->send(ex, sent);
  if (ex.device.dry()) to.ticket.join(ex);
  ex.meter.recorder = recorder;
}

void StageLinks::end_list(Exec& ex) {
  for (End& to : senders_)
    if (to.ticket.is_open()) to.ticket.join(ex);
}

}  // namespace trainer::train
