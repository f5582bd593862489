#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "comm/world.h"

namespace trainer::comm {
namespace {

std::optional<int> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  int number = 0;
  if (text == nullptr || std::from_chars(text, text + std::strlen(text), number).ec != std::errc()) return std::nullopt;
  return number;
}

/// Returns the number of tasks in this process's job step of Slurm. SLURM_NTASKS is that of the allocation, unless srun
/// changed it: an interactive shell is a step of one task.
std::optional<int> tasks_of_step() {
  const std::optional<int> tasks = number_in("SLURM_STEP_NUM_TASKS");
  return tasks ? tasks : number_in("SLURM_NTASKS");
}

/// True in a shell that `srun --pty` started: its commands are not tasks of the step, although they have the variables
/// of one. The program that srun itself starts has the process id of the task.
bool in_interactive_shell() {
  const bool terminal = std::getenv("SLURM_PTY_PORT") != nullptr || std::getenv("SLURM_PTY_WIN_COL") != nullptr;
  return terminal && number_in("SLURM_TASK_PID") != ::getpid();
}

}  // namespace

std::optional<int> launched_ranks() {
  // Open MPI's mpirun sets the first variable, PMI (MPICH's mpiexec, srun --mpi=pmi2) the second. PMIx sets no size,
  // but Slurm does.
  std::optional<int> ranks = number_in("OMPI_COMM_WORLD_SIZE");
  if (!ranks) {
    ranks = number_in("PMI_SIZE");
    // An interactive shell of Slurm has inherited its step's variables of PMI, but an mpiexec in it sets its own.
    const bool by_mpiexec = ranks && (std::getenv("MPI_LOCALNRANKS") != nullptr || ranks != tasks_of_step());
    if (!by_mpiexec && in_interactive_shell()) return std::nullopt;
    if (!ranks && std::getenv("PMIX_RANK") != nullptr) ranks = tasks_of_step();
  }
  return ranks && *ranks >= 1 ? ranks : std::nullopt;
}

void require_launcher() {
  const std::optional<int> tasks = number_in("SLURM_STEP_NUM_TASKS");
  if (launched_ranks() || !tasks || *tasks <= 1 || !number_in("SLURM_PROCID") || in_interactive_shell()) return;
  const std::string text = format(
      "srun started {} tasks, but without PMI they cannot find each other, and each would run on its own; start them "
      "with srun --mpi=pmix (with MPICH --mpi=pmi2; srun --mpi=list prints what this Slurm supports), or with mpirun "
      "-np "
      "{} in an sbatch script or salloc; for {} independent processes, unset SLURM_STEP_NUM_TASKS",
      *tasks, *tasks, *tasks);
  if (number_in("SLURM_PROCID") == 0) throw Error(Code::usage, text);
  // Only task 0 prints the message. Slurm may be configured to end all tasks as soon as one fails: task 0 comes first.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  throw Error(Code::usage, text).on(Scope::another_rank);
}

}  // namespace trainer::comm
