#!/usr/bin/env bash
# Checks and measures the trainer on a machine with one NVIDIA GPU, without network, in two calls of nine minutes: the
# first call runs the trainer's benchmarks, then its tests; the second runs PyTorch, tuned GEMMs and a complete training run.
#
#   scripts/gpu_check.sh [--call 1|2] [--bundle DIR] [--out DIR] [--budget SECONDS] [--stages "NAME…"] [--python PROGRAM]
#   scripts/gpu_check.sh --pack OUT
#
#   --call N       the stages of the first or of the second call (default: all that fit into the time)
#   --bundle DIR   what scripts/gpu_bundle.sh packed (default: the bundle this script is in, else it is built here)
#   --out DIR      where gpu_check.json, gpu_check.md and gpu_check.log go (default: gpu-check)
#   --budget N     seconds in all (default: 540); stages that do not fit any more are skipped, the last ones first
#   --stages "…"   these only; those of call 1: machine step-124m text-124m full-124m attention elementwise optimizer gemm
#                  step-1.5b full-1.5b tests cudnn sanitizer torch-compile; of call 2: machine torch-full-124m torch-full-1.5b torch-124m
#                  torch-1.5b tuned train mpi collectives cpu torch-cpu profile
#   --python P     an interpreter that has PyTorch, to compare it with the trainer (default: python3)
#   --variant V    PyTorch's bf16, one per call: autocast (default) or master
#   --cache FILE   the torch-cache.tar.gz that a first call wrote (default: the one in the folder of results, if there)
#   --emulated D   the same stages with the emulated device of the build folder D and tiny sizes: a test of this script
#   --pack OUT     make a bundle instead (see scripts/gpu_bundle.sh)
#
# The report is written after every stage, so that what was measured outlives a call that is cut off. Code that PyTorch
# compiles in the first call is kept for the second (TRAINER_TORCH_CACHE, default: in the folder of temporary files), and
# brought back as torch-cache.tar.gz if it has at most 16 MiB.
# Exit status 0: every test passed and every measurement of the trainer ran. A speed that misses its target is reported
# and fails nothing.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")

usage() { echo "gpu_check.sh: $*" >&2; exit 2; }
bundle='' out=gpu-check budget=540 only='' python=python3 emulated='' call='' variant=autocast kept=''
while [ $# -gt 0 ]; do
  case $1 in
    --call) call=${2:?--call needs 1 or 2}; shift ;;
    --variant) variant=${2:?--variant needs autocast or master}; shift ;;
    --cache) kept=$(readlink -e "${2:?--cache needs a file}") || usage "--cache $2: no such file"; shift ;;
    --bundle) bundle=${2:?--bundle needs a folder}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --budget) budget=${2:?--budget needs seconds}; shift ;;
    --stages) only=${2:?--stages needs names}; shift ;;
    --python) python=${2:?--python needs a program}; shift ;;
    --emulated) emulated=$(cd "${2:?--emulated needs a build folder}" && pwd) || exit 2; shift ;;
    --pack) exec "$here/gpu_bundle.sh" "${2:?--pack needs a name}" ;;
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) usage "unknown argument '$1' (try --help)" ;;
  esac
  shift
done
[[ $budget =~ ^[1-9][0-9]*$ ]] || usage "--budget $budget: a number of seconds"
[[ $call =~ ^[12]?$ ]] || usage "--call $call: 1 or 2"
[[ $variant =~ ^(autocast|master)$ ]] || usage "--variant $variant: autocast or master"

mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check-XXXXXX") || exit 2
background=
trap 'if [ -n "$background" ]; then kill -KILL -- "-$background" 2> /dev/null; fi; rm -rf -- "$work"' EXIT
trap 'exit 143' TERM INT HUP
: > "$out/gpu_check.log"
start=$SECONDS
left() { echo $((budget - (SECONDS - start))); }

theirs=${LD_LIBRARY_PATH-}
# --- Programs -------------------------------------------------------------------------------------------------------

if [ -z "$emulated" ] && [ -z "$bundle" ]; then
  if [ -f "$root/BUNDLE" ]; then
    bundle=$root
  else
    echo "No bundle: building one"
    "$here/gpu_bundle.sh" "$work/bundle" || exit 2
    bundle=$work/bundle
    start=$SECONDS # building does not count towards the time budget
  fi
fi
if [ -n "$emulated" ]; then
  bin=$emulated trainer=$emulated/trainer_emulated operators=$emulated/ops_emulated
  [ -x "$trainer" ] || usage "$trainer is not built"
  programs=(ops_emulated training_emulated)
  if [ -x "$bin/mpi_devices_emulated" ]; then programs+=(mpi_devices_emulated); fi
  export LD_LIBRARY_PATH=$bin/libraries-of-the-bundle${theirs:+:$theirs} # does not exist: for a test of which programs get it
else
  bundle=$(cd "$bundle" && pwd) || exit 2
  root=$bundle
  [ -f "$bundle/BUNDLE" ] || usage "$bundle is not a bundle"
  mapfile -t programs < "$bundle/bin/gpu_programs.txt"
  bin=$bundle/bin trainer=$bundle/bin/trainer operators=$bundle/bin/ops_cuda
  # Libraries: the bundle's; CUDA's if the loader does not find them; the compiler's if the machine's are older.
  path=$bundle/lib
  runs() { LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$trainer" --version > "$work/version" 2>&1; }
  cuda_folders=("${CUDA_HOME:-/usr/local/cuda}"/lib64 /usr/local/cuda*/lib64 /usr/local/nvidia/lib64
    "$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2> /dev/null)"/nvidia/*/lib)
  for folder in '' "${cuda_folders[@]}"; do
    if runs; then break; fi
    if [ -n "$folder" ] && [ -d "$folder" ]; then path=$path:$folder; fi
  done
  if ! runs && grep -q 'libstdc++\|GLIBCXX\|libgcc_s' "$work/version"; then path=$bundle/lib-if-older:$path; fi
  runs || { echo "gpu_check.sh: the program does not start here:" >&2; head -n 5 "$work/version" >&2; exit 1; }
  export LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  # Libraries that the program opens at run time.
  for folder in "${cuda_folders[@]}"; do
    for library in "$folder"/lib{cublasLt,cudart}.so.13 "$folder/libnccl.so.2" "$folder/libcudnn.so.9"; do
      if [ -e "$library" ]; then LD_LIBRARY_PATH+=:$folder && break; fi
    done
  done
  if [ -d "$bundle/openmpi" ]; then
    mpi=$bundle/openmpi
    export OPAL_PREFIX=$mpi OPAL_BINDIR=$mpi/bin OPAL_LIBDIR=$bundle/lib OPAL_PKGLIBDIR=$mpi/lib/plugins \
      OPAL_PKGDATADIR=$mpi/share OPAL_SYSCONFDIR=$mpi/etc PMIX_MCA_mca_base_component_path=$mpi/lib/pmix
    PATH=$mpi/bin:$PATH
    command -v ssh > /dev/null || export OMPI_MCA_plm=isolated
  fi
fi
# One host whose cores and memory are shared; containers may forbid reading another process's memory.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp \
  OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none \
  PMIX_MCA_pcompress_base_silence_warning=1
if [[ $python == */* ]]; then python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python"); fi
# The libraries above are for the programs of the bundle. Python, whose PyTorch brings its own, gets the caller's, and
# starts the trainer and mpirun by scripts that set them again.
ours=${LD_LIBRARY_PATH-}
from_python=$work/from-python
mkdir "$from_python"
script() { # NAME LIBRARIES PROGRAM: a script that runs the program with these libraries
  # shellcheck disable=SC2016 # for the script to expand
  printf '#!/bin/sh\nexport LD_LIBRARY_PATH=%q\n[ -n "$LD_LIBRARY_PATH" ] || unset LD_LIBRARY_PATH\nexec %q "$@"\n' "$2" "$3" > "$1"
  chmod +x "$1"
}
if command -v "$python" > /dev/null; then
  script "$work/python" "$theirs" "$(command -v "$python")"
  python=$work/python
fi
pytorch=$("$python" -c 'import torch; print("PyTorch", torch.__version__)' 2>&1 | tail -n 1) # or why there is none
script "$from_python/trainer" "$ours" "$trainer"
if command -v mpirun > /dev/null; then script "$from_python/mpirun" "$ours" "$(command -v mpirun)"; fi
cd "$root" || exit 2 # paths in the configurations are relative to it
export TRAINER_TEST_DEVICE=cuda PYTHONDONTWRITEBYTECODE=1
cache=${TRAINER_TORCH_CACHE:-${TMPDIR:-/tmp}/trainer-torch-cache}
if [ -z "$kept" ] && [ -f "$out/torch-cache.tar.gz" ]; then kept=$out/torch-cache.tar.gz; fi
mkdir -p "$cache" || exit 2
if [ -n "$kept" ]; then tar -C "$cache" -xzf "$kept" || echo "gpu_check.sh: $kept cannot be unpacked" >&2; fi
export TORCHINDUCTOR_CACHE_DIR=$cache/inductor TRITON_CACHE_DIR=$cache/triton TORCHINDUCTOR_FX_GRAPH_CACHE=1 \
  TORCHINDUCTOR_AUTOGRAD_CACHE=1

# --- Stages ---------------------------------------------------------------------------------------------------------
# A stage is a function that writes $work/NAME.json (a document, if it has one) and $work/NAME.txt (text of the report),
# prints a line for the summary to fd 3, and returns 0 (passed), 77 (skipped, with the reason on fd 3) or anything else.

calls=('' "machine step-124m text-124m full-124m attention elementwise optimizer gemm step-1.5b full-1.5b tests cudnn sanitizer torch-compile"
  "machine torch-full-124m torch-full-1.5b torch-124m torch-1.5b tuned train mpi collectives cpu torch-cpu profile")
patience=1 names=() results=() seconds=() lines=() hopeless=
text() { sed -e 's/[\\"]/\\&/g' -e 's/\t/ /g' | tr -d '\r' | awk 'NR > 1 { printf "\\n" } { printf "%s", $0 }'; }
# Prints the document of stage $1, or null.
document() { grep . "$work/$1.json" 2> /dev/null || echo null; }
# Writes the document $1, which has these members.
join_parts() { (name=$1 && shift && IFS=, && echo "{$*}" > "$work/$name.json"); }
# Prints the first number called $1 in the document $2.
number() { grep -o "\"$1\": *-\{0,1\}[0-9][0-9.e+-]*" "$2" 2> /dev/null | sed 's/.*: *//; q'; }
# Prints the first of these names or paths that is a program.
program_of() {
  local each
  for each in "$@"; do if command -v "$each"; then return; fi; done
}

# stage NAME LIMIT: runs the function stage_NAME for at most LIMIT seconds.
stage() {
  local name=$1 limit=$(($2 * patience)) result begin=$SECONDS line
  if [ -n "$only" ] && [[ " $only " != *" $name "* ]]; then return; fi
  if [ -n "$call" ] && [[ " ${calls[$call]} " != *" $name "* ]]; then return; fi
  if [ -n "$hopeless" ]; then
    result='left out' line=$hopeless
  elif [ "$(left)" -lt 10 ]; then
    result='left out' line='no time left'
  else
    if [ "$limit" -gt "$(left)" ]; then limit=$(left); fi
    printf '[%4d s] %s\n' $((SECONDS - start)) "$name"
    deadline=$((SECONDS + limit))
    # In a separate process group, so that all of its processes end with it.
    set -m
    ("stage_${name//[-.]/_}" > "$work/$name.log" 2>&1 3> "$work/$name.line") &
    local pid=$! status=0
    set +m
    while kill -0 "$pid" 2> /dev/null; do
      if [ $((SECONDS - begin)) -gt $((limit + 5)) ]; then kill -KILL -- "-$pid" 2> /dev/null; fi
      sleep 0.1
    done
    wait "$pid" || status=$?
    line=$(tail -n 1 "$work/$name.line" 2> /dev/null)
    case $status in
      0) result=passed ;;
      77) result='left out' ;;
      124 | 137) result=failed line="stopped after $limit s; ${line:-see gpu_check.log}" ;;
      *) result=failed line=${line:-"status $status, see gpu_check.log"} ;;
    esac
    { printf '===== %s: %s %s\n' "$name" "$result" "$line"; cat "$work/$name.log" "$work/$name.txt" 2> /dev/null; } >> "$out/gpu_check.log"
  fi
  names+=("$name") results+=("$result") lines+=("$line") seconds+=($((SECONDS - begin)))
  printf '         %s%s\n' "$result" "${line:+: $line}"
  report
}
# Runs a command for the remaining time of the stage.
timed() { timeout -k 2 "$((deadline > SECONDS ? deadline - SECONDS : 1))" "$@"; }
leave_out() { echo "$*" >&3; exit 77; }
# bench NAME ARGUMENT…: runs `trainer bench` and stores its text and its JSON.
bench() {
  local name=$1
  shift
  timed "$trainer" bench "$@" --json > "$work/$name.json" 2> "$work/$name.txt"
}
set_of() { # prints --set before each argument
  local each
  for each in "$@"; do printf '%s\n' --set "$each"; done
}

# The stages' functions.
# shellcheck source=scripts/gpu_check_stages.sh
. "$here/gpu_check_stages.sh"

# --- Report ---------------------------------------------------------------------------------------------------------

# Compares a measured speed with its target.
target() { # NAME GOAL MEASURED
  local verdict='not run'
  if [ -n "$3" ] && [ -n "$emulated" ]; then
    verdict='an emulated device'
  elif [ -n "$3" ]; then
    verdict=$(awk -v a="$3" -v b="$2" 'BEGIN { if (a + 0 >= b + 0) print "met"; else printf "missed by %.1f %%", 100 * (1 - a / b) }')
  fi
  targets+=("$1|$2|${3:-}|$verdict")
}
# The ratio of stage $1, if PyTorch was compiled.
beside_torch() { if grep -q '"peer": *"[a-z]* compiled' "$work/$1.json" 2> /dev/null; then number ratio "$work/$1.json"; fi; }
judge() {
  targets=()
  local attention
  attention=$(grep -o '"forward_share":[0-9.]*,"head_dim":128[^}]*"seq_len":4096' "$work/attention.json" 2> /dev/null | sed 's/.*share":\([0-9.]*\),.*/\1/' | sort -g | tail -n 1)
  target "GPT-2 124M, 0.5M tokens per step, tokens/s" 570000 "$(number tokens_per_s "$work/full-124m.json")"
  target "GPT-2 1.5B, 0.5M tokens per step, mfu" 0.60 "$(number mfu "$work/full-1.5b.json")"
  target "GPT-2 124M, 0.5M tokens per step, times PyTorch compiled" 1.15 "$(beside_torch torch-full-124m)"
  target "GPT-2 1.5B, 0.5M tokens per step, times PyTorch compiled" 1.15 "$(beside_torch torch-full-1.5b)"
  target "GPT-2 124M, tokens/s" 470000 "$(number tokens_per_s "$work/step-124m.json")"
  target "GPT-2 124M, times PyTorch compiled" 1.15 "$(beside_torch torch-124m)"
  target "GPT-2 1.5B, mfu" 0.55 "$(number mfu "$work/step-1.5b.json")"
  target "attention forward, head size 128, 4096 positions: share of the GEMM rate" 0.60 "$attention"
  target "elementwise operators: lowest share of the copy rate" 0.80 "$(number lowest_share "$work/elementwise.json")"
}

# Writes gpu_check.json and gpu_check.md for the stages so far.
report() {
  judge
  local commit gpu i name measured goal verdict
  commit=$(sed -n 's/^commit //p' "$root/BUNDLE" 2> /dev/null || true)
  commit=${commit:-$(git -C "$root" rev-parse --short=12 HEAD 2> /dev/null)}
  gpu=$(head -n 1 "$work/machine.line" 2> /dev/null)
  {
    printf '{"date":"%s","commit":"%s","gpu":"%s","emulated":%s,"seconds":%d,"machine":"%s","stages":[' "$(date -u +%FT%TZ)" \
      "$(text <<< "$commit")" "$(text <<< "$gpu")" "$([ -n "$emulated" ] && echo true || echo false)" $((SECONDS - start)) \
      "$(text < <(cat "$work/machine.txt" 2> /dev/null))"
    for i in "${!names[@]}"; do
      printf '%s\n{"name":"%s","result":"%s","seconds":%d,"line":"%s","document":%s,"clocks":%s}' "$([ "$i" -gt 0 ] && echo ,)" \
        "${names[i]}" "${results[i]}" "${seconds[i]}" "$(text <<< "${lines[i]}")" "$(document "${names[i]}")" "$(document "${names[i]}.clocks")"
    done
    printf '],\n"targets":['
    for i in "${!targets[@]}"; do
      IFS='|' read -r name goal measured verdict <<< "${targets[i]}"
      printf '%s{"name":"%s","measured":%s,"target":%s,"verdict":"%s"}' "$([ "$i" -gt 0 ] && echo ,)" "$name" "${measured:-null}" "$goal" "$verdict"
    done
    printf ']}\n'
  } > "$work/gpu_check.json"
  {
    printf "## %s\n\n\`scripts/gpu_check.sh\`, commit %s, %s\n\n" "${gpu:-GPU}" "$commit" "$(date -u +%F)"
    printf '| stage | result | s | |\n|---|---|---|---|\n'
    for i in "${!names[@]}"; do printf '| %s | %s | %d | %s |\n' "${names[i]}" "${results[i]}" "${seconds[i]}" "${lines[i]//|/\\|}"; done
    if [ ${#targets[@]} -gt 0 ]; then
      printf '\n| metric | target | measured | |\n|---|---|---|---|\n'
      printf '%s\n' "${targets[@]}" | sed 's/^/| /; s/|/ | /g; s/$/ |/'
    fi
    for i in "${!names[@]}"; do
      [ -s "$work/${names[i]}.txt" ] || continue
      if [[ ${names[i]} == torch-* ]]; then
        printf '\n### %s\n\n%s\n' "${names[i]}" "$(cat "$work/${names[i]}.txt")"
      else
        printf "\n### %s\n\n\`\`\`\n%s\n\`\`\`\n" "${names[i]}" "$(cat "$work/${names[i]}.txt")"
      fi
    done
  } > "$work/gpu_check.md"
  mv -f "$work/gpu_check.json" "$work/gpu_check.md" "$out" # atomically, as the script may be cut off at any time
}

# Sizes.
filter='*' short='*Activations/2.Gelu*:*Loss/2.Matches*:*Norm/2.Forward*:*Norm/2.Backward*:*RopeOf/2.Matches*:*Embedding/2.*Sums*:*Elementwise/2.*'
short+=':*AttentionOf/2.Matches*:*AttentionShapes/2.Match*:*Adam/1.Keeps*'
mpi_ranks='2 4' computes='bf16 fp32' warmup=3 repeats=10 few=3 tiny=() size=() shrink=()
case_124m=(train.global_batch=32 train.micro_batch=32 'train.recompute="none"' data.vocab_size=50304 run.device=cuda)
case_1_5b=(train.global_batch=16 train.micro_batch=16 'train.recompute="none"' data.vocab_size=50304 run.device=cuda)
full_124m=(train.global_batch=512 train.micro_batch=64 'train.recompute="none"' data.vocab_size=50304 run.device=cuda
  optim.warmup_steps=1) # the configuration's warm-up is longer than its run at this batch
full_1_5b=(train.global_batch=512 train.micro_batch=16 'train.recompute="none"' data.vocab_size=50304 run.device=cuda)
torch_device=cuda torch_tiny=() compiled=(full_124m case_1_5b case_124m) step_data=() text_tokenizer=(--tokenizer "$root/data/gpt2")
# torch.compile builds its launchers with a C compiler. Without one PyTorch is measured in eager mode.
compiler=$(program_of "${CC:-cc}" gcc clang)
if [ -z "$compiler" ]; then torch_tiny=(--no-compile); fi
train_run=(train.tokens=9830400 train.global_batch=32 train.micro_batch=32 'train.recompute="none"' data.vocab_size=8192)
if [ -n "$emulated" ]; then
  filter='*Loss/2.Matches*:*CudaTraining*' mpi_ranks=2 computes=bf16 repeats=1 few=1 size=(--size 65536)
  shrink=(model.n_layer=1 model.d_model=32 model.n_head=2 model.seq_len=16 data.vocab_size=352 train.global_batch=2
    train.micro_batch=2 hardware.peak_tflops=1)
  mapfile -t tiny < <(printf '%s\n' --config "$root/configs/gpt2-124m.toml" --repeats 1 && set_of "${shrink[@]}")
  size+=(--repeats 1)
  train_run=(train.tokens=96 optim.warmup_steps=1) text_tokenizer=(--train-vocab 352)
  # PyTorch has no emulated device: its stages run on the CPU, and are compared with the trainer there.
  mapfile -t torch_tiny < <(printf '%s\n' --no-compile --tries 1 --threads 1 && set_of "${shrink[@]}")
  torch_device=cpu compiled=(case_124m) # with tiny sizes, all cases are the same
  patience=10 budget=$((10 * budget)) # an emulated device is slow, and its times have no meaning
fi

stage machine 30
if [ "${results[0]:-passed}" != passed ] && [ -z "$emulated" ]; then
  hopeless='no GPU'
fi
# The first call: benchmarks while nothing else runs, then the tests.
stage step-124m 40
stage text-124m 40
stage full-124m 50
stage attention 30
stage elementwise 30
stage optimizer 20
stage gemm 40
stage step-1.5b 60
stage full-1.5b 80
start_compiling
stage tests 150
stage cudnn 40
stage sanitizer 105
stage torch-compile 120
# The second call.
stage torch-full-124m 100
stage torch-full-1.5b 180
stage torch-124m 150
stage torch-1.5b 150
stage tuned 40
stage train 60
stage mpi 90
stage collectives 20
stage cpu 60
stage torch-cpu 150
stage profile 45

echo
sed -n '/^| stage/,/^$/p; /^| target/,/^$/p' "$out/gpu_check.md"
echo "$out/gpu_check.md, gpu_check.json, gpu_check.log"
for i in "${!names[@]}"; do
  if [ "${results[i]}" = failed ] && { [ -n "$emulated" ] || [[ ${names[i]} != torch-* && ${names[i]} != profile ]]; }; then exit 1; fi
done
