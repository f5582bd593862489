// Streams, events and graphs of the emulated CUDA runtime. Work is done by the thread that waits for it.
#include <algorithm>

#include "machine.h"

namespace emulator {
namespace {

thread_local int device_of_thread = 0;
thread_local int only_visible = -1;  // -1: all devices
constexpr size_t kLongestQueue = 4096;

bool known(const Stream* stream) { return machine().streams.contains(const_cast<Stream*>(stream)); }

}  // namespace

Machine& machine() {
  static Machine& all = *new Machine;  // never destroyed: devices may outlive static objects
  return all;
}

int current_device() { return device_of_thread; }
int first_visible_device() { return std::max(0, only_visible); }
int visible_devices() { return only_visible < 0 ? machine().devices : 1; }

Call::Call() : Lock(machine().mutex) {
  static int threads = 0;  // guarded by the lock; thread ids would be reused
  thread_local const int thread = threads++;
  machine().touched[thread].insert(device_of_thread);
}
std::vector<std::set<int>> touched_by_threads() {
  const Lock lock(machine().mutex);
  std::vector<std::set<int>> all;
  for (const auto& [thread, devices] : machine().touched) all.push_back(devices);
  return all;
}
int streams_with_priority(int priority) {
  const Lock lock(machine().mutex);
  return static_cast<int>(std::ranges::count(machine().streams, priority, &Stream::priority));
}
void forget_touched() {
  const Lock lock(machine().mutex);
  machine().touched.clear();
}
void see_only(int device) {
  only_visible = device;
  device_of_thread = first_visible_device();
}

void set_devices(int count, int instances) {
  const Lock lock(machine().mutex);
  machine().devices = count;
  machine().instances = instances;
}

Hold::Hold(Stream* stream) : released_(std::make_shared<bool>(false)) {
  const Lock lock(machine().mutex);
  enqueue(stream, [released = released_] { return *released; });
}
void Hold::release() {
  const Lock lock(machine().mutex);
  *released_ = true;
  machine().changed.notify_all();
}

bool advance(Stream& stream, uint64_t place) {
  Machine& m = machine();
  if (stream.done >= place) return true;
  if (stream.advancing) return false;  // a caller further up runs its front item
  stream.advancing = true;
  if (m.depth++ == 0) m.memory.open(true);
  while (stream.done < place && stream.queue.front()()) {
    stream.queue.pop_front();
    ++stream.done;
  }
  if (--m.depth == 0) m.memory.open(false);
  stream.advancing = false;
  return stream.done >= place;
}

void wait_for(Lock& lock, Stream& stream, uint64_t place) {
  while (!advance(stream, place)) machine().changed.wait(lock);
}

void wait_for_device(Lock& lock) {
  const std::set<Stream*> streams = machine().streams;  // a copy: streams are created and destroyed meanwhile
  for (Stream* stream : streams)
    if (known(stream) && stream->device == current_device()) wait_for(lock, *stream, stream->queued);
}

cudaError_t enqueue(Stream* stream, Work work) {
  Machine& m = machine();
  if (!known(stream) || stream->device != current_device()) return note(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    stream->capture->work.push_back(std::move(work));
    return cudaSuccess;
  }
  stream->queue.push_back(std::move(work));
  ++stream->queued;
  m.changed.notify_all();
  if (m.depth == 0 && stream->queue.size() > kLongestQueue) advance(*stream, stream->queued);
  return cudaSuccess;
}

}  // namespace emulator

using namespace emulator;

cudaError_t cudaSetDevice(int ordinal) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (ordinal < 0 || ordinal >= count) return note(cudaErrorInvalidDevice);
  device_of_thread = first_visible_device() + ordinal;
  const Call makes_a_context;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = device_of_thread - first_visible_device();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  Call lock;
  wait_for_device(lock);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = kLowestPriority;
  *highest = kHighestPriority;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  if (priority > kLowestPriority || priority < kHighestPriority) return note(cudaErrorInvalidValue);
  const Call lock;
  *stream = new Stream{.device = current_device(), .priority = priority};
  machine().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, kLowestPriority);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call lock;
  wait_for(lock, *stream, stream->queued);
  machine().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Call lock;
  if (!known(stream)) return note(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return note(cudaErrorStreamCaptureUnsupported);
  wait_for(lock, *stream, stream->queued);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Call lock;
  if (stream->capture != nullptr) return note(cudaErrorStreamCaptureUnsupported);
  if (event->stream == nullptr || event->stream == stream) return cudaSuccess;
  return enqueue(stream,
                 [first = event->stream, place = event->place] { return !known(first) || advance(*first, place); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Call lock;
  *event = new Event;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Call lock;
  if (!known(stream)) return note(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return note(cudaErrorStreamCaptureUnsupported);
  *event = {stream, stream->queued};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call lock;
  const auto [stream, place] = *event;
  while (stream != nullptr && known(stream) && !advance(*stream, place)) machine().changed.wait(lock);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Call lock;
  Stream* stream = event->stream;
  if (stream == nullptr || !known(stream) || stream->done >= event->place) return cudaSuccess;
  advance(*stream, stream->done + 1);  // so that a program that polls finishes
  return cudaErrorNotReady;
}
/// Each item of a device's work takes a millisecond.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::max(1.0f, static_cast<float>(end->place) - static_cast<float>(begin->place));
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Call lock;
  if (!known(stream)) return note(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return note(cudaErrorIllegalState);
  stream->capture = new Graph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Call lock;
  if (!known(stream) || stream->capture == nullptr) return note(cudaErrorIllegalState);
  *graph = std::exchange(stream->capture, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Call lock;
  for (const Work& work : exec->work)
    if (const cudaError_t status = enqueue(stream, work); status != cudaSuccess) return status;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
