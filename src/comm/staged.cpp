#include "comm/staged.h"

#include <algorithm>
#include <utility>

namespace trainer::comm {

void Staged::stage(device::Device& device, Tensor& in, Tensor& out) {
  device_ = &device;
  operation_ = nullptr;
  out_ = out;
  // One range of the device's memory when they overlap, else one behind the other.
  int64_t in_at = 0, out_at = round_up(in.bytes(), 64);
  if (in.data < out.data + out.bytes() && out.data < in.data + in.bytes()) {
    const std::byte* first = std::min(in.data, out.data);
    in_at = in.data - first;
    out_at = out.data - first;
  }
  memory_.resize(static_cast<size_t>(std::max(in_at + in.bytes(), out_at + out.bytes())));
  device.copy_to_host(memory_.data() + in_at, in.data, in.bytes());
  in.data = memory_.data() + in_at;
  out.data = result_ = memory_.data() + out_at;
}

void Staged::wait() {
  if (operation_ != nullptr) std::exchange(operation_, nullptr)->wait();
  std::exchange(device_, nullptr)->copy_to_device(out_.data, result_, out_.bytes());
}

void Staged::abandon() noexcept {
  if (operation_ != nullptr) std::exchange(operation_, nullptr)->abandon();
  device_ = nullptr;
}

}  // namespace trainer::comm
