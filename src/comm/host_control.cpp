#include "comm/host_control.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <numeric>

namespace trainer::comm {
namespace {

template <typename T>
Tensor tensor_of(std::span<T> values) {
  return {reinterpret_cast<std::byte*>(values.data()), {static_cast<int64_t>(values.size())}, DTypeOf<T>::value};
}
Tensor bytes_of(std::string& text, size_t begin, size_t count) {
  return {reinterpret_cast<std::byte*>(text.data() + begin), {static_cast<int64_t>(count)}, DType::u8};
}

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

void HostControl::barrier() {
  int64_t one = 1;
  all_->all_reduce(ex_, tensor_of(std::span(&one, 1))).join(ex_);
}

void HostControl::broadcast(std::string& bytes, int root) {
  int64_t length = static_cast<int64_t>(bytes.size());
  all_->broadcast(ex_, tensor_of(std::span(&length, 1)), root).join(ex_);
  if (length == 0) {
    bytes.clear();
    return;
  }
  bytes.resize(static_cast<size_t>(length));
  all_->broadcast(ex_, bytes_of(bytes, 0, bytes.size()), root).join(ex_);
}

std::vector<std::string> HostControl::gather(const std::string& bytes) {
  const size_t ranks = static_cast<size_t>(all_->size()), mine = static_cast<size_t>(all_->rank());
  std::vector<int64_t> lengths(ranks);
  lengths[mine] = static_cast<int64_t>(bytes.size());
  all_->all_gather(ex_, tensor_of(std::span(&lengths[mine], 1)), tensor_of(std::span(lengths))).join(ex_);
  const size_t longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::string> parts(ranks);
  if (longest == 0) return parts;
  std::string table(ranks * longest, '\0');
  bytes.copy(table.data() + mine * longest, bytes.size());
  all_->all_gather(ex_, bytes_of(table, mine * longest, longest), bytes_of(table, 0, table.size())).join(ex_);
  for (size_t rank = 0; rank < ranks; ++rank)
    parts[rank] = table.substr(rank * longest, static_cast<size_t>(lengths[rank]));
  return parts;
}

void HostControl::sum(std::span<double> values) {
  // Each all_reduce is small enough to add in rank order.
  for (size_t begin = 0; begin < values.size(); begin += kDirectElements)
    all_->all_reduce(ex_, tensor_of(values.subspan(begin, std::min<size_t>(kDirectElements, values.size() - begin))))
        .join(ex_);
}

}  // namespace trainer::comm
