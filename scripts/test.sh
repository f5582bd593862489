#!/usr/bin/env bash
# Installs missing packages, builds everything with warnings as errors and runs the whole test suite.
#
#   scripts/test.sh [--asan | --no-asan] [--asan-until M] [--slow] [--alone] [--jobs N] [--help]
#
#   --asan, --no-asan   then also run fast tests under the address and undefined-behaviour sanitizers: those of parsers
#                       and of code with raw memory (preset asan-fast; default: when the environment has CI set)
#   --asan-until M      skip the sanitizers, with a message, if M minutes have passed by then
#   --slow              then also run the slow tests, which try all cases of what other tests try for some
#   --alone             then also compile every source file on its own, since builds compile up to eight together
#   --jobs N            parallel builds and tests (default: the number of cores)
#
# Builds into build-dev/ and build-asan-fast/. Exit status 0: everything passed.
set -euo pipefail
cd "$(dirname "$0")/.."

asan=${CI:+yes}
asan_until=
slow=
single=
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --asan) asan=yes ;;
    --no-asan) asan= ;;
    --asan-until) asan=yes asan_until=${2:?--asan-until needs minutes}; shift ;;
    --slow) slow=yes ;;
    --alone) single=yes ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "scripts/$(basename "$0")"; exit 0 ;;
    *) echo "test.sh: unknown argument '$1' (try --help)" >&2; exit 2 ;;
  esac
  shift
done

# These wait for or measure time or memory, which other programs on the machine change.
by_clock='^(unit_comm|unit_ops\.[0-9]+|mpi_lost_peer_.*|emulated_cluster|runs\.(kills|signals|slurm|memory|peak|replay))$'

say() { printf '\n[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }

# Runs the tests of a preset. If only those by the clock fail, runs these once more, one at a time.
run_tests() {
  rm -f "build-$1/Testing/Temporary/LastTestsFailed.log"
  ctest --preset "$1" --parallel "$jobs" --no-tests=error && return
  local failed
  failed=$(sed 's/^[0-9]*://' "build-$1/Testing/Temporary/LastTestsFailed.log") || return
  ! grep -Evq "$by_clock" <<< "$failed" || return
  say "Once more, one at a time: tests by the clock, which a busy machine can make fail: ${failed//$'\n'/ }"
  ctest --preset "$1" --rerun-failed
}

say "Packages"
scripts/install_packages.sh --tests
if command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  echo "CUDA toolkit found: its kernels are compiled too, for sm_90."
else
  echo "No CUDA toolkit found: the CUDA backend is tested by its emulation only."
fi

say "Build (build-dev, warnings are errors)"
cmake --preset dev > /dev/null
cmake --build --preset dev --parallel "$jobs"

say "All tests"
run_tests dev

if [ -n "$slow" ]; then
  say "Slow tests"
  ctest --preset dev --parallel "$jobs" --no-tests=error -C slow -L slow
fi

if [ -n "$asan_until" ] && [ "$SECONDS" -ge $((asan_until * 60)) ]; then
  say "$((SECONDS / 60)) minutes have passed: the sanitizers are skipped (scripts/test.sh --asan runs them)"
elif [ -n "$asan" ]; then
  say "Build with sanitizers (build-asan-fast)"
  cmake --preset asan-fast > /dev/null
  cmake --build --preset asan-fast --parallel "$jobs"
  say "Fast tests under the sanitizers"
  run_tests asan-fast
fi

if [ -n "$single" ]; then
  say "Every source file on its own"
  scripts/check_files_alone.py --jobs "$jobs"
fi
