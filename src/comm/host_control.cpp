#include "comm/host_control.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <numeric>

namespace trainer::comm {
namespace {

// Packs an error as text: its code, then the message. Empty if there is none.
std::string packed(const std::optional<Error>& problem) {
  return problem ? static_cast<char>('A' + static_cast<int>(problem->code())) + std::string(problem->what())
                 : std::string();
}

}  // namespace

Group control_group(int rank, int size) {
  Group group{
      .axes = kControlGroup, .name = "control", .members = std::vector<int>(static_cast<size_t>(size)), .index = rank};
  std::iota(group.members.begin(), group.members.end(), 0);
  return group;
}

void Control::throw_if_any_failed(const std::optional<Error>& problem) {
  const std::vector<std::string> all = gather(packed(problem));
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  if (first == all.end()) return;
  Error error(static_cast<Code>(first->front() - 'A'), first->substr(1));
  if (first != all.begin()) error.add_context(format("rank {}", first - all.begin()));
  throw error.on(Scope::all_ranks);
}

void Control::run_on_all_ranks(const std::function<void()>& action) {
  std::optional<Error> problem;
  try {
    action();
  } catch (const Error& error) {
    problem = error;
  } catch (const std::bad_alloc&) {
    problem = Error(Code::plan, "out of memory");
  } catch (const std::filesystem::filesystem_error& error) {
    problem = Error(Code::io, error.what());
  } catch (const std::exception& error) {
    problem = Error(Code::internal, error.what());
  }
  throw_if_any_failed(problem);
}

HostControl::HostControl(const std::function<std::unique_ptr<Communicator>(device::Device&)>& make)
    : all_(make(device_)) {}

Scratch HostControl::take(size_t count, DType dtype) {
  return ex_.take("control", {static_cast<int64_t>(count)}, dtype);
}

void HostControl::barrier() {
  const Scratch one = take(1, DType::i64);
  all_->all_reduce(ex_, one).join(ex_);
}

void HostControl::broadcast(std::string& bytes, int root) {
  const Scratch length = take(1, DType::i64);
  auto& count = *length.tensor().as<int64_t>();
  count = static_cast<int64_t>(bytes.size());
  all_->broadcast(ex_, length, root).join(ex_);
  if (count == 0) {
    bytes.clear();
    return;
  }
  bytes.resize(static_cast<size_t>(count));
  const Scratch copy = take(bytes.size(), DType::u8);
  std::ranges::copy(bytes, reinterpret_cast<char*>(copy.tensor().data));
  all_->broadcast(ex_, copy, root).join(ex_);
  bytes.assign(reinterpret_cast<const char*>(copy.tensor().data), bytes.size());
}

std::vector<std::string> HostControl::gather(const std::string& bytes) {
  const size_t ranks = static_cast<size_t>(all_->size()), mine = static_cast<size_t>(all_->rank());
  const Scratch counts = take(ranks, DType::i64);
  const std::span lengths(counts.tensor().as<int64_t>(), ranks);
  lengths[mine] = static_cast<int64_t>(bytes.size());
  all_->all_gather(ex_, counts.tensor().range(all_->rank(), 1), counts).join(ex_);
  const int64_t longest = std::ranges::max(lengths);
  std::vector<std::string> parts(ranks);
  if (longest == 0) return parts;
  const Scratch table = take(ranks * static_cast<size_t>(longest), DType::u8);
  const auto part = [&](size_t rank) { return table.tensor().range(static_cast<int64_t>(rank) * longest, longest); };
  std::ranges::copy(bytes, reinterpret_cast<char*>(part(mine).data));
  all_->all_gather(ex_, part(mine), table).join(ex_);
  for (size_t rank = 0; rank < ranks; ++rank)
    parts[rank].assign(reinterpret_cast<const char*>(part(rank).data), static_cast<size_t>(lengths[rank]));
  return parts;
}

void HostControl::sum(std::span<double> values) {
  // Each all_reduce is small enough to add in rank order.
  for (size_t begin = 0; begin < values.size(); begin += kDirectElements) {
    const std::span<double> some = values.subspan(begin, std::min<size_t>(kDirectElements, values.size() - begin));
    const Scratch copy = take(some.size(), DType::f64);
    std::ranges::copy(some, copy.tensor().as<double>());
    all_->all_reduce(ex_, copy).join(ex_);
    std::copy_n(copy.tensor().as<double>(), some.size(), some.begin());
  }
}

}  // namespace trainer::comm
