#pragma once
// Whose kernels compute attention on a GPU where the configuration leaves it open.
#include <string>

#include "device/cuda/facts.h"

namespace trainer::ops {

/// As use_cudnn_attention (ops/attention.h), but only where cuDNN is built in, found, and new enough to need little
/// workspace; our kernels elsewhere. Returns why cuDNN is not used; empty: it is.
std::string use_cudnn_attention_if_good(const device::cuda::Facts& gpu);

}  // namespace trainer::ops
