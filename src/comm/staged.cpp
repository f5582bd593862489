#include "comm/staged.h"

#include <algorithm>
#include <utility>

namespace trainer::comm {

const device::Mirror* Staged::stage(Tensor& in, Tensor& out) {
  operation_ = nullptr;
  out_ = out;
  // Operands that overlap keep their relative position; others are placed back to back.
  int64_t in_at = 0, out_at = round_up(in.bytes(), 64);
  if (in.data < out.data + out.bytes() && out.data < in.data + in.bytes()) {
    const std::byte* first = std::min(in.data, out.data);
    in_at = in.data - first;
    out_at = out.data - first;
  }
  std::byte* memory = mirror_->memory(std::max(in_at + in.bytes(), out_at + out.bytes()));
  const bool reads = in.bytes() > 0;
  if (reads) mirror_->fetch(in_at, in.data, in.bytes());
  in.data = memory + in_at;
  out.data = memory + out_at;
  result_ = out_at;
  busy_ = true;
  return reads ? mirror_.get() : nullptr;
}

Interval Staged::wait() {
  busy_ = false;
  Interval flight;
  if (operation_ != nullptr) flight = std::exchange(operation_, nullptr)->wait();
  if (out_.bytes() > 0) mirror_->put(out_.data, result_, out_.bytes());
  return flight;
}

void Staged::abandon() noexcept {
  if (operation_ != nullptr) std::exchange(operation_, nullptr)->abandon();
  busy_ = false;
}

}  // namespace trainer::comm
