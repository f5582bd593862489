#include "train/replica_check.h"

#include <cstring>
#include <map>

#include "base/checksum.h"
#include "train/fingerprints.h"

namespace trainer::train {
namespace {

/// A parameter, or a layer's choices of experts, as ranks compare them: a hash of the name and the elements or rows,
/// and one of the values or experts.
struct Entry {
  uint64_t which = 0, contents = 0;
};

constexpr std::string_view kChoices = "the experts chosen in ";  // begins the names of layers' choices

std::string elements_of(const params::Param& param) {
  std::string text = param.name;
  for (const mesh::Run& run : param.runs) text += format(" {} {}", run.global, run.length);
  return text;
}

}  // namespace

void check_replicas(Trainer& trainer, int64_t step) {
  const params::ParamStore& store = trainer.store();
  store.settle();
  Exec ex = trainer.exec();
  const Buffer sums(trainer.device(), "data", {4096}, DType::i64);
  const std::vector<uint64_t> contents = fingerprints(
      ex, store, [](const params::Group& group) { return (group.compute ? group.compute : group.master).tensor(); },
      sums);
  std::string own;
  std::vector<std::string> names;
  const auto add = [&](std::string name, const std::string& elements, uint64_t of_contents) {
    const Entry entry{hash64(std::as_bytes(std::span(elements))), of_contents};
    own.append(reinterpret_cast<const char*>(&entry), sizeof entry);
    names.push_back(std::move(name));
  };
  for (size_t p = 0; p < contents.size(); ++p) add(store.params()[p].name, elements_of(store.params()[p]), contents[p]);
  for (int64_t layer = -1; const Trainer::ChoiceHash& hash : trainer.choice_hashes()) {
    layer += trainer.config().model.moe_every;
    const std::string name = format("{}blocks.{}.mlp", kChoices, layer);
    if (hash.choices != 0) add(name, format("{} {} {}", name, trainer.replica(), hash.first_row), hash.choices);
  }
  comm::Control& host = trainer.mesh().host();
  const std::vector<std::string> all = host.gather(own);
  std::map<uint64_t, std::pair<uint64_t, size_t>> holders;  // elements → contents, first rank
  for (size_t rank = 0; rank < all.size(); ++rank)
    for (size_t p = 0; p < all[rank].size() / sizeof(Entry); ++p) {
      Entry entry;
      std::memcpy(&entry, all[rank].data() + p * sizeof entry, sizeof entry);
      const auto [first, is_new] = holders.try_emplace(entry.which, entry.contents, rank);
      if (is_new || first->second.first == entry.contents) continue;
      std::string name = static_cast<int>(rank) == trainer.mesh().rank() ? names[p] : "";
      host.broadcast(name, static_cast<int>(rank));
      const bool chosen = name.starts_with(kChoices);
      throw Error(
          Code::difference,
          format("step {}: {} on rank {} {} rank {}{}: one of these ranks computed a wrong result{}; check the "
                 "hardware of their hosts. The last checkpoint was saved before this check",
                 step, name, rank, chosen ? "differ from those on" : "differs from the copy on", first->second.second,
                 chosen ? ", which has the same rows" : "", chosen ? ", or they compute with different kernels" : ""))
          .on(Scope::all_ranks);
    }
}

}  // namespace trainer::train
