#!/usr/bin/env bash
# Builds the trainer and its unit tests for ARM64 with a cross compiler, and runs the tests in qemu, on
# Debian and Ubuntu.
#
#   scripts/check_arm64.sh [TEST...] [--help]
#
#   TEST   test programs to run (default: those of file readers, and of arithmetic whose bits must equal x86's)
#
# Needs g++-aarch64-linux-gnu, qemu-user and the distribution's archive for arm64, whose libraries are unpacked into
# build-arm64/root; nothing is installed. Exit status 77: skipped, because a tool is missing. Speed on ARM64 is not
# measured.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "scripts/$(basename "$0")"; exit 0 ;;
  -*) echo "check_arm64.sh: unknown argument '$1' (try --help)" >&2; exit 2 ;;
esac
[ $# -gt 0 ] || set -- unit_base unit_sharding unit_device unit_tensor unit_ops unit_mesh unit_data unit_config
for tool in aarch64-linux-gnu-g++ qemu-aarch64 apt-get; do
  command -v $tool > /dev/null || { echo "skipped: $tool is not installed (g++-aarch64-linux-gnu, qemu-user)"; exit 77; }
done

build=$PWD/build-arm64
root=$build/root
if [ ! -e "$root/usr/include/zlib.h" ]; then
  mkdir -p "$build/apt/lists/partial" "$build/apt/archives/partial" "$root"
  # apt's lists and packages are in this folder, so that the system's architectures do not change.
  apt=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::lists="$build/apt/lists" -o Dir::Cache="$build/apt"
    -o Dir::State::status=/dev/null -o APT::Sandbox::User=root)
  apt-get -qq "${apt[@]}" update
  (cd "$build/apt" && apt-get -qq "${apt[@]}" download libfmt-dev libfmt9 libsentencepiece-dev libsentencepiece0 libpcre2-dev \
    libpcre2-8-0 libutf8proc-dev zlib1g-dev libzstd-dev libsnappy-dev libxxhash-dev libgtest-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev)
  for package in "$build"/apt/*.deb; do dpkg -x "$package" "$root"; done
fi

cmake -G Ninja -B "$build" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_FIND_ROOT_PATH="$root" -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DCMAKE_EXE_LINKER_FLAGS="-Wl,-rpath-link,$root/usr/lib/aarch64-linux-gnu" \
  -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 -DTRAINER_ISA_SETS=plain -DTRAINER_MPI=OFF -DTRAINER_CUDA=OFF \
  -DTRAINER_TESTS=ON -DTRAINER_WERROR=ON
cmake --build "$build" --target trainer "$@"
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu LD_LIBRARY_PATH=$root/usr/lib/aarch64-linux-gnu
qemu=(env -u LD_LIBRARY_PATH qemu-aarch64 -E "LD_LIBRARY_PATH=$LD_LIBRARY_PATH")
"${qemu[@]}" "$build/trainer" --version
for test in "$@"; do
  echo "== $test"
  # Whole GEMMs and attention take hours in qemu. Their kernels are built of the operations that are tested here.
  "${qemu[@]}" "$build/$test" --gtest_brief=1 --gtest_filter='-*Gemm*:*Loop*:OpTiming*:*Attention*:Muon*'
done
