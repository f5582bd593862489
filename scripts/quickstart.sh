#!/usr/bin/env bash
# From a fresh machine to a trained language model: installs missing packages, builds the trainer, trains a small GPT on
# the novels in data/, evaluates it and generates text with it.
#
#   scripts/quickstart.sh [--gpu] [--prebuilt ARCHIVE] [TRAINER OPTION]... [--help]
#
#   --gpu                build with CUDA and train on the GPU (default: train on the CPU)
#   --prebuilt ARCHIVE   use the program in this release archive (.tar.gz, .tar.zst): nothing is installed or built
#
# Takes 5 to 10 minutes on 2 cores and needs no GPU. All other options are passed to `trainer train`, for example
#   scripts/quickstart.sh --set train.steps=100
# If it is run again, it resumes an interrupted run, or shows the finished one. The packages it may install are listed by
# scripts/install_packages.sh (sudo is used only when not root). The build (preset quick) is for this machine's CPU;
# `cmake --preset release && cmake --build --preset release` builds a program for every CPU.
set -euo pipefail
cd "$(dirname "$0")/.."

name=quickstart
prebuilt=
device=cpu cuda=OFF ranks=2
options=()
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "scripts/$(basename "$0")"; exit 0 ;;
    --gpu) device=cuda ;;
    --prebuilt) prebuilt=${2:?--prebuilt needs an archive}; shift ;;
    *) options+=("$1") ;;
  esac
  shift
done
if [ -n "$prebuilt" ] && [ ! -f "$prebuilt" ]; then
  echo "quickstart.sh: --prebuilt $prebuilt: not a file; name a release archive, or leave the option out to build" >&2
  exit 2
fi

say() { printf '\n[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }
has_gpu() { nvidia-smi -L > /dev/null 2>&1; }
if [ $device = cuda ]; then
  has_gpu || { echo "quickstart.sh: --gpu: nvidia-smi finds no GPU; leave --gpu out to train on the CPU" >&2; exit 2; }
  cuda=ON ranks=1 name=quickstart-gpu
elif has_gpu; then
  echo "Training on the CPU. This machine has a GPU: --gpu uses it."
fi

launcher=(mpirun -np "$ranks" --bind-to none --oversubscribe)
if [ -n "$prebuilt" ]; then
  say "1/4, 2/4 Unpacking $prebuilt (build/trainer)"
  rm -rf build/prebuilt
  mkdir -p build/prebuilt
  tar -xf "$prebuilt" -C build/prebuilt --strip-components=1
  ln -sf prebuilt/bin/trainer build/trainer
  build/trainer --version | head -n 1
  command -v mpirun > /dev/null || launcher=() ranks="1 (no mpirun here)"
else
  say "1/4 Packages"
  scripts/install_packages.sh
  say "2/4 Build (build/trainer)"
  cmake --preset quick -DTRAINER_CUDA=$cuda > /dev/null
  cmake --build --preset quick
fi

say "3/4 Training: configs/quickstart.toml, data/austen.txt, ranks: $ranks"
# Open MPI requires these options to run as root and to run more ranks than cores. Each rank uses its share of the cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"${launcher[@]}" build/trainer train --config configs/quickstart.toml \
  --set run.device=$device run.name=$name "${options[@]}"

run=runs/$name

say "4/4 What it learned"
build/trainer eval --checkpoint "$run" --set run.device=$device
build/trainer generate --checkpoint "$run" --set run.device=$device --prompt "She had never" --tokens 150 --temperature 0.8 --top-k 50 --seed 1

say "Done. The results are in:"
cat << END
  $run/report.html      loss, throughput, time and memory of the run (open it in a browser)
  $run/metrics.jsonl    the same as one JSON object per line
  $run/checkpoints/     weights and optimizer state; $run/tokenizer.model  the vocabulary
  configs/quickstart.toml     what was trained; every value is explained there
Next: build/trainer generate --checkpoint $run --prompt "My dear" --tokens 200
      build/trainer --config configs/quickstart.toml --set run.name=mine data.train=my.txt
END
