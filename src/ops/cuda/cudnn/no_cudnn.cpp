// This file is compiled instead of attention.cpp if cuDNN or its front end was not found.
#include "base/error.h"
#include "ops/cuda/fused_attention.h"

namespace trainer::ops::cuda {

std::unique_ptr<FusedAttention> load_cudnn(const device::cuda::Facts&, bool) {
  throw Error(
      Code::usage,
      "this trainer was built without cuDNN; to use it, install cuDNN 9 and the cudnn-frontend headers and build with "
      "-DTRAINER_CUDNN=ON");
}

}  // namespace trainer::ops::cuda
