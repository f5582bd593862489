#!/bin/bash
# Checks that two commits compute the same bits in every layout (tests/golden): builds the program of the goldens at COMMIT
# and in the work tree, and compares their output on this machine for these instruction sets (default: those available).
#
#   scripts/compare_commits.sh COMMIT [plain avx2 avx512 avx512bf16 amx]
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  --help | -h) sed -n '2,5s/^# \{0,1\}//p' "scripts/${0##*/}"; exit 0 ;;
esac
[ $# -ge 1 ] || { sed -n 2,5p "$0" >&2; exit 2; }
commit=$(git rev-parse --verify "$1^{commit}")
shift
folder=$(mktemp -d)
trap 'git worktree remove --force "$folder/before" 2>/dev/null || true; rm -rf "$folder"' EXIT
git worktree add --quiet --detach "$folder/before" "$commit"
for tree in "$folder/before" .; do
  cmake -S "$tree" --preset dev -B "$folder/build" -DTRAINER_CUDA=OFF \
    > "$folder/log" || { cat "$folder/log"; exit 1; }
  cmake --build "$folder/build" --target golden > "$folder/log" || { cat "$folder/log"; exit 1; }
  cp "$folder/build/golden" "$folder/golden_$([ "$tree" = . ] && echo after || echo before)"
  rm -rf "$folder/build"
done
sets=("$@")
[ ${#sets[@]} -gt 0 ] || read -ra sets <<< "$(grep -qw amx_bf16 /proc/cpuinfo && echo plain avx2 avx512 amx ||
  { grep -qw avx512vl /proc/cpuinfo && echo plain avx2 avx512; } || echo plain avx2)"
for isa in "${sets[@]}"; do
  TRAINER_ISA=$isa TRAINER_WRITE_GOLDENS=$folder/goldens.txt "$folder/golden_before" > "$folder/log" ||
    { cat "$folder/log"; exit 1; }
  TRAINER_ISA=$isa TRAINER_GOLDENS=$folder/goldens.txt "$folder/golden_after" > "$folder/log" ||
    { echo "$isa: differs"; head -40 "$folder/log"; exit 1; }
  echo "$isa: $(grep -vc '^#' "$folder/goldens.txt") lines, the same"
done
