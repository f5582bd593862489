#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/futex.h"
#include "unit/comm/rig.h"

namespace trainer::comm {
namespace {

TEST(Control, MovesHostDataAmongAllRanks) {
  for (int ranks : {1, 2, 5}) {
    run_on_threads(ranks, {}, [&](World& world) {
      EXPECT_EQ(world.size(), ranks);
      EXPECT_EQ(world.local_size(), ranks);
      EXPECT_EQ(world.transport(), "threads");
      Control& control = world.control();
      control.barrier();
      for (const size_t length : {size_t{0}, size_t{1}, size_t{300000}}) {
        std::string bytes = world.rank() == ranks - 1 ? std::string(length, 'x') : "other";
        control.broadcast(bytes, ranks - 1);
        EXPECT_EQ(bytes, std::string(length, 'x'));
      }
      const std::vector<std::string> parts = control.gather(std::string(static_cast<size_t>(world.rank() * 1000), 'a'));
      ASSERT_EQ(parts.size(), static_cast<size_t>(ranks));
      for (size_t rank = 0; rank < parts.size(); ++rank) EXPECT_EQ(parts[rank], std::string(rank * 1000, 'a'));
      EXPECT_EQ(control.gather(""), std::vector<std::string>(static_cast<size_t>(ranks)));

      std::vector<double> mine = values<double>(world.rank(), 9001), expected = values<double>(0, 9001);
      for (int rank = 1; rank < ranks; ++rank)
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += value<double>(rank, static_cast<int64_t>(i));
      control.sum(mine);
      EXPECT_TRUE(same_bits(mine, expected));
    });
  }
}

TEST(Control, AgreesOnTheErrorOfTheLowestRank) {
  std::atomic<int> thrown{0};
  run_on_threads(4, {}, [&](World& world) {
    world.control().throw_if_any_failed({});
    const Error error = error_of([&] {
      world.control().run_on_all_ranks([&] {
        if (world.rank() >= 2) throw Error(Code::data, format("file {} is bad", world.rank()));
      });
    });
    EXPECT_EQ(error.code(), Code::data);
    EXPECT_EQ(error.scope(), Scope::all_ranks);
    expect_parts(error.what(), {"rank 2", "file 2 is bad"});
    ++thrown;
    expect_error(Code::config, {"no such key"},
                 [&] { world.control().throw_if_any_failed(Error(Code::config, "no such key")); });
    world.control().barrier();  // the world is still usable
  });
  EXPECT_EQ(thrown, 4);
}

TEST(SoloWorld, CopiesAndCountsNothing) {
  const auto world = solo_world();
  EXPECT_EQ(world->transport(), "self");
  EXPECT_TRUE(world->wait_for_all_ranks(0));
  Rig rig;
  const auto comm = world->communicator(rig.device, group_of(*world, 1), Purpose::critical);
  std::vector<float> x = values<float>(0, 10), y(10);
  comm->all_reduce(rig.ex, tensor_of(x)).join(rig.ex);
  comm->reduce_scatter(rig.ex, tensor_of(x), tensor_of(y)).join(rig.ex);
  EXPECT_EQ(x, values<float>(0, 10));
  EXPECT_EQ(y, x);
  EXPECT_TRUE(rig.meter.comm().empty());
  EXPECT_EQ(rig.device.memory_total(), 0);
}

TEST(DryWorld, CountsLikeTheRealOneAndTakesTheSameMemory) {
  const auto work = [](World& world, Exec& ex, device::Device& device, std::byte* data) {
    const auto comm = world.communicator(device, group_of(world, 3, 5, "x"), Purpose::weights);
    const int64_t n = 5000, mine = comm->chunk(n).count;
    const Tensor all{data, {n}, DType::bf16};
    const Tensor chunk{data == nullptr ? nullptr : data + comm->chunk(n).begin * 2, {mine}, DType::bf16};
    comm->all_reduce(ex, all).join(ex);
    comm->all_gather(ex, chunk, all).join(ex);
    comm->broadcast(ex, all, 1).join(ex);
    return device.memory();
  };
  std::map<CommKey, CommCount> real;
  std::map<std::string, device::MemoryUse> memory;
  run_on_threads(3, {}, [&](World& world) {
    Rig rig;
    std::vector<bf16> data(5000, bf16(1.0f));
    const auto used = work(world, rig.ex, rig.device, tensor_of(data).data);
    if (world.rank() != 1) return;
    real = rig.meter.comm();
    memory = used;
  });
  const auto world = dry_world(3, 1);
  device::DryDevice device(1);
  Arena arena(device);
  Meter meter;
  Exec ex{device, arena, meter};
  const auto used = work(*world, ex, device, nullptr);
  ASSERT_EQ(meter.comm().size(), real.size());
  for (const auto& [key, count] : meter.comm()) {
    EXPECT_EQ(count.calls, real.at(key).calls);
    EXPECT_EQ(count.elements, real.at(key).elements);
    EXPECT_EQ(count.wire_bytes, real.at(key).wire_bytes);
  }
  EXPECT_GT(used.at("communication").peak, 0);
  EXPECT_EQ(used.at("communication").peak, memory.at("communication").peak);
  EXPECT_EQ(world->control().gather("a"), std::vector<std::string>({"a", "a", "a"}));
}

TEST(ThreadsWorld, RethrowsTheErrorThatCameFirst) {
  std::atomic<int> released{0};
  expect_error(Code::checkpoint, {"the disk is full"}, [&] {
    run_on_threads(4, {.timeout_s = 60}, [&](World& world) {
      if (world.rank() == 2) throw Error(Code::checkpoint, "the disk is full");
      try {
        world.control().barrier();
        world.control().barrier();
      } catch (const Error& echo) {
        EXPECT_EQ(echo.code(), Code::checkpoint);
        EXPECT_EQ(echo.scope(), Scope::another_rank);
        expect_parts(echo.what(), {"rank 2", "the disk is full"});
        EXPECT_THROW(world.control().barrier(), Error);  // later operations throw, too
        ++released;
        throw;
      }
    });
  });
  EXPECT_EQ(released, 3);
}

TEST(ThreadsWorld, EndsWhenAllRanksHaveCalled) {
  std::atomic<bool> tried{false};
  run_on_threads(3, {}, [&](World& world) {
    if (world.rank() == 0) {
      EXPECT_FALSE(world.wait_for_all_ranks(0.01));  // rank 1 has not called yet
      tried = true;
    }
    if (world.rank() == 1)
      while (!tried) std::this_thread::yield();
    EXPECT_TRUE(world.wait_for_all_ranks(60));
  });
}

TEST(Watchdog, NamesTheRanksThatHaveNotStartedAnOperation) {
  std::atomic<bool> over{false};
  std::atomic<int> reports{0};
  const Error error = error_of([&] {
    run_on_threads(4, {.timeout_s = 0.5}, [&](World& world) {
      Rig rig;
      const auto comm = world.communicator(rig.device, group_of(world, 4, 3, "tensor"), Purpose::grads);
      std::vector<float> x(20000, 1.0f);
      comm->all_reduce(rig.ex, tensor_of(x)).join(rig.ex);
      if (world.rank() == 2) {
        while (!over) std::this_thread::yield();  // busy with something else
        return;
      }
      try {
        comm->reduce_scatter(rig.ex, tensor_of(x), tensor_of(x, comm->chunk(20000))).join(rig.ex);
      } catch (...) {
        if (++reports == 3) over = true;
        throw;
      }
    });
  });
  EXPECT_EQ(error.code(), Code::comm);
  expect_parts(error.what(),
               {"reduce_scatter along tensor", "operation 2", "channel grads", "0.5 s", "rank 2 has not"});
  EXPECT_EQ(std::string(error.what()).find("rank 3 has not"), std::string::npos) << error.what();
}

TEST(Watchdog, IsPatientWithHostDataOfRanksThatAreAlive) {
  // A rank must answer within half the timeout, which is longer than a busy machine delays its progress thread.
  constexpr double kTimeout = 2, kBusy = 1.5 * kTimeout;
  std::atomic<bool> waits{false};
  double waited = 0;
  run_on_threads(2, {.timeout_s = kTimeout}, [&](World& world) {
    const auto busy_for = [](double seconds) {
      for (const double begin = now_seconds(); now_seconds() - begin < seconds;) std::this_thread::yield();
    };
    const double begin = now_seconds();
    if (world.rank() == 1) waits = true;
    while (!waits) std::this_thread::yield();
    if (world.rank() == 0) busy_for(kBusy);  // as if it tokenized
    world.control().barrier();
    if (world.rank() == 1) waited = now_seconds() - begin;
  });
  EXPECT_GE(waited, kBusy);
}

TEST(Watchdog, EndsAWaitForEachOther) {
  const double begin = now_seconds();
  expect_error(Code::comm, {"has itself been waiting"}, [&] {
    run_on_threads(3, {.timeout_s = 0.4}, [&](World& world) {
      Rig rig;
      // Each rank starts on a different communicator: no rank is busy, and no partner ever joins.
      const auto one = world.communicator(rig.device, group_of(world, 3, 3, "one"), Purpose::control);
      const auto other = world.communicator(rig.device, group_of(world, 3, 4, "other"), Purpose::control);
      std::vector<float> x(10, 1.0f);
      (world.rank() == 1 ? one : other)->all_reduce(rig.ex, tensor_of(x)).join(rig.ex);
    });
  });
  EXPECT_LT(now_seconds() - begin, 20);
}

TEST(Watchdog, IsPatientWithARankThatWaitsForABusyOne) {
  std::atomic<int> done{0};
  run_on_threads(3, {.timeout_s = 0.2}, [&](World& world) {
    Rig rig;
    const double begin = now_seconds();
    Group pair{.axes = 8, .name = "pair", .members = {1, 2}, .index = std::max(0, world.rank() - 1)};
    if (world.rank() == 2)
      while (now_seconds() - begin < 2) std::this_thread::yield();
    if (world.rank() > 0) {
      const auto two = world.communicator(rig.device, pair, Purpose::control);
      std::vector<float> x(10, 1.0f);
      two->all_reduce(rig.ex, tensor_of(x)).join(rig.ex);
    }
    world.control().barrier();
    ++done;
  });
  EXPECT_EQ(done, 3);
}

TEST(Watchdog, NamesAShiftAndItsMissingRank) {
  expect_error(Code::comm, {"shift along context (operation 2 of channel critical)", "rank 2"}, [&] {
    run_on_threads(3, {.timeout_s = 0.4}, [&](World& world) {
      Rig rig;
      const auto ring = world.communicator(rig.device, group_of(world, 3, 4, "context"), Purpose::critical);
      std::vector<float> x(1000, 1.0f), y(x.size());
      ring->shift(rig.ex, tensor_of(x), tensor_of(y)).join(rig.ex);
      if (world.rank() != 2) ring->shift(rig.ex, tensor_of(x), tensor_of(y)).join(rig.ex);
    });
  });
}

TEST(Watchdog, NamesARankThatHasEnded) {
  expect_error(Code::comm, {"rank 1 has ended"}, [&] {
    run_on_threads(3, {.timeout_s = 0.2}, [&](World& world) {
      if (world.rank() != 1) world.control().barrier();
    });
  });
}

TEST(Engine, WaitsWithoutUsingACore) {
  std::atomic<bool> waiting{false};
  double used = 0, passed = 0;
  run_on_threads(2, {.timeout_s = 60}, [&](World& world) {
    Rig rig;
    const auto comm = world.communicator(rig.device, group_of(world, 2), Purpose::critical);
    std::vector<float> x(10, 1.0f);
    if (world.rank() == 0) {
      waiting = true;
      comm->all_reduce(rig.ex, tensor_of(x)).join(rig.ex);
      return;
    }
    while (!waiting) std::this_thread::yield();
    const auto cpu_seconds = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
             1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    };
    const double begin = now_seconds(), before = cpu_seconds();
    std::atomic<uint32_t> nobody{0};
    while (now_seconds() - begin < 0.4) futex_wait(nobody, 0, 0.4);
    used = cpu_seconds() - before;
    passed = now_seconds() - begin;
    comm->all_reduce(rig.ex, tensor_of(x)).join(rig.ex);
  });
  EXPECT_LT(used, 0.05 * passed) << "all threads together";
}

/// Sets variables of the environment during its lifetime.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) : variables_(variables) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::string> variables_;
};

TEST(LaunchedRanks, ComeFromTheLaunchersVariables) {
  struct Case {
    const char* name;
    std::map<std::string, std::string> variables;
    std::optional<int> ranks;
    bool refused = false;  // tasks of srun that no MPI library can connect
  };
  const std::string own = std::to_string(getpid());
  const auto step = [&](std::map<std::string, std::string> more) {  // a task of srun -n 4
    more.insert({{"SLURM_JOB_ID", "134"},
                 {"SLURM_NTASKS", "4"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_STEP_NUM_TASKS", "4"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_TASK_PID", own}});
    return more;
  };
  const Case cases[] = {
      {"no launcher", {}, {}},
      {"mpirun of Open MPI", {{"OMPI_COMM_WORLD_SIZE", "3"}}, 3},
      {"mpiexec of MPICH", {{"PMI_SIZE", "12"}}, 12},
      {"a batch script", {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_TASK_PID", own}}, {}},
      {"salloc", {{"SLURM_JOB_ID", "134"}, {"SLURM_NTASKS", "8"}}, {}},
      {"srun without PMI", step({}), {}, true},
      {"the same through a script", step({{"SLURM_TASK_PID", "1"}}), {}, true},
      {"srun -n 1 without PMI", step({{"SLURM_STEP_NUM_TASKS", "1"}}), {}},
      {"srun --mpi=pmi2", step({{"PMI_SIZE", "4"}}), 4},
      {"srun --mpi=pmix", step({{"PMIX_RANK", "0"}}), 4},
      {"srun --mpi=pmix in a larger allocation", step({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "9"}}), 4},
      {"srun --mpi=pmix --pty trainer", step({{"PMIX_RANK", "0"}, {"SLURM_PTY_PORT", "4711"}}), 4},
      {"srun --pty trainer", step({{"SLURM_PTY_PORT", "4711"}}), {}, true},
      {"srun --pty bash", step({{"SLURM_PTY_PORT", "4711"}, {"SLURM_TASK_PID", "1"}}), {}},
      {"srun --mpi=pmi2 --pty bash", step({{"PMI_SIZE", "4"}, {"SLURM_PTY_PORT", "1"}, {"SLURM_TASK_PID", "1"}}), {}},
      {"srun --mpi=pmix --pty bash",
       step({{"PMIX_RANK", "0"}, {"SLURM_PTY_WIN_COL", "80"}, {"SLURM_TASK_PID", "1"}}),
       {}},
      {"salloc with an interactive step",
       step({{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_TASK_PID", "1"}}), 1},
      {"mpirun in srun --pty bash",
       step({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "0"}, {"SLURM_PTY_PORT", "1"}, {"SLURM_TASK_PID", "1"}}), 2},
      {"mpiexec of MPICH in srun --pty bash",
       step({{"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}, {"SLURM_PTY_PORT", "1"}, {"SLURM_TASK_PID", "1"}}), 4},
      {"mpirun_rsh of MVAPICH in srun --pty bash",
       step({{"PMI_SIZE", "2"}, {"SLURM_PTY_PORT", "1"}, {"SLURM_TASK_PID", "1"}}), 2},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    const Environment environment(each.variables);
    EXPECT_EQ(launched_ranks(), each.ranks);
    if (each.refused)
      expect_error(Code::usage, {"srun started 4 tasks", "PMI", "--mpi=pmix", "mpirun -np 4"}, require_launcher);
    else
      EXPECT_NO_THROW(require_launcher());
  }
  const Environment last(step({{"SLURM_PROCID", "3"}}));
  EXPECT_EQ(error_of(require_launcher).scope(), Scope::another_rank);  // task 0 prints the message
}

}  // namespace
}  // namespace trainer::comm
