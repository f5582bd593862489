#include "train/replica_check.h"

#include <map>

#include "base/checksum.h"
#include "tensor/host_copy.h"

namespace trainer::train {
namespace {

template <typename T>
std::string hash_of(std::span<const T> values) {
  return to_string(checksum_of(std::as_bytes(values)));
}

/// Returns a parameter's name with a hash of the set of its elements that this rank holds; the name comes first, since
/// stages have different parameters. After a tab, a hash of their values, and the end of the line.
std::string describe(const params::Param& param, const Tensor& weights, std::vector<std::byte>& scratch) {
  std::vector<int64_t> which;
  scratch.clear();
  const auto size = static_cast<size_t>(size_of(weights.dtype));
  for (const mesh::Run& run : param.runs) {
    which.insert(which.end(), {run.global, run.length});
    const std::byte* first = weights.data + static_cast<size_t>(run.local) * size;
    if (run.stride == 1) {
      scratch.insert(scratch.end(), first, first + static_cast<size_t>(run.length) * size);
    } else {
      for (int64_t i = 0; i < run.length; ++i) {
        const std::byte* element = first + static_cast<size_t>(i * run.stride) * size;
        scratch.insert(scratch.end(), element, element + size);
      }
    }
  }
  return format("{} {}\t{}\n", param.name, hash_of(std::span<const int64_t>(which)),
                hash_of(std::span<const std::byte>(scratch)));
}

}  // namespace

void check_replicas(Trainer& trainer, int64_t step) {
  const params::ParamStore& store = trainer.store();
  store.settle();
  std::string own;
  std::vector<std::byte> scratch;
  HostCopy weights;
  int here = -1;  // the group whose weights are in `weights`
  for (const params::Param& param : store.params()) {
    const params::Group& group = store.groups()[static_cast<size_t>(param.group)];
    if (std::exchange(here, param.group) != param.group)
      weights.get(trainer.device(), group.compute ? group.compute.tensor() : group.master.tensor());
    own += describe(param, weights.tensor(), scratch);
  }
  const std::vector<std::string> all = trainer.mesh().host().gather(own);
  std::map<std::string_view, std::pair<std::string_view, size_t>> holders;  // elements → contents, first rank
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::string_view rest = all[rank];
    while (!rest.empty()) {
      const std::string_view which = rest.substr(0, rest.find('\t'));
      const std::string_view contents = rest.substr(which.size(), rest.find('\n') - which.size());
      rest.remove_prefix(which.size() + contents.size() + 1);
      const auto [first, is_new] = holders.try_emplace(which, contents, rank);
      if (is_new || first->second.first == contents) continue;
      throw Error(
          Code::difference,
          format("step {}: {} on rank {} differs from the copy on rank {}: one of these ranks computed a wrong result; "
                 "check the hardware of their hosts. The last checkpoint was saved before this check",
                 step, which.substr(0, which.find(' ')), rank, first->second.second))
          .on(Scope::all_ranks);
    }
  }
}

}  // namespace trainer::train
