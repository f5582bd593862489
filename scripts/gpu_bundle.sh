#!/usr/bin/env bash
# Packs everything that scripts/gpu_check.sh needs on a machine where nothing can be built or installed: the program, the tests of
# CUDA devices, their libraries, Open MPI, configurations and a text. CUDA's libraries must be on that machine.
#
#   scripts/gpu_bundle.sh [--build DIR] [--as-it-is] [--python PROGRAM] [--without-cudnn] OUT
#
#   OUT           a folder, or an archive NAME.tar.gz or NAME.tar.zst of the folder NAME
#   --build DIR   build folder (default: build-gpu); it is configured and built first
#   --as-it-is    pack what is built, without building
#   --python P    an interpreter in whose packages the headers of cudnn-frontend may be (default: python3)
#   --without-cudnn  leave out cuDNN's attention, which needs those headers, and without which it cannot be measured
#
# On the other machine: NAME/scripts/gpu_check.sh. It needs x86-64 Linux with a C library as new as this one's. An
# archive of 60 MiB or more is an error: the machine takes 64 MiB at most.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "gpu_bundle.sh: $*" >&2; exit 1; }

build=build-gpu make=yes out='' python=python3 cudnn=ON
most_mib=60
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift ;;
    --as-it-is) make= ;;
    --python) python=${2:?--python needs a program}; shift ;;
    --without-cudnn) cudnn=OFF ;;
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "scripts/$(basename "$0")"; exit 0 ;;
    -*) echo "gpu_bundle.sh: unknown argument '$1' (try --help)" >&2; exit 2 ;;
    *) [ -z "$out" ] || fail "two output names: $out and $1"; out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || { echo "gpu_bundle.sh: name a folder or an archive (try --help)" >&2; exit 2; }

if [ -n "$make" ]; then
  # The front end of cuDNN is headers only: from the toolkit, or from its Python package.
  settings=("-DTRAINER_CUDNN=$cudnn")
  headers=$("$python" -c 'import importlib.metadata as m
for f in m.files("nvidia-cudnn-frontend") or []:
    if str(f) == "include/cudnn_frontend.h": print(f.locate().resolve().parent)' 2> /dev/null || true)
  if [ -n "$headers" ]; then settings+=("-DTRAINER_cudnn_frontend_INCLUDE=$headers"); fi
  # The preset's build folder may be a different one. Errors go to standard error.
  cmake --preset gpu -B "$build" "${settings[@]}" > /dev/null ||
    fail "not configured; if cudnn_frontend.h is what is missing: $python -m pip install --no-deps nvidia-cudnn-frontend, or --without-cudnn"
  cmake --build "$build" --parallel "$(nproc)" --target gpu_programs
fi
[ -f "$build/gpu_programs.txt" ] || fail "$build has no gpu_programs.txt: is it built with CUDA and tests?"
mapfile -t programs < "$build/gpu_programs.txt"
for program in trainer "${programs[@]}"; do
  [ -x "$build/$program" ] || fail "$build/$program is not built"
done
if grep -q 'libcudnn\.so\.' "$build/trainer"; then
  attention="cuDNN's and built-in"
else
  attention=built-in
  [ $cudnn = OFF ] || fail "$build/trainer has no cuDNN attention: configure it with -DTRAINER_CUDNN=ON, or give --without-cudnn"
fi

case $out in
  *.tar.gz) folder=${out%.tar.gz} compress=gzip ;;
  *.tar.zst) folder=${out%.tar.zst} compress='zstd -19 -T0 -q' ;;
  *) folder=$out compress= ;;
esac
if [ -e "$folder" ] && [ ! -f "$folder/BUNDLE" ]; then fail "$folder exists and is not a bundle"; fi
rm -rf -- "$folder"
mkdir -p "$folder"/{bin,lib,lib-if-older,configs,data,scripts,tests/bench}
touch "$folder/BUNDLE"

# Names of libraries that belong to the C library, to CUDA and its driver, or to the compiler.
is_libc() { [[ $1 =~ ^(ld-linux.*|lib(c|m|mvec|pthread|dl|rt|util|resolv|anl|nsl)\.so.*|linux-vdso.*)$ ]]; }
is_cuda() { [[ $1 =~ ^lib(cu|nccl|nv).*\.so ]]; }
is_compilers() { [[ $1 =~ ^lib(stdc\+\+|gcc_s|gomp)\.so ]]; }

# Prints "name path" of every library that the file $1 is linked with, directly or indirectly.
needs() { ldd "$1" 2> /dev/null | awk '$2 == "=>" { print $1, ($3 == "not" ? "-" : $3) }'; }

size() { du -sk "$1" | awk '{ printf "%.1f MiB", $1 / 1024 }'; }

declare -A left_out
take() { # copies the libraries of the file $1
  local name path
  while read -r name path; do
    if is_cuda "$name"; then left_out[$name]=1; fi
    if is_cuda "$name" || is_libc "$name"; then continue; fi
    [ "$path" != - ] || fail "$1 needs $name, which was not found"
    if is_compilers "$name"; then cp -Lu "$path" "$folder/lib-if-older/$name"; else cp -Lu "$path" "$folder/lib/$name"; fi
  done < <(needs "$1")
}

for program in trainer "${programs[@]}"; do
  cp "$build/$program" "$folder/bin/"
  strip "$folder/bin/$program"
  take "$build/$program"
done
printf '%s\n' "${programs[@]}" > "$folder/bin/gpu_programs.txt"
for library in libcublasLt libnccl; do left_out["$library (loaded)"]=1; done

# Open MPI 4 with the plugins that work on one host. A plugin that needs a library which nothing else here needs is for a
# fabric or batch system, and is left out.
if ls "$folder"/lib/libmpi.so.* > /dev/null 2>&1; then
  where() { ompi_info --parsable --path "$1" | sed -n '1s/^path:[^:]*://p'; }
  [[ $(ompi_info --version) == *"v4."* ]] || fail "can relocate Open MPI 4 only, found $(ompi_info --version | head -n 1)"
  mpi=$folder/openmpi
  mkdir -p "$mpi"/{bin,etc,lib/plugins,lib/pmix,share}
  : > "$mpi/etc/openmpi-mca-params.conf"
  cp -L "$(where bindir)/orterun" "$mpi/bin/mpirun"
  cp -L "$(where bindir)/orted" "$mpi/bin/orted"
  cp "$(where pkgdatadir)"/help-*.txt "$mpi/share/"
  plugins=$(where pkglibdir)
  for file in "$mpi"/bin/* "$plugins"/mca_pmix_ext*.so; do take "$file"; done
  for plugin in "$plugins"/mca_*.so; do
    fits=yes
    while read -r name _; do
      is_libc "$name" || is_compilers "$name" || [ -e "$folder/lib/$name" ] || fits=
    done < <(needs "$plugin")
    case $plugin in */mca_io_* | */mca_fs_* | */mca_fbtl_* | */mca_fcoll_* | */mca_sharedfp_*) fits= ;; esac
    if [ -n "$fits" ]; then cp "$plugin" "$mpi/lib/plugins/"; fi
  done
  pmix=$(needs "$plugins"/mca_pmix_ext3x.so | awk '$1 ~ /^libpmix/ { print $2; exit }')
  cp "$(dirname "$(readlink -f "$pmix")")"/pmix/*.so "$mpi/lib/pmix/" 2> /dev/null || true
fi
find "$folder/lib" "$folder/openmpi" -name '*.so*' -exec chmod u+w {} + -exec strip --strip-unneeded {} + 2> /dev/null || true

cp configs/*.toml "$folder/configs/"
cp -r data/austen.txt data/gpt2 "$folder/data/"
cp scripts/gpu_check.sh scripts/gpu_check_stages.sh scripts/compare_layouts.py "$folder/scripts/"
cp tests/bench/compare_torch.py tests/bench/machine.py tests/bench/torch_gpt.py "$folder/tests/bench/"
{
  echo "commit $(git rev-parse --short=12 HEAD 2> /dev/null || echo unknown)$(git diff --quiet HEAD 2> /dev/null || echo ' and changes')"
  echo "built on $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), C library $(ldd --version | sed -n '1s/.* //p')"
  echo "left to the machine: ${!left_out[*]}"
  echo "attention: $attention"
  echo "size: $(size "$folder"), packed less than $most_mib MiB"
} > "$folder/BUNDLE"
sed -n 's/^size: //p' "$folder/BUNDLE"
if [ -n "$compress" ]; then
  tar -C "$(dirname "$folder")" -cf - "$(basename "$folder")" | $compress > "$out"
  rm -rf -- "$folder"
  echo "$out: $(size "$out")"
  [ "$(du -sk "$out" | cut -f 1)" -lt $((most_mib * 1024)) ] || fail "$out is too large: $most_mib MiB or more"
fi
