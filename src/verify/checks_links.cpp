// The check of links: collectives along the groups of ranks, and messages between pairs of hosts.
#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <numeric>
#include <set>

#include "base/clock.h"
#include "base/join.h"
#include "base/units.h"
#include "config/layouts.h"
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

/// One group of ranks for one purpose, or a link of two stages.
class Links {
 public:
  Links(Context& c, device::Device& device, comm::Communicator& ranks)
      : c_(c), device_(device), ranks_(ranks), arena_(device, Arena::Mode::heap), ex_{device, arena_, meter_} {}

  /// Runs the operation on n elements, and returns what is wrong on this rank; empty if nothing is. `uneven`: an
  /// all_to_all of pieces of up to twice the length, some of them empty.
  std::string test(CommOp op, DType type, int64_t n, int root, bool uneven = false) {
    const int64_t g = ranks_.size(), me = ranks_.rank(), part = std::max<int64_t>(1, n / g);
    const auto piece = [&](int64_t from, int64_t to) { return uneven ? (2 * from + to + c_.round) % 3 * part : part; };
    std::vector<int64_t> sends, receives;
    for (int64_t rank = 0; rank < g; ++rank) {
      sends.push_back(piece(me, rank));
      receives.push_back(piece(rank, me));
    }
    const auto sum_of = [](const std::vector<int64_t>& counts) { return std::reduce(counts.begin(), counts.end()); };
    const bool exchanges = op == CommOp::all_to_all;
    const comm::Chunk mine = ranks_.chunk(n);
    const bool gathers = op == CommOp::all_gather, scatters = op == CommOp::reduce_scatter;
    const int64_t passed = exchanges ? sum_of(sends) : gathers ? mine.count : n;
    const int64_t taken = exchanges ? sum_of(receives) : scatters ? mine.count : n;
    const Buffer in(device_, "verify", {std::max<int64_t>(1, passed)}, type);
    const Buffer out(device_, "verify", {std::max<int64_t>(1, taken)}, type);
    if (op == CommOp::send && me != 0)  // receives
      device_.clear(in.tensor().data, in.tensor().bytes());
    else
      fill(in, gathers ? mine.begin : 0);
    const Tensor whole = in.tensor().range(0, passed), received = out.tensor().range(0, taken);
    const bool in_place =
        op == CommOp::all_reduce || op == CommOp::reduce || op == CommOp::broadcast || op == CommOp::send;
    comm::PeerCounts counts{.send = sends, .receive = receives};
    for (int64_t from = 0; from < g; ++from)
      for (int64_t to = 0; to < g; ++to) {
        counts.wire += from == to ? 0 : piece(from, to);
        counts.longest = std::max(counts.longest, piece(from, to));
      }
    const double began = now_seconds();
    (uneven ? ranks_.all_to_all(ex_, whole, received, counts) : start(op, whole, received, root)).join(ex_);
    ex_.device.synchronize();
    seconds_ = now_seconds() - began;
    if ((op == CommOp::reduce && me != root) || (op == CommOp::send && me == 0)) return {};
    const HostCopy copy(device_, in_place ? whole : received);
    const Tensor& found = copy.tensor();
    int64_t wrong = 0, first = -1, from = -1;
    for (int64_t i = 0, owner = 0, begin = 0; i < found.count(); ++i) {
      double expected = 0;
      if (op == CommOp::all_reduce || op == CommOp::reduce) expected = sum(i);
      if (scatters) expected = sum(mine.begin + i);
      if (gathers) {
        while (i >= comm::chunk_of(n, static_cast<int>(g), static_cast<int>(owner)).begin +
                        comm::chunk_of(n, static_cast<int>(g), static_cast<int>(owner)).count)
          ++owner;
        expected = sent(owner, i);
      }
      if (op == CommOp::broadcast) expected = sent(owner = root, i);
      if (op == CommOp::send) expected = sent(owner = 0, i);
      if (op == CommOp::shift) expected = sent(owner = (me + g - 1) % g, i);
      if (exchanges) {
        while (i >= begin + receives[static_cast<size_t>(owner)]) begin += receives[static_cast<size_t>(owner++)];
        int64_t at = i - begin;  // among what the owner sends
        for (int64_t rank = 0; rank < me; ++rank) at += piece(owner, rank);
        expected = sent(owner, at);
      }
      if (element_of(found, i) == expected) continue;
      ++wrong;
      if (first >= 0) continue;
      first = i;
      from = op == CommOp::all_reduce || op == CommOp::reduce || scatters ? -1 : owner;
    }
    if (wrong == 0) return {};
    const std::string sender =
        from < 0 ? "" : format(" from rank {}", ranks_.group().members[static_cast<size_t>(from)]);
    return format("{}{} along {} of {} {} elements{}: {} wrong, the first is element {}", uneven ? "uneven " : "",
                  name_of(op), ranks_.group().name, n, name_of(type), sender, counted(wrong, "element"), first);
  }

  int size() const { return ranks_.size(); }
  double seconds() const { return seconds_; }  // the last operation took

 private:
  /// Writes what this rank sends, and plants the faults of this rank's messages.
  void fill(const Buffer& buffer, int64_t begin) {
    HostCopy copy(device_, buffer.tensor());
    const Tensor& host = copy.tensor();
    for (int64_t i = 0; i < host.count(); ++i) set_element(host, i, sent(ranks_.rank(), begin + i));
    const config::Fault::Kind own = ranks_.group().link > 0 ? config::Fault::Kind::link : config::Fault::Kind::message;
    for (const config::Fault& fault : c_.faults)
      if (fault.kind == own && fault.rank == c_.world.rank() && fault.at < host.bytes())
        host.data[fault.at] ^= std::byte{1};
    copy.put();
  }
  comm::Ticket start(CommOp op, const Tensor& in, const Tensor& out, int root) {
    if (op == CommOp::all_reduce) return ranks_.all_reduce(ex_, in);
    if (op == CommOp::reduce_scatter) return ranks_.reduce_scatter(ex_, in, out);
    if (op == CommOp::all_gather) return ranks_.all_gather(ex_, in, out);
    if (op == CommOp::broadcast) return ranks_.broadcast(ex_, in, root);
    if (op == CommOp::send) return ranks_.send(ex_, in);
    if (op == CommOp::reduce) return ranks_.reduce(ex_, in, root);
    if (op == CommOp::shift) return ranks_.shift(ex_, in, out);
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
  double seconds_ = 0;
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

/// Returns finding_of(), which names the ranks that have sent what was wrong, if they are known.
Finding finding_of_senders(Context& c, std::string checked, const std::string& problem) {
  Finding finding = finding_of(c, std::move(checked), problem);
  std::set<int> senders;
  for (const std::string& each : c.world.control().gather(problem))
    if (const size_t at = each.find(" from rank "); at != std::string::npos)
      senders.insert(std::stoi(each.substr(at + std::string(" from rank ").size())));
  if (finding.result == Result::failure && !senders.empty()) {
    finding.text += format("; suspect what {} sends", c.name({senders.begin(), senders.end()}));
    finding.ranks = {senders.begin(), senders.end()};
  }
  return finding;
}

/// The links of this rank's ring of stages, in an order in which all ranks can test theirs one after another.
std::vector<std::unique_ptr<Links>> links_of_stages(Context& c, device::Device& device, mesh::Mesh& mesh) {
  std::vector<std::unique_ptr<Links>> links;
  const int stages = static_cast<int>(c.config.parallel.stages);
  for (const comm::Way way : {comm::Way::forward, comm::Way::back})
    for (int from = 0; from < stages && stages > 1; ++from) {
      const int to = (from + (way == comm::Way::forward ? 1 : stages - 1)) % stages, own = mesh.index("stage");
      if (own == from || own == to)
        links.push_back(std::make_unique<Links>(c, device, mesh.link(mesh.shape().set("stage"), from, way)));
    }
  return links;
}

/// The first ranks of pairs of hosts exchange messages. In each round every host has another partner, so a host with a
/// slow or faulty card is a member of all pairs that are slow or wrong.
std::vector<Finding> check_pairs(Context& c, device::Device& device, comm::World& world) {
  constexpr int64_t kElements = 2 << 20;  // 8 MiB, each way
  constexpr uint32_t kAxes = 1 << 8;      // a layout has at most eight axes
  std::vector<int> first;                 // ranks, by host
  for (size_t rank = 0; rank < c.hosts.size(); ++rank)
    if (std::ranges::find(c.hosts, c.hosts[rank]) == c.hosts.begin() + static_cast<std::ptrdiff_t>(rank))
      first.push_back(static_cast<int>(rank));
  const auto hosts = static_cast<int>(first.size());
  if (hosts == 1) return {};
  const auto rank_of = [&](int host) { return first[static_cast<size_t>(host)]; };
  const auto own = static_cast<int>(std::ranges::find(first, world.rank()) - first.begin());  // `hosts`: not the first
  const int rounds = std::min(hosts - 1 + hosts % 2, static_cast<int>(std::bit_width(static_cast<unsigned>(hosts))));
  std::vector<std::unique_ptr<comm::Communicator>> partners(static_cast<size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    const int other = own < hosts ? partner_of(own, round, hosts) : hosts;
    if (other == hosts) continue;
    const int lower = std::min(own, other), higher = std::max(own, other);
    comm::Group pair{.axes = kAxes + static_cast<uint32_t>(round),
                     .name = "hosts",
                     .members = {rank_of(lower), rank_of(higher)},
                     .index = own == lower ? 0 : 1};
    partners[static_cast<size_t>(round)] = world.communicator(device, std::move(pair), comm::Purpose::critical);
  }
  world.connect();
  std::string problem;
  std::vector<double> seconds;
  for (const std::unique_ptr<comm::Communicator>& pair : partners) {
    c.world.control().barrier();
    seconds.push_back(0);
    if (pair == nullptr) continue;
    Links link(c, device, *pair);
    for (const int64_t n : {int64_t{2}, 2 * kElements}) {  // the first message opens the connection
      const std::string wrong = link.test(CommOp::all_gather, DType::f32, n, 0);
      if (problem.empty()) problem = wrong;
    }
    seconds.back() = link.seconds();
  }
  std::vector<Finding> findings = {
      finding_of(c, format("{} hosts in {} rounds of pairs, 8 MiB each way", hosts, rounds), problem)};
  std::vector<HostPair> pairs;
  const std::vector<std::vector<double>> all = gather_values(c.world, seconds);
  for (int round = 0; round < rounds; ++round)
    for (int host = 0; host < hosts; ++host) {
      const int other = partner_of(host, round, hosts);
      if (other <= host || other == hosts) continue;
      const auto at = static_cast<size_t>(round);
      const double slower =
          std::max(all[static_cast<size_t>(rank_of(host))][at], all[static_cast<size_t>(rank_of(other))][at]);
      pairs.push_back({host, other, 4 * kElements / slower / 1e9});
    }
  const auto name = [&](int host) { return c.hosts[static_cast<size_t>(rank_of(host))]; };
  const HostPair& slowest = *std::ranges::min_element(pairs, {}, &HostPair::rate);
  Finding speed{.checked = format("{} pairs of hosts, GB/s each way", pairs.size()),
                .worst = slowest.rate,
                .bound = usual_rate(pairs) / 2,
                .where = format("host {} <-> host {}", name(slowest.a), name(slowest.b))};
  if (speed.worst < speed.bound) {
    speed.result = Result::warning;
    for (const int host : slow_hosts(pairs, speed.bound)) speed.ranks.push_back(rank_of(host));
    speed.text = format("{}: {:.2g} GB/s, most hosts reach {:.2g}", speed.where, speed.worst, 2 * speed.bound);
    if (!speed.ranks.empty()) speed.text += "; all pairs are slow of " + c.name(speed.ranks);
  }
  findings.push_back(std::move(speed));
  return findings;
}

}  // namespace

int partner_of(int host, int round, int hosts) {
  const int last = hosts - 1 + hosts % 2;  // the place that does not move; empty with an odd number of hosts
  const auto opposite = [&](int place) { return ((round - place) % last + last) % last; };
  if (host < last) return opposite(host) == host ? last : opposite(host);
  for (int place = 0; place < last; ++place)
    if (opposite(place) == place) return place;
  return hosts;
}

double usual_rate(const std::vector<HostPair>& pairs) {
  std::map<int, double> best;
  for (const HostPair& pair : pairs)
    for (const int host : {pair.a, pair.b}) best[host] = std::max(best[host], pair.rate);
  std::vector<double> rates;
  for (const auto& [host, rate] : best) rates.push_back(rate);
  std::ranges::sort(rates);
  return rates[rates.size() / 2];
}

std::vector<int> slow_hosts(const std::vector<HostPair>& pairs, double bound) {
  std::map<int, bool> slow;
  for (const HostPair& pair : pairs)
    for (const int host : {pair.a, pair.b}) slow.try_emplace(host, true).first->second &= pair.rate < bound;
  std::vector<int> hosts;
  for (const auto& [host, all] : slow)
    if (all) hosts.push_back(host);
  return hosts;
}

std::vector<Finding> check_links(Context& c) {
  if (c.world.size() == 1) return skipped("one rank");
  const std::unique_ptr<device::Device> device = c.make_device();
  const std::unique_ptr<comm::World> gpus = comm::gpu_world(c.world, *device, c.between_gpus);
  const sharding::ModelSharding sharding = config::sharding_on(c.config, c.world.size());
  mesh::Mesh mesh(gpus ? *gpus : c.world, *device, parallel::mesh_shape(sharding));
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
  const std::vector<std::unique_ptr<Links>> of_stages = links_of_stages(c, *device, mesh);
  mesh.world().connect();
  constexpr CommOp kOps[] = {CommOp::all_reduce, CommOp::reduce,    CommOp::reduce_scatter, CommOp::all_gather,
                             CommOp::all_to_all, CommOp::broadcast, CommOp::shift};
  std::string problem;
  std::string left_out;
  bool names_sender = false;
  const std::set<DType> types = {c.machine.compute, accumulator_of(c.machine.compute)};
  for (const auto& [purpose, links] : groups)
    for (const DType type : types)
      for (const CommOp op : kOps)
        for (const int64_t n : sizes) {
          // The purposes differ in their queues only.
          if (purpose != comm::Purpose::critical && n != 7 && n != 4097 && n != 65543) continue;
          const bool sums = op == CommOp::all_reduce || op == CommOp::reduce || op == CommOp::reduce_scatter;
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
  std::vector<Finding> findings = {finding_of_senders(
      c,
      format("{} x {} operations x {} sizes{}", counted(group_count, "group"), std::size(kOps), sizes.size(), left_out),
      problem)};
  problem.clear();
  for (const std::unique_ptr<Links>& link : of_stages)
    for (const DType type : types)
      for (const int64_t n : sizes)
        if (const std::string wrong = link->test(CommOp::send, type, n, 0); problem.empty()) problem = wrong;
  if (sharding.stages.count > 1)
    findings.push_back(finding_of_senders(
        c, format("links of {} stages, both ways x {} sizes", sharding.stages.count, sizes.size()), problem));
  problem.clear();
  std::set<mesh::AxisSet> of_experts;
  for (const sharding::Layer& layer : sharding.layers) of_experts.insert(sharding.wide(layer.experts));
  of_experts.erase(0);
  for (const mesh::AxisSet set : of_experts) {
    Links links(c, *device, mesh.along(set, comm::Purpose::critical));
    for (const DType type : types)
      for (const int64_t n : sizes)
        if (const std::string wrong = links.test(CommOp::all_to_all, type, n, 0, true); problem.empty())
          problem = wrong;
  }
  if (!of_experts.empty())
    findings.push_back(
        finding_of_senders(c, format("exchange of experts' rows, uneven, x {} sizes", sizes.size()), problem));
  std::ranges::move(check_pairs(c, *device, mesh.world()), std::back_inserter(findings));
  return findings;
}

}  // namespace trainer::verify
