#pragma once
// Tiny models for tests of Megatron-1D.
#include <ostream>

#include "rigs/layouts.h"

namespace trainer::tests {

struct MegatronLayout {
  int64_t tensor = 1, data = 1;
  bool sequence_parallel = true;
  config::Arch arch = config::Arch::gpt2;
  int64_t micro_batch = 2;
  int64_t kv_heads = 0;  // 0: gpt2: as many as heads; llama: 2, or 3 if tensor = 3
};
inline std::string to_string(const MegatronLayout& l) {
  return format("Tensor{}Data{}{}Each{}{}{}", l.tensor, l.data, l.sequence_parallel ? "Sp" : "", l.micro_batch,
                l.arch == config::Arch::gpt2 ? "Gpt2" : "Llama", l.kv_heads > 0 ? format("Kv{}", l.kv_heads) : "");
}
inline std::ostream& operator<<(std::ostream& out, const MegatronLayout& l) { return out << to_string(l); }

/// The vocabulary of 37 is padded to 48: of eight ranks, one has a single token and the last has none.
inline config::Config configure(const MegatronLayout& l) {
  config::Config c = tiny_config(l.arch);
  c.model.n_head = 24;
  c.model.n_kv_head = l.kv_heads > 0 ? l.kv_heads : l.arch == config::Arch::gpt2 ? 24 : l.tensor == 3 ? 3 : 2;
  c.model.d_model = 48;
  c.model.d_ff = 72;
  c.model.seq_len = 24;
  c.model.vocab_multiple = 48;
  c.train.global_batch = 4;
  c.train.micro_batch = l.micro_batch;
  c.optim.grad_clip = 0.1;
  c.parallel.tensor = l.tensor;
  c.parallel.data = l.data;
  c.parallel.sequence_parallel = l.sequence_parallel;
  return c;
}

}  // namespace trainer::tests
