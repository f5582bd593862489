// A program for lost_peer_test.py whose ranks all-reduce forever, send around a ring, run the lists of pipeline stages,
// exchange rows for their experts, or pass on keys and values of a sequence. Each rank prints its number, how far it
// is, the error that ends it, and its status. RANK sends SIGNAL to itself before that action of its list, or of an
// exchange.
//
//   mpi_lost_peer [TIMEOUT] [all_reduce|send|stages|experts|ring] [ELEMENTS] [RANK ACTION SIGNAL]
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/stage_names.h"
#include "parallel/attention_core.h"
#include "parallel/row_exchange.h"
#include "train/links.h"

using namespace trainer;

namespace {

/// The action before which this rank sends itself a signal.
struct Loss {
  size_t action = ~size_t{0};
  int signal = 0;
  void before(size_t next) const {
    if (next != action) return;
    std::puts("rank is lost");
    std::fflush(stdout);
    std::raise(signal);
  }
};

/// A rank's list of two micro-batches, one rank per stage, with messages of this number of elements.
class Stage {
 public:
  Stage(comm::World& world, device::Device& device, int64_t elements)
      : stages_{.count = world.size(), .layers = std::vector<int64_t>(static_cast<size_t>(world.size()), 1)},
        sharding_(sharding::on_mesh(
            add_stages({.axes = {{"data", 1}, {"tensor", 1}}, .layers = {{.count = world.size()}}}, stages_), 1)),
        mesh_(world, device, parallel::mesh_shape(sharding_)),
        store_(device, DType::f32, &mesh_),
        strategy_(mesh_, store_, sharding_),
        links_(device, mesh_, sharding_, strategy_, {1}, elements, DType::f32),
        list_(lists_of(stages_, 2)[static_cast<size_t>(world.rank())]),
        width_(elements) {}

  void run(Exec& ex, const Loss& loss) {
    links_.begin_list(list_);
    for (size_t a = 0; a < list_.size(); ++a) {
      loss.before(a);
      links_.begin(ex, a);
      links_.take(ex, list_[a]).reset();
      Scratch x;
      if (sent_by(list_[a], stages_)) x = ex.take("x", {1, width_}, DType::f32);
      links_.send(ex, list_[a], std::move(x));
    }
    links_.end_list(ex);
  }

 private:
  sharding::Stages stages_;
  sharding::ModelSharding sharding_;
  mesh::Mesh mesh_;
  params::ParamStore store_;
  parallel::Strategy strategy_;
  train::StageLinks links_;
  std::vector<sharding::Action> list_;
  int64_t width_;
};

/// Exchanges rows of this many elements between ranks that divide two experts each; each row goes to two.
class RowsOfExperts {
 public:
  RowsOfExperts(comm::World& world, device::Device& device, int64_t elements)
      : mesh_(world, device,
              parallel::mesh_shape(
                  sharding::on_mesh({.axes = {{"data", 1}, {"experts", world.size()}}, .layers = {{.count = 1}}}, 1))),
        ranks_(mesh_),
        axes_(mesh_.shape().set("experts")),
        experts_(2 * world.size()),
        exchange_(ranks_, axes_, axes_, experts_, 2, 1.5),
        counts_(static_cast<size_t>(experts_), 2),
        order_(static_cast<size_t>(2 * experts_)),
        width_(elements) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  /// Its actions: 0 gathers counts, 1 sends rows, 2 returns them.
  void run(Exec& ex, const Loss& loss) {
    const Tensor counts = view(counts_, {1, experts_}), order = view(order_, {2 * experts_});
    const Scratch all = ex.take("counts", {ranks_.size(axes_), experts_}, DType::i32);
    const Scratch x = ex.take("x", {experts_, width_}, DType::f32),
                  y = ex.take("y", {2 * experts_, width_}, DType::f32);
    loss.before(0);
    exchange_.gather(ex, counts, all).join(ex);
    exchange_.plan(experts_, all);
    loss.before(1);
    const Scratch rows = exchange_.send(ex, 0, x, order, 2);
    loss.before(2);
    exchange_.give_back(ex, 0, rows, y);
  }

 private:
  static Tensor view(std::vector<int32_t>& values, Shape shape) {
    return Tensor{reinterpret_cast<std::byte*>(values.data()), {std::ssize(values)}, DType::i32, 0}.reshape(shape);
  }
  mesh::Mesh mesh_;
  parallel::Ranks ranks_;
  mesh::AxisSet axes_;
  int64_t experts_;
  parallel::RowExchange exchange_;
  std::vector<int32_t> counts_, order_;
  int64_t width_;
};

/// Attends to one sequence that all ranks share, whose keys and values go around a ring.
class SharedSequence {
 public:
  SharedSequence(comm::World& world, device::Device& device, int64_t elements)
      : sharding_{.axes = {{"data", 1}, {"context", world.size()}},
                  .layers = {{.stream = {.rows = 2},
                              .attention = {.rows = 2},
                              .context = {.axes = 2, .schedule = sharding::Transfer::ring}}}},
        mesh_(world, device, parallel::mesh_shape(sharding_)),
        ranks_(mesh_),
        rows_(elements / 800 * 2) {
    config::Model model{.n_layer = 1, .n_head = 1, .n_kv_head = 1, .d_model = kSize};
    model.seq_len = batch_.seq_len = rows_ * world.size();
    batch_.sequences = 1;
    core_ = attention_core(ranks_, sharding_.layers.front(), {0, 0, model, config::Recompute::none});
  }

  /// Its actions are calls of attention: 2 per rank and one more forward, and again as many backward.
  void run(Exec& ex, const Loss& loss) {
    Calls calls(loss);
    const Scratch qkv = ex.take("qkv", {rows_, 3 * kSize}, DType::f32), d = ex.take("d", {rows_, kSize}, DType::f32);
    for (const Tensor& x : {qkv.tensor(), d.tensor()}) ex.device.clear(x.data, x.bytes());
    const auto part = [&](int64_t i) { return qkv.tensor().col_range(i * kSize, kSize); };
    ex.meter.recorder = &calls;
    parallel::AttentionCore::Saved saved;
    core_->forward(ex, batch_, {part(0), part(1), part(2)}, saved);
    core_->backward(ex, batch_, d, {part(0), part(1), part(2)}, saved);
    ex.meter.recorder = nullptr;
  }

 private:
  /// Counts calls of attention, which begin while messages of the ring are on their way.
  class Calls final : public Recorder {
   public:
    explicit Calls(const Loss& loss) : loss_(loss) {}
    void add_operator(const OpCall& call) override {
      if (call.kind == OpKind::attention) loss_.before(count_++);
    }
    int64_t add_collective(const CommKey&, uint8_t, int64_t, int64_t, bool) override { return 0; }
    void add_wait(int64_t) override {}

   private:
    const Loss& loss_;
    size_t count_ = 0;
  };
  static constexpr int64_t kSize = 8;
  sharding::ModelSharding sharding_;
  mesh::Mesh mesh_;
  parallel::Ranks ranks_;
  int64_t rows_;
  parallel::Batch batch_;
  std::unique_ptr<parallel::AttentionCore> core_;
};

}  // namespace

int main(int argc, char** argv) {
  const double timeout = argc > 1 ? std::atof(argv[1]) : 3;
  const std::string_view operation = argc > 2 ? argv[2] : "all_reduce";
  const int64_t elements = argc > 3 ? std::atoll(argv[3]) : 100000;
  const std::unique_ptr<comm::World> world = comm::mpi_world({.timeout_s = timeout});
  const int rank = world->rank();
  const bool loses = argc > 6 && std::atoi(argv[4]) == rank;
  int status = 0;
  try {
    device::CpuDevice device(1);
    Arena arena(device, Arena::Mode::heap);
    Meter meter;
    Exec ex{device, arena, meter};
    comm::Group group{
        .axes = 1, .name = "data", .members = std::vector<int>(static_cast<size_t>(world->size())), .index = rank};
    std::iota(group.members.begin(), group.members.end(), 0);
    const auto data = world->communicator(device, group, comm::Purpose::grads);
    const auto link_from = [&](int from) {
      const int ranks = world->size();
      return world->communicator(device,
                                 {.axes = 1,
                                  .name = "stage",
                                  .members = {from, (from + 1) % ranks},
                                  .index = from == rank ? 0 : 1,
                                  .link = comm::link_in_ring(ranks, from, comm::Way::forward)},
                                 comm::Purpose::critical);
    };
    const auto out = link_from(rank), in = link_from((rank + world->size() - 1) % world->size());
    std::optional<Stage> stage;
    std::optional<RowsOfExperts> experts;
    std::optional<SharedSequence> sequence;
    if (operation == "stages") {
      comm::name_stages(*world, world->size());
      stage.emplace(*world, device, elements);
    } else if (operation == "experts") {
      experts.emplace(*world, device, elements / 100);
    } else if (operation == "ring") {
      sequence.emplace(*world, device, elements);
    }
    Scratch x = ex.take("x", {elements}, DType::f32), y = ex.take("y", {elements}, DType::f32);
    for (int64_t step = 0;; ++step) {
      const Loss loss = loses && step == 20 ? Loss{std::strtoul(argv[5], nullptr, 10), std::atoi(argv[6])} : Loss();
      if (stage) {
        stage->run(ex, loss);
      } else if (experts) {
        experts->run(ex, loss);
      } else if (sequence) {
        sequence->run(ex, loss);
      } else if (operation == "send") {
        comm::Ticket receive = in->send(ex, y);
        out->send(ex, x).join(ex);
        receive.join(ex);
      } else {
        data->all_reduce(ex, x, comm::Reduce::max).join(ex);
      }
      if (step == 10) std::printf("rank %d is process %d\n", rank, getpid());
      if (step % 300 == 0) std::printf("rank %d is at step %lld\n", rank, static_cast<long long>(step));
      std::fflush(stdout);
    }
  } catch (const Error& error) {
    status = exit_status(error.code());
    std::printf("rank %d leaves with %d: %s\n", rank, status, error.what());
    std::fflush(stdout);
  }
  world->wait_for_all_ranks(2);
  return status;
}
