// A program for lost_peer_test.py whose ranks all-reduce forever, or send around a ring. Each rank prints its number,
// how far it is, the error that ends it, and its status.
//
//   mpi_lost_peer [TIMEOUT] [all_reduce|send] [ELEMENTS]
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

#include "comm/world.h"

using namespace trainer;

int main(int argc, char** argv) {
  const double timeout = argc > 1 ? std::atof(argv[1]) : 3;
  const bool sends = argc > 2 && std::string_view(argv[2]) == "send";
  const int64_t elements = argc > 3 ? std::atoll(argv[3]) : 100000;
  const std::unique_ptr<comm::World> world = comm::mpi_world({.timeout_s = timeout});
  const int rank = world->rank();
  int status = 0;
  try {
    device::CpuDevice device(1);
    Arena arena(device, Arena::Mode::heap);
    Meter meter;
    Exec ex{device, arena, meter};
    comm::Group group{
        .axes = 1, .name = "data", .members = std::vector<int>(static_cast<size_t>(world->size())), .index = rank};
    std::iota(group.members.begin(), group.members.end(), 0);
    const auto data = world->communicator(device, group, comm::Purpose::grads);
    const auto link_from = [&](int from) {
      const int ranks = world->size();
      return world->communicator(device,
                                 {.axes = 1,
                                  .name = "stage",
                                  .members = {from, (from + 1) % ranks},
                                  .index = from == rank ? 0 : 1,
                                  .link = comm::link_in_ring(ranks, from, comm::Way::forward)},
                                 comm::Purpose::critical);
    };
    const auto out = link_from(rank), in = link_from((rank + world->size() - 1) % world->size());
    Scratch x = ex.take("x", {elements}, DType::f32), y = ex.take("y", {elements}, DType::f32);
    for (int64_t step = 0;; ++step) {
      if (sends) {
        comm::Ticket receive = in->send(ex, y);
        out->send(ex, x).join(ex);
        receive.join(ex);
      } else {
        data->all_reduce(ex, x, comm::Reduce::max).join(ex);
      }
      if (step == 10) std::printf("rank %d is process %d\n", rank, getpid());
      if (step % 300 == 0) std::printf("rank %d is at step %lld\n", rank, static_cast<long long>(step));
      std::fflush(stdout);
    }
  } catch (const Error& error) {
    status = exit_status(error.code());
    std::printf("rank %d leaves with %d: %s\n", rank, status, error.what());
    std::fflush(stdout);
  }
  world->wait_for_all_ranks(2);
  return status;
}
