// This file is compiled instead of attention.cpp if cuDNN or its front end was not found.
#include "base/error.h"
#include "ops/cuda/fused_attention.h"

namespace trainer::ops::cuda {

std::unique_ptr<FusedAttention> load_cudnn(int) {
  throw Error(
      Code::usage,
      "this trainer was built without cuDNN (configure it with -DTRAINER_CUDNN=ON where cuDNN 9 and the headers "
      "of cudnn-frontend are)");
}

}  // namespace trainer::ops::cuda
