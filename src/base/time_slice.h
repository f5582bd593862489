#pragma once
// The time slice that the kernel's scheduler gives to a thread.

namespace trainer {

/// Requests a short time slice for the calling thread. Since Linux 6.12 a woken thread interrupts a thread with a
/// longer slice, so a message need not wait until a GEMM on the same core has used up its slice. Older kernels ignore
/// the request.
void request_short_slice();

}  // namespace trainer
