#include "run/tracer.h"

#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "base/log.h"
#include "offload/engine.h"
#include "report/trace_json.h"

namespace trainer::run {
namespace {

/// Returns an identifier of the running system. Processes with the same identifier share a clock.
std::string system_identity() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

/// Returns a track for each queue of the optimizer offload, with the operations recorded in it.
std::vector<report::Track> tracks_of(offload::Engine& engine) {
  using offload::Stream;
  std::vector<report::Track> tracks = {{"host link: gradients and state to the host", {}},
                                       {"host link: state to the device", {}},
                                       {"host link: weights to the device", {}},
                                       {"optimizer on the device", {}},
                                       {"optimizer on the host", {}}};
  static_assert(offload::kStreams == 5 && static_cast<int>(Stream::refresh) == 2 &&
                static_cast<int>(Stream::host) == 4);
  for (const offload::Done& done : engine.recorded()) {
    const offload::Subgroup& subgroup = engine.subgroups()[static_cast<size_t>(done.subgroup)];
    tracks[static_cast<size_t>(stream_of(done.kind))].spans.push_back(
        {.kind = Span::Kind::host_link,
         .name = name_of(done.kind),
         .time = done.time,
         .number = done.subgroup,
         .bytes = static_cast<double>(bytes_of(done.kind, subgroup.part.count, engine.sizes()))});
  }
  return tracks;
}

}  // namespace

Tracer::Tracer(comm::World& world, const config::Config& config, train::Trainer& trainer)
    : world_(world), config_(config), trainer_(trainer) {}

Tracer::~Tracer() {
  trainer_.meter().trace = nullptr;
  trainer_.meter().timed = nullptr;
  if (trainer_.offload() != nullptr) trainer_.offload()->record(false);
}

void Tracer::expect_steps(int64_t first, int64_t last) const {
  const std::vector<int64_t>& steps = config_.log.trace;
  if (world_.first() && !steps.empty() && (steps.back() < first || steps.front() > last))
    log::warning("no trace: log.trace covers steps {} to {}, but this run trains steps {} to {}", steps.front(),
                 steps.back(), first, last);
}

void Tracer::before_step(int64_t step) {
  const std::vector<int64_t>& steps = config_.log.trace;
  if (trace_ || steps.empty() || step < steps.front() || step > steps.back()) return;
  // Times are relative to the end of this barrier, which all ranks leave at about the same time. Ranks on one host
  // share a clock, so they all use the origin of rank 0.
  world_.control().barrier();
  const std::string own = format("{} {}", system_identity(), now_seconds());
  const std::string first = world_.control().gather(own).front();
  const size_t space = first.find(' ');
  const bool one_clock = first.substr(0, space) == own.substr(0, space) && space > 0;
  origin_ = std::stod((one_clock ? first : own).substr(space));
  trace_.emplace();
  trainer_.meter().trace = &*trace_;
  if (trainer_.offload() != nullptr) trainer_.offload()->record(true);
  if (trainer_.device().kind() == device::DeviceKind::cuda) trainer_.meter().timed = &trainer_.device();
}

void Tracer::after_step(int64_t step) {
  if (trace_ && step >= config_.log.trace.back()) write();
}

void Tracer::end() {
  if (trace_) write();
}

void Tracer::write() {
  trainer_.meter().trace = nullptr;
  trainer_.meter().timed = nullptr;
  const report::TracedRank rank{.rank = world_.rank(),
                                .name = format("rank {}", world_.rank()),
                                .origin = origin_,
                                .name_of_axes = [&](uint32_t axes) { return trainer_.mesh().shape().name_of(axes); }};
  std::vector<report::Track> others;
  if (offload::Engine* engine = trainer_.offload(); engine != nullptr) {
    others = tracks_of(*engine);
    engine->record(false);
  }
  const std::string own = report::trace_events(rank, *trace_, others);
  trace_.reset();
  std::string text = report::kTraceBegin;
  for (int from = 0; from < world_.size(); ++from) {  // one rank at a time, to hold only one rank's events in memory
    std::string events = world_.rank() == from ? own : std::string();
    world_.control().broadcast(events, from);
    if (world_.first() && !events.empty()) text += (from == 0 ? "" : ",\n") + events;
  }
  if (!world_.first()) return;
  const std::filesystem::path file = std::filesystem::path(config_.run.dir) / "trace.json";
  try {
    replace_file(file, text + report::kTraceEnd);
    log::info("trace of steps {} to {}: {}; open it at ui.perfetto.dev", config_.log.trace.front(),
              config_.log.trace.back(), file.string());
  } catch (const Error& error) {
    log::warning("the trace was not written: {}", error.what());
  }
}

}  // namespace trainer::run
