// The functions of NCCL that the trainer calls.
#include <nccl.h>

#include "base/shared_library.h"

#define NCCL(name, parameters, arguments) \
  TRAINER_FUNCTION_OF_LIBRARY("libnccl.so.2", ncclResult_t, name, parameters, arguments)

TRAINER_FUNCTION_OF_LIBRARY("libnccl.so.2", const char*, ncclGetErrorString, (ncclResult_t result), (result))
TRAINER_FUNCTION_OF_LIBRARY("libnccl.so.2", const char*, ncclGetLastError, (ncclComm_t comm), (comm))
NCCL(ncclGetVersion, (int* version), (version))
NCCL(ncclGetUniqueId, (ncclUniqueId * id), (id))
NCCL(ncclCommInitRankConfig, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config),
     (comm, ranks, id, rank, config))
NCCL(ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t* result, ncclConfig_t* config),
     (comm, color, key, result, config))
NCCL(ncclCommFinalize, (ncclComm_t comm), (comm))
NCCL(ncclCommDestroy, (ncclComm_t comm), (comm))
NCCL(ncclCommAbort, (ncclComm_t comm), (comm))
NCCL(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* error), (comm, error))
NCCL(ncclGroupStart, (), ())
NCCL(ncclGroupEnd, (), ())
NCCL(ncclAllReduce,
     (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
      cudaStream_t stream),
     (in, out, count, type, op, comm, stream))
NCCL(ncclReduceScatter,
     (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
      cudaStream_t stream),
     (in, out, count, type, op, comm, stream))
NCCL(ncclAllGather,
     (const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream),
     (in, out, count, type, comm, stream))
NCCL(ncclBroadcast,
     (const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream),
     (in, out, count, type, root, comm, stream))
NCCL(ncclReduce,
     (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
      cudaStream_t stream),
     (in, out, count, type, op, root, comm, stream))
NCCL(ncclSend, (const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
     (in, count, type, peer, comm, stream))
NCCL(ncclRecv, (void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
     (out, count, type, peer, comm, stream))
