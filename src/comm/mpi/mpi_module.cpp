#if defined(TRAINER_HAS_MPI) || defined(TRAINER_MPI_MODULE)
#include <mpi.h>

#include <algorithm>
#include <cstring>

#include "comm/mpi/mpi_table.h"

namespace trainer::comm {
namespace {

static_assert(sizeof(MPI_Request) <= sizeof(MpiRequest) && MPI_SUCCESS == 0);

MPI_Request unpack(MpiRequest packed) {
  MPI_Request request;
  std::memcpy(&request, &packed, sizeof request);
  return request;
}

MpiRequest pack(MPI_Request request) {
  MpiRequest packed = 0;
  std::memcpy(&packed, &request, sizeof request);
  return packed;
}

void copy_text(const char* from, int length, char* to, int capacity) {
  const int n = std::min(length, capacity - 1);
  std::memcpy(to, from, static_cast<size_t>(n));
  to[n] = 0;
}

void version(char* text, int capacity) {
  char all[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(all, &length);
  copy_text(all, length, text, capacity);
}

int started() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag;
}

int start(int* funneled, int* rank, int* size, int* max_tag) {
  int provided = MPI_THREAD_SINGLE, found = 0;
  int* tag = nullptr;
  int status = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  *funneled = provided >= MPI_THREAD_FUNNELED;
  if (status == MPI_SUCCESS) status = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (status == MPI_SUCCESS) status = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  if (status == MPI_SUCCESS) status = MPI_Comm_size(MPI_COMM_WORLD, size);
  if (status == MPI_SUCCESS) status = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag, &found);
  if (found != 0) *max_tag = *tag;
  return status;
}

void finalize() { MPI_Finalize(); }

void error_text(int status, char* text, int capacity) {
  char all[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, all, &length);
  copy_text(all, length, text, capacity);
}

int send(const void* data, int bytes, int peer, int tag, MpiRequest* request) {
  MPI_Request r = MPI_REQUEST_NULL;
  const int status = MPI_Isend(data, bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &r);
  *request = pack(r);
  return status;
}

int receive(void* data, int bytes, int peer, int tag, MpiRequest* request) {
  MPI_Request r = MPI_REQUEST_NULL;
  const int from = peer < 0 ? MPI_ANY_SOURCE : peer;
  const int status = MPI_Irecv(data, bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &r);
  *request = pack(r);
  return status;
}

int test(MpiRequest* request, int* done) {
  MPI_Request r = unpack(*request);
  const int status = MPI_Test(&r, done, MPI_STATUS_IGNORE);
  *request = pack(r);
  return status;
}

/// Calls MPI_Testsome on at most kAtOnce requests; `first` is the index of requests[0] in the whole array.
constexpr int kAtOnce = 64;
int test_chunk(int first, int n, MpiRequest* requests, int* done, MpiCompletion* completions) {
  MPI_Request all[kAtOnce];
  MPI_Status statuses[kAtOnce];
  int indices[kAtOnce], count = 0;
  std::transform(requests, requests + n, all, unpack);
  const int status = MPI_Testsome(n, all, &count, indices, statuses);
  if (status != MPI_SUCCESS && status != MPI_ERR_IN_STATUS) return status;
  if (count == MPI_UNDEFINED) count = 0;  // every request is null
  for (int i = 0; i < count; ++i) {
    int error = MPI_SUCCESS, bytes = 0;
    if (status == MPI_ERR_IN_STATUS)
      MPI_Error_class(statuses[i].MPI_ERROR, &error);  // MPI sets MPI_ERROR only in this case
    const bool truncated = error == MPI_ERR_TRUNCATE;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    completions[(*done)++] = {first + indices[i], error == MPI_SUCCESS || truncated ? 0 : statuses[i].MPI_ERROR, bytes,
                              truncated};
    requests[indices[i]] = pack(all[indices[i]]);
  }
  return MPI_SUCCESS;
}

int test_some(int n, MpiRequest* requests, int* done, MpiCompletion* completions) {
  *done = 0;
  int status = MPI_SUCCESS;
  for (int first = 0; first < n && status == MPI_SUCCESS; first += kAtOnce)
    status = test_chunk(first, std::min(kAtOnce, n - first), requests + first, done, completions);
  return status;
}

void cancel(MpiRequest* request) {
  MPI_Request r = unpack(*request);
  if (r != MPI_REQUEST_NULL) MPI_Cancel(&r);
}

void wait(MpiRequest* request) {
  MPI_Request r = unpack(*request);
  MPI_Wait(&r, MPI_STATUS_IGNORE);
  *request = pack(r);
}

int all_reduce(float* values, int n) {
  return MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

}  // namespace

extern "C" const MpiTable* trainer_mpi() {
  static const MpiTable table = {kMpiAbi,    pack(MPI_REQUEST_NULL),
                                 version,    started,
                                 start,      finalize,
                                 error_text, send,
                                 receive,    test,
                                 test_some,  cancel,
                                 wait,       all_reduce};
  return &table;
}

}  // namespace trainer::comm
#endif
