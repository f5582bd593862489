#!/usr/bin/env bash
# From a fresh machine to a trained language model: installs what is missing, builds the trainer, trains a small GPT on
# the novels in data/, evaluates it and lets it write.
#
#   scripts/quickstart.sh [--prebuilt ARCHIVE] [TRAINER OPTION]... [--help]
#
#   --prebuilt ARCHIVE   use the program in this archive of a release (.tar.gz, .tar.zst) instead of building it
#
# Takes about 5 minutes on 2 cores and needs no GPU. Options go to `trainer train`, for example
#   scripts/quickstart.sh --set train.steps=100
# Run again, it resumes where it was stopped, or shows the finished run. The packages it may install are listed by
# scripts/install_packages.sh (sudo is used only when not root). The build (preset quick) is for this machine's CPU;
# `cmake --preset release && cmake --build --preset release` builds a program for every CPU.
set -euo pipefail
cd "$(dirname "$0")/.."

prebuilt=
options=()
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "scripts/$(basename "$0")"; exit 0 ;;
    --prebuilt) prebuilt=${2:?--prebuilt needs an archive}; shift ;;
    *) options+=("$1") ;;
  esac
  shift
done
if [ -n "$prebuilt" ] && [ ! -f "$prebuilt" ]; then
  echo "quickstart.sh: --prebuilt $prebuilt: not a file; name a release archive, or leave the option out to build" >&2
  exit 2
fi

run=runs/quickstart
say() { printf '\n[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }

say "1/4 Packages"
scripts/install_packages.sh
if { command -v nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } > /dev/null && nvidia-smi -L 2> /dev/null; then
  cuda=ON ranks=1
  echo "CUDA toolkit and GPU found: training on the GPU."
else
  cuda=OFF ranks=2
  echo "No GPU, or no CUDA toolkit to build for it: training on the CPU."
fi

if [ -n "$prebuilt" ]; then
  say "2/4 Unpacking $prebuilt (build/trainer)"
  rm -rf build/prebuilt
  mkdir -p build/prebuilt
  tar -xf "$prebuilt" -C build/prebuilt --strip-components=1
  ln -sf prebuilt/bin/trainer build/trainer
  build/trainer --version | head -n 1
else
  say "2/4 Build (build/trainer)"
  cmake --preset quick -DTRAINER_CUDA=$cuda > /dev/null
  cmake --build --preset quick
fi

say "3/4 Training: configs/quickstart.toml, data/austen.txt, ranks: $ranks"
# Root and machines with one core need to say so; each rank takes its share of the cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun -np $ranks --bind-to none --oversubscribe build/trainer train --config configs/quickstart.toml "${options[@]}"

say "4/4 What it learned"
build/trainer eval --checkpoint "$run"
build/trainer generate --checkpoint "$run" --prompt "She had never" --tokens 150 --temperature 0.8 --top-k 50 --seed 1

say "Done. Where things are:"
cat << END
  $run/report.html      loss, throughput, time and memory of the run (open it in a browser)
  $run/metrics.jsonl    the same as one JSON object a line
  $run/checkpoints/     weights and optimizer state; $run/tokenizer.model  the vocabulary
  configs/quickstart.toml     what was trained; every value is explained there
Next: build/trainer generate --checkpoint $run --prompt "My dear" --tokens 200
      build/trainer --help
END
