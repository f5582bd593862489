#pragma once
// Buffer: memory that outlives a micro-step (weights, optimizer state, tables), accounted under a category.
#include <string>
#include <utility>

#include "device/device.h"
#include "tensor/tensor.h"

namespace trainer {

class Buffer {
 public:
  Buffer() = default;
  /// Allocates zeroed memory; throws Code::plan if the device is out of memory.
  Buffer(device::Device& device, std::string category, Shape shape, DType dtype)
      : device_(&device), category_(std::move(category)), tensor_{nullptr, shape, dtype, 0} {
    tensor_.data = device.allocate(category_, tensor_.bytes());
  }
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = std::exchange(other.device_, nullptr);
      category_ = std::move(other.category_);
      tensor_ = std::exchange(other.tensor_, {});
    }
    return *this;
  }

  explicit operator bool() const { return static_cast<bool>(tensor_); }
  const Tensor& tensor() const { return tensor_; }
  operator Tensor() const { return tensor_; }

 private:
  void reset() noexcept {
    if (device_ != nullptr) device_->release(category_, tensor_.data, tensor_.bytes());
    device_ = nullptr;
    tensor_ = {};
  }
  device::Device* device_ = nullptr;
  std::string category_;
  Tensor tensor_;
};

}  // namespace trainer
