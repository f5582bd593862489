#!/bin/bash
# A Slurm job that trains until the run is finished, in as many allocations as necessary.
#
#   sbatch --nodes=2 scripts/slurm_job.sh --config configs/axonn-gpt2-124m.toml
#
# Options of sbatch on the command line replace those below; the rest goes to the trainer. Five minutes before its time
# limit, the job saves a checkpoint and is requeued; the next allocation resumes from it. run.dir must be on a file system that all hosts see.
# TRAINER names the program, if it is not in PATH. For ranks with a GPU each: sbatch --gpus-per-task=1.
#SBATCH --job-name=trainer
#SBATCH --nodes=1 --ntasks-per-node=4 --cpus-per-task=8 --time=12:00:00
#SBATCH --requeue --open-mode=append --signal=USR1@300
set -uo pipefail

case ${1:-} in
  '' | --help | -h) sed -n '2,/^#SBATCH/{/^#SBATCH/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
esac

# srun does not take over --cpus-per-task from the job since Slurm 22.05.
srun --mpi="${SLURM_MPI:-pmix}" ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
  "${TRAINER:-trainer}" train "$@"
status=$?
if [ "$status" = 75 ]; then  # saved after the signal
  echo "saved; requeued to resume"
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$status"
