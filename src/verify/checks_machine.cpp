// Checks of links and devices.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>

#include "base/join.h"
#include "base/units.h"
#include "comm/agreement.h"
#include "config/layouts.h"
#include "ops/gemm.h"
#include "parallel/strategy.h"
#include "tensor/host_copy.h"
#include "verify/context.h"

namespace trainer::verify {
namespace {

constexpr int64_t kPeriod = 1021;       // a prime, so that the chunks of a message differ
constexpr int64_t kLargest = 16 << 20;  // bytes of a message

constexpr int kMostInBf16 = 85;  // ranks whose sums are exact in bf16 in any order of additions

/// Returns what rank `rank` of a group sends at position i: an integer from 1 to 3. Other rounds count other ranks.
double pattern(int64_t rank, int64_t i) { return static_cast<double>((rank + 1) * (i % kPeriod + 1) % 257 % 3 + 1); }

void set(const Tensor& t, int64_t i, double value) {
  if (t.dtype == DType::f64) t.as<double>()[i] = value;
  if (t.dtype == DType::f32) t.as<float>()[i] = static_cast<float>(value);
  if (t.dtype == DType::bf16) t.as<bf16>()[i] = bf16(static_cast<float>(value));
}
double value_at(const Tensor& t, int64_t i) {
  return t.dtype == DType::f64    ? t.as<double>()[i]
         : t.dtype == DType::bf16 ? static_cast<float>(t.as<bf16>()[i])
                                  : static_cast<double>(t.as<float>()[i]);
}

/// One group of ranks for one purpose.
class Links {
 public:
  Links(Context& c, device::Device& device, comm::Communicator& ranks)
      : c_(c), device_(device), ranks_(ranks), arena_(device, Arena::Mode::heap), ex_{device, arena_, meter_} {}

  /// Runs the operation on n elements, and returns what is wrong on this rank; empty if nothing is.
  std::string test(CommOp op, DType type, int64_t n, int root) {
    const int64_t g = ranks_.size(), me = ranks_.rank();
    if (op == CommOp::all_to_all) n = std::max<int64_t>(1, n / g) * g;
    const comm::Chunk mine = ranks_.chunk(n);
    const bool gathers = op == CommOp::all_gather, scatters = op == CommOp::reduce_scatter;
    const Buffer in(device_, "verify", {std::max<int64_t>(1, gathers ? mine.count : n)}, type);
    const Buffer out(device_, "verify", {std::max<int64_t>(1, scatters ? mine.count : n)}, type);
    fill(in, gathers ? mine.begin : 0);
    const Tensor whole = in.tensor().range(0, gathers ? mine.count : n);
    const Tensor received = out.tensor().range(0, scatters ? mine.count : n);
    const bool in_place = op == CommOp::all_reduce || op == CommOp::broadcast;
    start(op, whole, received, root).join(ex_);
    const HostCopy copy(device_, in_place ? whole : received);
    const Tensor& found = copy.tensor();
    int64_t wrong = 0, first = -1, from = -1;
    for (int64_t i = 0, owner = 0; i < found.count(); ++i) {
      double expected = 0;
      if (op == CommOp::all_reduce) expected = sum(i);
      if (scatters) expected = sum(mine.begin + i);
      if (gathers) {
        while (i >= comm::chunk_of(n, static_cast<int>(g), static_cast<int>(owner)).begin +
                        comm::chunk_of(n, static_cast<int>(g), static_cast<int>(owner)).count)
          ++owner;
        expected = sent(owner, i);
      }
      if (op == CommOp::broadcast) expected = sent(owner = root, i);
      if (op == CommOp::all_to_all) {
        owner = i / (n / g);
        expected = sent(owner, me * (n / g) + i % (n / g));
      }
      if (value_at(found, i) == expected) continue;
      ++wrong;
      if (first >= 0) continue;
      first = i;
      from = op == CommOp::all_reduce || scatters ? -1 : owner;
    }
    if (wrong == 0) return {};
    const std::string sender =
        from < 0 ? "" : format(" from rank {}", ranks_.group().members[static_cast<size_t>(from)]);
    return format("{} along {} of {} {} elements{}: {} wrong, the first is element {}", name_of(op),
                  ranks_.group().name, n, name_of(type), sender, counted(wrong, "element"), first);
  }

  int size() const { return ranks_.size(); }

 private:
  /// Writes what this rank sends, and plants the faults of this rank's messages.
  void fill(const Buffer& buffer, int64_t begin) {
    HostCopy copy(device_, buffer.tensor());
    const Tensor& host = copy.tensor();
    for (int64_t i = 0; i < host.count(); ++i) set(host, i, sent(ranks_.rank(), begin + i));
    for (const config::Fault& fault : c_.faults)
      if (fault.kind == config::Fault::Kind::message && fault.rank == c_.world.rank() && fault.at < host.bytes())
        host.data[fault.at] ^= std::byte{1};
    copy.put();
  }
  comm::Ticket start(CommOp op, const Tensor& in, const Tensor& out, int root) {
    if (op == CommOp::all_reduce) return ranks_.all_reduce(ex_, in);
    if (op == CommOp::reduce_scatter) return ranks_.reduce_scatter(ex_, in, out);
    if (op == CommOp::all_gather) return ranks_.all_gather(ex_, in, out);
    if (op == CommOp::broadcast) return ranks_.broadcast(ex_, in, root);
    return ranks_.all_to_all(ex_, in, out);
  }
  double sent(int64_t rank, int64_t i) const { return pattern(rank + c_.round, i); }
  double sum(int64_t i) {
    if (sums_.empty())
      for (int64_t k = 0; k < kPeriod; ++k) {
        double all = 0;
        for (int64_t rank = 0; rank < ranks_.size(); ++rank) all += sent(rank, k);
        sums_.push_back(all);
      }
    return sums_[static_cast<size_t>(i % kPeriod)];
  }

  Context& c_;
  device::Device& device_;
  comm::Communicator& ranks_;
  Arena arena_;
  Meter meter_;
  Exec ex_;
  std::vector<double> sums_;
};

/// Returns the sets of axes along which the run communicates, and the largest payloads, in elements.
std::pair<std::set<mesh::AxisSet>, std::set<int64_t>> communication_of(Context& c) {
  const std::unique_ptr<device::Device> dry = setup::make_dry_device(c.machine);
  const std::unique_ptr<comm::World> world = comm::dry_world(c.world.size(), c.world.rank());
  train::Trainer trainer(*dry, *world, c.config, c.vocab, c.machine.compute);
  trainer.plan();
  std::set<int64_t> sizes;
  std::string own;
  for (const auto& [key, count] : trainer.meter().comm()) {
    if (key.axes == mesh::kControlAxes || count.calls == 0) continue;
    own += format("{} ", key.axes);
    sizes.insert(std::min(count.elements / count.calls, kLargest / size_of(key.dtype)));
  }
  while (sizes.size() > 2) sizes.erase(sizes.begin());
  std::set<mesh::AxisSet> axes;
  for (const std::string& list : c.world.control().gather(own))  // ranks may communicate along different axes
    for (size_t at = 0; at < list.size(); at = list.find(' ', at) + 1)
      axes.insert(static_cast<mesh::AxisSet>(std::stoul(list.substr(at))));
  int64_t longest[2] = {0, 0};  // all ranks use rank 0's sizes
  std::ranges::copy(sizes, longest);
  std::string bytes(reinterpret_cast<const char*>(longest), sizeof longest);
  c.world.control().broadcast(bytes);
  std::memcpy(longest, bytes.data(), sizeof longest);
  sizes = {longest[0], longest[1]};
  sizes.erase(0);
  return {axes, sizes};
}

}  // namespace

std::vector<Finding> check_environment(Context& c) {
  if (c.world.size() == 1) return skipped("one rank");
  const std::string facts = format("{}, {}, MPI {}, NCCL {}", setup::device_text(c.machine),
                                   ops::product_path(*setup::make_dry_device(c.machine), c.machine.compute),
                                   comm::mpi_version().value_or("none"), comm::nccl_version().value_or("none"));
  Finding same{.checked = format("{}: devices, kernels, MPI and NCCL", counted(c.world.size(), "rank"))};
  const std::vector<std::string> all = c.world.control().gather(facts);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all.front()) same.ranks.push_back(static_cast<int>(rank));
  if (!same.ranks.empty()) {
    same.result = Result::warning;
    same.text = format("{}: {}; rank 0: {}. Results may depend on which rank computes", c.name(same.ranks),
                       all[static_cast<size_t>(same.ranks.front())], all.front());
  }
  // The clocks, at about the same time.
  c.world.control().barrier();
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Finding clocks{.checked = "clocks of the hosts", .worst = 0, .bound = 1};
  const std::vector<std::vector<double>> times = gather_values(c.world, {&now, 1});
  for (size_t rank = 0; rank < times.size(); ++rank) {
    const double apart = std::abs(times[rank].front() - times.front().front());
    clocks.worst = std::max(clocks.worst, apart);
    if (apart > clocks.bound) clocks.ranks.push_back(static_cast<int>(rank));
  }
  if (!clocks.ranks.empty()) {
    clocks.result = Result::warning;
    clocks.text = format("{}: up to {:.1f} s apart from rank 0's", c.name(clocks.ranks), clocks.worst);
  }
  return {same, clocks};
}

std::vector<Finding> check_links(Context& c) {
  if (c.world.size() == 1) return skipped("one rank");
  const std::unique_ptr<device::Device> device = c.make_device();
  const std::unique_ptr<comm::World> gpus = comm::gpu_world(c.world, *device, c.between_gpus);
  mesh::Mesh mesh(gpus ? *gpus : c.world, *device, parallel::mesh_shape(config::sharding_on(c.config, c.world.size())));
  const auto [axes, more] = communication_of(c);
  std::set<int64_t> sizes = {1, 7, 4095, 4096, 4097, 65543, (1 << 20) + 1};
  sizes.insert(more.begin(), more.end());
  constexpr comm::Purpose kPurposes[] = {comm::Purpose::critical, comm::Purpose::weights, comm::Purpose::grads};
  std::vector<std::pair<comm::Purpose, std::unique_ptr<Links>>> groups;
  int64_t group_count = 0;
  for (const mesh::AxisSet set : axes)
    for (const comm::Purpose purpose : kPurposes) {
      comm::Communicator& ranks = mesh.along(set, purpose);
      if (ranks.size() > 1) groups.emplace_back(purpose, std::make_unique<Links>(c, *device, ranks));
      group_count += ranks.size() > 1 && purpose == comm::Purpose::critical ? c.world.size() / ranks.size() : 0;
    }
  mesh.world().connect();
  constexpr CommOp kOps[] = {CommOp::all_reduce, CommOp::reduce_scatter, CommOp::all_gather, CommOp::all_to_all,
                             CommOp::broadcast};
  std::string problem;
  std::string left_out;
  bool names_sender = false;
  for (const auto& [purpose, links] : groups)
    for (const DType type : std::set<DType>{c.machine.compute, accumulator_of(c.machine.compute)})
      for (const CommOp op : kOps)
        for (const int64_t n : sizes) {
          // The purposes differ in their queues only.
          if (purpose != comm::Purpose::critical && n != 7 && n != 4097 && n != 65543) continue;
          const bool sums = op == CommOp::all_reduce || op == CommOp::reduce_scatter;
          if (type == DType::bf16 && sums && links->size() > kMostInBf16) {
            left_out = format(", but sums of more than {} ranks in fp32 only", kMostInBf16);
            continue;
          }
          const int root = static_cast<int>(c.round + n) % 2;
          const std::string wrong = links->test(op, type, n, root);
          // A message that names its sender says more than a wrong sum.
          const bool named = wrong.find(" from rank ") != std::string::npos;
          if (wrong.empty() || (!problem.empty() && (names_sender || !named))) continue;
          problem = wrong;
          names_sender = named;
        }
  Finding finding = finding_of(
      c,
      format("{} x {} operations x {} sizes{}", counted(group_count, "group"), std::size(kOps), sizes.size(), left_out),
      problem);
  std::set<int> senders;
  for (const std::string& each : c.world.control().gather(problem))
    if (const size_t at = each.find(" from rank "); at != std::string::npos)
      senders.insert(std::stoi(each.substr(at + std::string(" from rank ").size())));
  if (finding.result != Result::failure || senders.empty()) return {finding};
  finding.text += format("; suspect what {} sends", c.name({senders.begin(), senders.end()}));
  finding.ranks = {senders.begin(), senders.end()};
  return {finding};
}

namespace {

/// One layer of the run with at most this many features, for a test of a device on its own.
Small device_model(const Context& c) {
  constexpr int64_t kMostFeatures = 512, kMostTokens = 128, kMostVocab = 2048;
  Small model{on_one_rank(c.config), std::min(c.vocab, kMostVocab)};
  config::Config& m = model.config;
  m.model.n_layer = 1;
  m.model.init_from.clear();
  m.model.seq_len = std::min(m.model.seq_len, kMostTokens);
  m.model.max_positions = std::min(m.model.max_positions, m.model.seq_len);
  m.train.micro_batch = m.train.global_batch = 1;
  m.train.skip_sigma = 0;
  m.optim.warmup_steps = 0;
  const int64_t head = config::head_size(m.model), per_kv = m.model.n_head / m.model.n_kv_head;
  const double part = std::min(1.0, static_cast<double>(kMostFeatures) / static_cast<double>(m.model.d_model));
  const auto share = [&](int64_t n, int64_t unit) {
    return std::max<int64_t>(1, static_cast<int64_t>(part * static_cast<double>(n)) / unit) * unit;
  };
  if (m.model.head_dim == 0 && part < 1) m.model.head_dim = head;
  m.model.n_head = share(m.model.n_head, per_kv);
  m.model.n_kv_head = m.model.n_head / per_kv;
  m.model.d_model = part < 1 ? share(m.model.d_model, head) : m.model.d_model;
  m.model.d_ff = share(m.model.d_ff, 1);
  return model;
}

}  // namespace

std::vector<Finding> check_device(Context& c) {
  constexpr int64_t kRepeats = 20;
  Small model = device_model(c);
  model.config.run.seed += c.round;
  std::vector<uint64_t> prints;
  std::string problem;
  c.world.control().run_on_all_ranks([&] {
    const std::unique_ptr<comm::World> solo = comm::solo_world();
    SmallRun run(*solo, c.make_device(), {}, model, c.machine.compute);
    params::ParamStore& store = run.trainer().store();
    for (int64_t repeat = 1; repeat <= kRepeats; ++repeat) {
      store.settle();
      store.forget();
      for (params::Group& group : store.groups())
        for (params::State& state : group.states)
          store.home().clear(state.memory.tensor().data, state.memory.tensor().bytes());
      store.initialize(static_cast<uint64_t>(model.config.run.seed));
      if (repeat == kRepeats) run.plant(c.faults, config::Fault::Kind::weight, c.world.rank());
      run.step(1);
      prints.push_back(run.fingerprint());
      if (prints.back() != prints.front() && problem.empty())
        problem = format("repetition {} of a training step on the same data differs from the first one", repeat);
    }
  });
  // Bits depend on the device and on the version of its kernels.
  const std::string kind = format("{}, {}", setup::device_text(c.machine),
                                  ops::product_path(*setup::make_dry_device(c.machine), c.machine.compute));
  std::vector<Finding> findings = {finding_of(
      c, format("a step of one layer x {}, {} times, {} on each rank", model.config.model.d_model, kRepeats, kind),
      problem)};
  // Equal devices compute equal bits: the minority is wrong.
  const std::vector<std::string> all = c.world.control().gather(format("{} {}", prints.front(), kind));
  const auto kind_of = [](const std::string& print) { return print.substr(print.find(' ')); };
  std::map<std::string, std::vector<int>> by_print;
  for (size_t rank = 0; rank < all.size(); ++rank) by_print[all[rank]].push_back(static_cast<int>(rank));
  Finding equal = skipped("no two ranks have equal devices").front();
  equal.checked = "the same bits on equal devices";
  for (const std::string& one : all)
    if (std::ranges::count_if(all, [&](const std::string& other) { return kind_of(one) == kind_of(other); }) > 1)
      equal = {.checked = equal.checked};
  for (const auto& [print, ranks] : by_print)
    for (const auto& [other, others] : by_print)
      if (kind_of(print) == kind_of(other) &&
          (others.size() > ranks.size() || (others.size() == ranks.size() && other < print)) &&
          equal.ranks.size() < all.size()) {
        equal.result = Result::failure;
        equal.ranks = ranks;
        equal.text = format("{} computed other bits than {}: suspect {}", c.name(ranks), c.name(others),
                            others.size() > ranks.size() ? c.name(ranks) : "either");
      }
  findings.push_back(equal);
  return findings;
}

}  // namespace trainer::verify
