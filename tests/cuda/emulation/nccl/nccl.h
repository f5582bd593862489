#pragma once
// An NCCL whose ranks are threads of one process, each on an emulated device of its own; found instead of the real
// header when comm/nccl is compiled for tests. Communicators do not block: a call is carried out while its state is
// queried, as late as NCCL may. Operations are matched in the order of their streams; those whose partners never
// start hang until the communicator is aborted.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_runtime.h"

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_CONFIG_INITIALIZER \
  {}
#define NCCL_SPLIT_NOCOLOR -1

namespace emulator {
struct NcclComm;

/// Faults that the library injects, by device, and the calls that it received.
struct NcclFaults {
  int hanging_device = -1;  // its operations from number hang_from on (counted from 0) are never carried out
  int hang_from = 0;
  int broken_device = -1;  // its communicators report an error
  bool never_connects = false;
  bool old_version = false;  // 2.25
};
void set_nccl_faults(const NcclFaults& faults);
/// "all_reduce 10 f32 of 2" for every operation started on a device, in order, since the last call.
std::vector<std::string> take_nccl_log(int device);
/// Communicators that are neither destroyed nor aborted.
int live_nccl_communicators();
}  // namespace emulator

enum ncclResult_t {
  ncclSuccess,
  ncclUnhandledCudaError,
  ncclSystemError,
  ncclInternalError,
  ncclInvalidArgument,
  ncclInvalidUsage,
  ncclRemoteError,
  ncclInProgress,
};
enum ncclDataType_t {
  ncclInt8 = 0,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2 };
using ncclComm_t = emulator::NcclComm*;
struct ncclUniqueId {
  char internal[128];
};
struct ncclConfig_t {
  int blocking = 1;
  int maxCTAs = 0;  // 0: the library's choice
};

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
