#pragma once
// The MPI functions that the program uses, as a table of C functions. Two MPI libraries differ in their data symbols
// and in the sizes of their types, so a program compiled with one mpi.h works with one library only. Therefore only
// mpi_module.cpp includes mpi.h. It is either linked into the program (TRAINER_MPI=ON), or compiled once per MPI
// library as a shared library (TRAINER_MPI=MODULE); when mpirun starts the program, it loads the one that matches this
// mpirun.
#include <cstdint>

namespace trainer::comm {

/// An MPI_Request of any library: a pointer in Open MPI, an int in MPICH.
using MpiRequest = uint64_t;

/// A message that test_some() found to be complete.
struct MpiCompletion {
  int32_t index;      // in the array of requests
  int32_t status;     // 0, or the status of this message, for error_text
  int32_t bytes;      // received
  int32_t truncated;  // 1: the sender's message was longer than the buffer; then `status` is 0
};

/// All functions that return int return 0 on success, else a status for error_text. `comm` is MPI_COMM_WORLD.
struct MpiTable {
  int32_t abi;  // equals kMpiAbi if the program and the module agree on this struct
  MpiRequest null_request;
  void (*version)(char* text, int capacity);  // the library's own description; allowed before start
  int (*started)();                           // 1 if MPI was initialised in this process
  /// MPI_Init_thread with MPI_THREAD_FUNNELED; afterwards errors are returned instead of aborting. *funneled is 0 if
  /// the library does not support threads at all.
  int (*start)(int* funneled, int* rank, int* size, int* max_tag);
  void (*finalize)();
  void (*error_text)(int status, char* text, int capacity);
  int (*send)(const void* data, int bytes, int peer, int tag, MpiRequest* request);
  int (*receive)(void* data, int bytes, int peer, int tag, MpiRequest* request);  // peer -1: any
  int (*test)(MpiRequest* request, int* done);
  /// Sets *done to the number of completed requests, and these requests to null_request.
  int (*test_some)(int n, MpiRequest* requests, int* done, MpiCompletion* completions);
  void (*cancel)(MpiRequest* request);
  void (*wait)(MpiRequest* request);
  int (*all_reduce)(float* values, int n);  // sum over MPI_COMM_WORLD, in place
};

inline constexpr int32_t kMpiAbi = 1;

extern "C" const MpiTable* trainer_mpi();
using MpiTableFunction = decltype(&trainer_mpi);

/// Returns the table of the MPI library that matches the launcher; the first call loads it. Throws Code::usage if the
/// program was built without MPI, or if no library can be loaded (the message lists every attempt).
const MpiTable& mpi_table();

}  // namespace trainer::comm
