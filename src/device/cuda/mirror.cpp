#include "device/cuda/mirror.h"

#include <type_traits>

#include "device/cuda/runtime.h"

namespace trainer::device::cuda {
namespace {

class CudaMirror final : public Mirror {
 public:
  CudaMirror(int ordinal, cudaStream_t compute, cudaStream_t copies)
      : ordinal_(ordinal), compute_(compute), copies_(copies) {
    check(cudaSetDevice(ordinal_), "selecting the CUDA device");
    for (cudaEvent_t* event : {&computed_, &fetched_, &put_})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event");
  }
  ~CudaMirror() override {
    cudaSetDevice(ordinal_);
    cudaEventSynchronize(fetched_);
    cudaEventSynchronize(put_);
    for (cudaEvent_t event : {computed_, fetched_, put_}) cudaEventDestroy(event);
    cudaFreeHost(memory_);
  }

  std::byte* memory(int64_t bytes) override {
    check(cudaEventSynchronize(fetched_), "copy to the host");
    check(cudaEventSynchronize(put_), "copy to the device");
    if (bytes > bytes_) {
      check(cudaFreeHost(memory_), "pinned host memory");
      memory_ = nullptr;
      bytes_ = 0;
      check(cudaMallocHost(reinterpret_cast<void**>(&memory_), static_cast<size_t>(bytes)), "pinned host memory");
      bytes_ = bytes;
    }
    return memory_;
  }
  void fetch(int64_t at, const std::byte* from, int64_t bytes) override {
    check(cudaEventRecord(computed_, compute_), "event");
    check(cudaStreamWaitEvent(copies_, computed_), "wait for the compute stream");
    check(cudaMemcpyAsync(memory_ + at, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, copies_),
          "copy to the host");
    check(cudaEventRecord(fetched_, copies_), "event");
  }
  bool is_fetched() const override {
    // Progress threads poll. Without its device a thread would get a context on the first GPU.
    check(cudaSetDevice(ordinal_), "selecting the CUDA device");
    const cudaError_t status = cudaEventQuery(fetched_);
    if (status != cudaErrorNotReady) check(status, "copy to the host");
    return status == cudaSuccess;
  }
  void put(std::byte* to, int64_t at, int64_t bytes) override {
    check(cudaMemcpyAsync(to, memory_ + at, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, compute_),
          "copy to the device");
    check(cudaEventRecord(put_, compute_), "event");
  }

 private:
  int ordinal_;
  cudaStream_t compute_, copies_;
  cudaEvent_t computed_ = nullptr, fetched_ = nullptr, put_ = nullptr;
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    check(cudaGraphInstantiate(&exec_, graph, 0), "CUDA graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
  void run() override { check(cudaGraphLaunch(exec_, stream_), "CUDA graph"); }

 private:
  cudaGraphExec_t exec_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<Mirror> make_mirror(int ordinal, cudaStream_t compute, cudaStream_t copies) {
  return std::make_unique<CudaMirror>(ordinal, compute, copies);
}

std::unique_ptr<Graph> capture(cudaStream_t stream, const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  // Captures this thread's work only: other threads may query events and allocate meanwhile.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "start of CUDA graph capture");
  try {
    work();
  } catch (...) {
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "end of CUDA graph capture");
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, void (*)(cudaGraph_t)> owner(
      graph, [](cudaGraph_t g) { cudaGraphDestroy(g); });
  return std::make_unique<CudaGraph>(graph, stream);
}

}  // namespace trainer::device::cuda
