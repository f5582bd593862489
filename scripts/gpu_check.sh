#!/usr/bin/env bash
# Checks and measures the trainer on a machine with one NVIDIA GPU: one call, no network, below eight minutes.
#
#   scripts/gpu_check.sh [--bundle DIR] [--out DIR] [--budget SECONDS] [--stages "NAME…"] [--python PROGRAM]
#   scripts/gpu_check.sh --pack OUT
#
#   --bundle DIR   what scripts/gpu_bundle.sh packed (default: the bundle this script lies in, else it is built here)
#   --out DIR      where gpu_check.json, gpu_check.md and gpu_check.log go (default: gpu-check)
#   --budget N     seconds in all (default: 460); stages that do not fit any more are skipped, the last ones first
#   --stages "…"   these only, of: machine tests mpi gemm attention cudnn elementwise optimizer step-124m step-1.5b
#                  torch-124m tuned train sanitizer torch-1.5b collectives cpu torch-cpu profile
#   --python P     an interpreter that has PyTorch, to measure it beside the trainer (default: python3)
#   --emulated D   the same stages with the emulated device of the build folder D and tiny sizes: a test of this script
#   --pack OUT     make a bundle instead (see scripts/gpu_bundle.sh)
#
# Exit status 0: every test passed and every measurement of the trainer ran. A speed that misses its target is reported
# and fails nothing.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")

usage() { echo "gpu_check.sh: $*" >&2; exit 2; }
bundle='' out=gpu-check budget=460 only='' python=python3 emulated=''
while [ $# -gt 0 ]; do
  case $1 in
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

mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check-XXXXXX") || exit 2
trap 'rm -rf -- "$work"' EXIT
: > "$out/gpu_check.log"
start=$SECONDS
left() { echo $((budget - (SECONDS - start))); }

# --- Programs -------------------------------------------------------------------------------------------------------

if [ -z "$emulated" ] && [ -z "$bundle" ]; then
  if [ -f "$root/BUNDLE" ]; then
    bundle=$root
  else
    echo "No bundle: building one"
    "$here/gpu_bundle.sh" "$work/bundle" || exit 2
    bundle=$work/bundle
    start=$SECONDS # the time is for what runs on the GPU
  fi
fi
if [ -n "$emulated" ]; then
  bin=$emulated trainer=$emulated/trainer_emulated operators=$emulated/ops_emulated
  [ -x "$trainer" ] || usage "$trainer is not built"
  programs=(ops_emulated training_emulated)
  if [ -x "$bin/mpi_devices_emulated" ]; then programs+=(mpi_devices_emulated); fi
else
  bundle=$(cd "$bundle" && pwd) || exit 2
  root=$bundle
  [ -f "$bundle/BUNDLE" ] || usage "$bundle is no bundle"
  mapfile -t programs < "$bundle/bin/gpu_programs.txt"
  bin=$bundle/bin trainer=$bundle/bin/trainer operators=$bundle/bin/ops_cuda
  # Libraries: the bundle's, CUDA's where the loader does not know them, the compiler's where the machine's are older.
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
  # What the program opens while it runs.
  for folder in "${cuda_folders[@]}"; do
    if [ -e "$folder/libcudnn.so.9" ] || [ -e "$folder/libcudart.so.13" ]; then LD_LIBRARY_PATH+=:$folder; fi
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
  OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
if [[ $python == */* ]]; then python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python"); fi
cd "$root" || exit 2 # the configurations name their text from there
export TRAINER_TEST_DEVICE=cuda PYTHONDONTWRITEBYTECODE=1

# --- Stages ---------------------------------------------------------------------------------------------------------
# A stage is a function that writes $work/NAME.json (a document, if it has one) and $work/NAME.txt (what people read),
# prints a line for the summary to fd 3, and returns 0 (passed), 77 (left out, with the reason on fd 3) or anything else.

patience=1 names=() results=() seconds=() lines=() hopeless=
text() { sed -e 's/[\\"]/\\&/g' -e 's/\t/ /g' | tr -d '\r' | awk 'NR > 1 { printf "\\n" } { printf "%s", $0 }'; }
# What stage $1 has written, or null.
document() { grep . "$work/$1.json" 2> /dev/null || echo null; }
# The document $1 of these members.
join_parts() { (name=$1 && shift && IFS=, && echo "{$*}" > "$work/$name.json"); }
# The first number called $1 in the document $2.
number() { grep -o "\"$1\": *-\{0,1\}[0-9][0-9.e+-]*" "$2" 2> /dev/null | sed 's/.*: *//; q'; }
# The first of these that is a program: a name, or a path.
program_of() {
  local each
  for each in "$@"; do if command -v "$each"; then return; fi; done
}

# stage NAME LIMIT: runs the function stage_NAME for at most LIMIT seconds.
stage() {
  local name=$1 limit=$(($2 * patience)) result begin=$SECONDS line
  if [ -n "$only" ] && [[ " $only " != *" $name "* ]]; then return; fi
  if [ -n "$hopeless" ]; then
    result='left out' line=$hopeless
  elif [ "$(left)" -lt 10 ]; then
    result='left out' line='no time left'
  else
    if [ "$limit" -gt "$(left)" ]; then limit=$(left); fi
    printf '[%4d s] %s\n' $((SECONDS - start)) "$name"
    deadline=$((SECONDS + limit))
    # In a process group of its own, so that nothing of it outlives its time.
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
}
# Runs a command for what is left of the stage's time.
timed() { timeout -k 2 "$((deadline > SECONDS ? deadline - SECONDS : 1))" "$@"; }
leave_out() { echo "$*" >&3; exit 77; }
# bench NAME ARGUMENT…: `trainer bench`, both kinds of its output.
bench() {
  local name=$1
  shift
  timed "$trainer" bench "$@" --json > "$work/$name.json" 2> "$work/$name.txt"
}
set_of() { # --set for each argument
  local each
  for each in "$@"; do printf '%s\n' --set "$each"; done
}

stage_machine() {
  {
    "$trainer" --version
    command -v nvidia-smi > /dev/null &&
      timed nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit,pstate --format=csv
    echo "$(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
    "$python" --version 2>&1
    "$python" -c 'import torch; print("PyTorch", torch.__version__)' 2>&1 | tail -n 1
    cat "$root/BUNDLE" 2> /dev/null
  } > "$work/machine.txt"
  gpu=$(sed -n 's/^ *cuda 0: //p' "$work/machine.txt")
  echo "${gpu:-no GPU: $(sed -n 's/.*\(no CUDA device.*\|no CUDA in this build.*\)/\1/p' "$work/machine.txt" | head -n 1)}" >&3
  [ -n "$gpu" ]
}

# Each program in as many parts as keep the cores busy with the references.
stage_tests() {
  local parts=$(($(nproc) / 2)) program part failed='' skipped=0 ran=0 pids
  if [ "$parts" -lt 1 ]; then parts=1; fi
  if [ "$parts" -gt 6 ]; then parts=6; fi
  for program in "${programs[@]}"; do
    if [[ $program == mpi_* ]]; then continue; fi
    pids=()
    for ((part = 0; part < parts; ++part)); do
      GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part GTEST_FILTER=$filter \
        timed "$bin/$program" > "$work/$program.$part" 2>&1 &
      pids+=($!)
    done
    for ((part = 0; part < parts; ++part)); do
      wait "${pids[part]}" || failed+=" $program.$part"
      cat "$work/$program.$part"
      ran=$((ran + $(grep -c '^\[       OK' "$work/$program.$part")))
      skipped=$((skipped + $(grep -c '^\[  SKIPPED \].*ms)' "$work/$program.$part")))
      grep -h '^\[  FAILED  \].*ms)' "$work/$program.$part" >> "$work/tests.txt"
    done
  done
  echo "$ran passed, $skipped skipped${failed:+; failed in$failed}" >&3
  printf '{"passed":%d,"skipped":%d,"failed":"%s"}\n' "$ran" "$skipped" "$(text <<< "${failed# }")" > "$work/tests.json"
  [ -z "$failed" ] && [ "$ran" -gt 0 ]
}

# Ranks that are processes and share the GPU have the bits of ranks that are threads, and follow one rank.
stage_mpi() {
  local program ranks ran='' failed=''
  command -v mpirun > /dev/null || leave_out "no mpirun here"
  [[ ${programs[*]} == *mpi_* ]] || leave_out "built without MPI"
  for program in "${programs[@]}"; do
    if [[ $program != mpi_* ]]; then continue; fi
    for ranks in $mpi_ranks; do
      ran+=" $program:$ranks"
      timed mpirun -np "$ranks" "$bin/$program" || failed+=" $program:$ranks"
    done
  done
  if [ -z "$emulated" ] && command -v "$python" > /dev/null; then
    for layout in tensor=2 data=2; do
      ran+=" whole-run:$layout"
      timed "$python" "$here/compare_layouts.py" --trainer "$trainer" --config "$root/configs/quickstart.toml" --steps 10 \
        --set "data.train=[\"$root/data/austen.txt\"]" --set run.device=cuda --set precision.compute=fp32 \
        --set "parallel.$layout" --launcher "mpirun -np 2" || failed+=" whole-run:$layout"
    done
  fi
  echo "${ran# }${failed:+; failed:$failed}" >&3
  [ -z "$failed" ] && [ -n "$ran" ]
}

stage_gemm() {
  local compute status=0
  for compute in $computes; do
    timed "$trainer" bench gemm --compute "$compute" --json "${tiny[@]}" > "$work/gemm-$compute.json" 2>> "$work/gemm.txt" || status=1
  done
  printf '{"bf16":%s,"fp32":%s}\n' "$(document gemm-bf16)" "$(document gemm-fp32)" > "$work/gemm.json"
  echo "best bf16 product $(awk -v x="$(number peak_gflops "$work/gemm-bf16.json")" 'BEGIN { printf "%.0f", x / 1000 }') TFLOP/s" >&3
  return $status
}
stage_attention() { bench attention attention --compute bf16 "${tiny[@]}" && grep '^b ' "$work/attention.txt" | tail -n 1 >&3; }
# The library's attention, where it was compiled in and is here: the operators' tests with it, then its rates.
stage_cudnn() {
  TRAINER_TEST_ATTENTION=cudnn GTEST_FILTER='*Attention*/2.*' timed "$operators" > "$work/cudnn.tests" 2>&1
  local status=$?
  cat "$work/cudnn.tests"
  if grep -q '^\[  SKIPPED' "$work/cudnn.tests" && ! grep -q '^\[       OK' "$work/cudnn.tests"; then
    leave_out "$(grep -m 1 -o 'without cuDNN\|libcudnn.*\|cuDNN cannot.*\|cuDNN was found.*' "$work/cudnn.tests")"
  fi
  [ $status = 0 ] || return $status
  bench cudnn attention --compute bf16 --set hardware.attention=cudnn "${tiny[@]}" && grep '^b ' "$work/cudnn.txt" | tail -n 1 >&3
}
stage_elementwise() {
  bench elementwise elementwise --compute bf16 "${size[@]}" &&
    echo "$(head -n 1 "$work/elementwise.txt"); slowest operator at $(number lowest_share "$work/elementwise.json") of it" >&3
}
stage_optimizer() { bench optimizer optimizer "${size[@]}" && cat "$work/optimizer.txt" >&3; }
stage_collectives() {
  command -v mpirun > /dev/null || leave_out "no mpirun here"
  [[ ${programs[*]} == *mpi_* ]] || leave_out "built without MPI"
  local where parts=() status=0
  for where in cpu cuda; do
    timed mpirun -np 2 "$trainer" bench collectives --repeats 5 --json --set "run.device=$where" \
      > "$work/collectives-$where.json" 2>> "$work/collectives.txt" || status=1
    parts+=("\"$where\":$(document "collectives-$where")")
  done
  join_parts collectives "${parts[@]}"
  echo "two processes: memory of the host, and of the GPU they share" >&3
  return $status
}

# The matrix unit of the CPU beside the GPU, where it has one.
has_amx() {
  if [ -n "$emulated" ] || ! grep -qw amx_bf16 /proc/cpuinfo; then leave_out "no AMX here"; fi
}
stage_cpu() {
  has_amx
  local what parts=() status=0
  for what in gemm attention optimizer; do
    timed "$trainer" bench "$what" --compute bf16 --set run.device=cpu --json > "$work/cpu-$what.json" 2>> "$work/cpu.txt" || status=1
    parts+=("\"$what\":$(document "cpu-$what")")
  done
  mapfile -t sets < <(set_of "${case_124m[@]}" run.device=cpu train.global_batch=4 train.micro_batch=4)
  timed "$trainer" bench step --config "$root/configs/gpt2-124m.toml" --compute bf16 --warmup 1 --repeats 5 "${sets[@]}" --json \
    > "$work/cpu-step.json" 2> "$work/cpu-step.txt" || status=1
  cat "$work/cpu-step.txt" >> "$work/cpu.txt"
  parts+=("\"step\":$(document cpu-step)")
  join_parts cpu "${parts[@]}"
  sed -n 2p "$work/cpu-step.txt" >&3
  return $status
}
stage_torch_cpu() {
  has_amx
  torch torch-cpu 124m-4x1024 --device cpu --compute bf16 fp32 --rounds 2 --steps 3 --warmup 2
}

step() { # NAME CONFIG OVERRIDE…
  local name=$1 config=$2
  shift 2
  mapfile -t sets < <(set_of "$@" "${shrink[@]}")
  bench "$name" step --config "$root/configs/$config" --warmup 3 --repeats "$repeats" "${sets[@]}" &&
    sed -n 2p "$work/$name.txt" >&3
}
stage_step_124m() { step step-124m gpt2-124m.toml "${case_124m[@]}"; }
stage_step_1_5b() { step step-1.5b gpt2-1.5b.toml "${case_1_5b[@]}"; }

# The library's algorithms are measured for every product of a step, then the step with the best of them.
stage_tuned() {
  mapfile -t sets < <(set_of "${case_124m[@]}" "${shrink[@]}")
  timed "$trainer" bench gemm --config "$root/configs/gpt2-124m.toml" "${sets[@]}" --write-tuning "$work/tuning.json" || return
  step tuned gpt2-124m.toml "${case_124m[@]}" "hardware.gemm_tuning=$work/tuning.json" || return
  cp "$work/tuning.json" "$out/gemm_tuning.json"
}

# A real run: text, tokenizer, training, a sample; the speed of its steps as the run itself reports it.
stage_train() {
  local run=$work/run
  mapfile -t sets < <(set_of "run.dir=$run" run.device=cuda "data.train=[\"$root/data/austen.txt\"]" train.eval_interval=0 \
    train.sample_interval=0 checkpoint.interval=0 "${train_run[@]}" "${shrink[@]}")
  timed "$trainer" train --config "$root/configs/gpt2-124m.toml" --resume never "${sets[@]}" || return
  timed "$trainer" generate --checkpoint "$run" --prompt "She had never" --tokens 20 --seed 1 || return
  sed -n 's/.*"event":"step".*"tokens_per_s":\([0-9.e+]*\).*/\1/p' "$run/metrics.jsonl" | sort -g > "$work/speeds"
  local steps median
  steps=$(wc -l < "$work/speeds")
  median=$(sed -n "$((steps / 2 + 1))p" "$work/speeds")
  printf '{"steps":%d,"tokens_per_s":%s}\n' "$steps" "${median:-null}" > "$work/train.json"
  cp "$run/report.html" "$out/train.html" 2> /dev/null
  echo "$steps steps, median $median tokens/s" >&3
}

torch() { # NAME CASE ARGUMENT…
  "$python" -c 'import torch' 2> /dev/null || leave_out "no PyTorch for $python"
  local name=$1 case=$2
  shift 2
  timed "$python" "$root/tests/bench/compare_torch.py" --trainer "$trainer" --python "$python" --device cuda --cases "$case" \
    --compute bf16 --rounds 2 --steps 10 --warmup 5 --max-seconds 60 --json "$work/$name.pretty" "$@" > "$work/$name.txt" || return
  tr -d '\n' < "$work/$name.pretty" > "$work/$name.json"
  tail -n 1 "$work/$name.txt" >&3
}
stage_torch_124m() { torch torch-124m gpu-124m; }
# Compiling 48 layers takes long: of PyTorch's variants only the one that was faster above.
stage_torch_1_5b() {
  torch torch-1.5b gpu-1.5b --variant "$(sed -n 's/.*"peer": *"\([a-z0-9]*\).*/\1/p' "$work/torch-124m.json" 2> /dev/null | grep . || echo autocast)"
}

# Short tests of every operator, under each of the sanitizer's tools.
stage_sanitizer() {
  local tool found=() bad='' sanitizer
  sanitizer=$(program_of compute-sanitizer /usr/local/cuda*/bin/compute-sanitizer)
  [ -n "$sanitizer" ] || leave_out "no compute-sanitizer here"
  for tool in memcheck racecheck synccheck initcheck; do
    if [ "$deadline" -le "$SECONDS" ]; then found+=("$tool: no time left"); continue; fi
    GTEST_FILTER=$short timeout -k 2 25 "$sanitizer" --tool "$tool" --error-exitcode 9 "$operators" > "$work/$tool" 2>&1
    local status=$?
    tail -n 30 "$work/$tool"
    if grep -qi 'device not supported\|unable to find injection\|no attachable' "$work/$tool"; then
      found+=("$tool: not possible here")
    elif [ $status = 0 ]; then
      found+=("$tool: nothing")
    elif [ $status = 124 ] && ! grep -q '^=========.*\(Invalid\|hazard\|Uninitialized\|Barrier error\)' "$work/$tool"; then
      found+=("$tool: nothing until its time was over")
    else
      found+=("$tool: $(grep -c '^========= \(Invalid\|Error\|Warning\|Uninit\|Barrier\)' "$work/$tool") reports")
      bad=yes
    fi
  done
  printf '%s\n' "${found[@]}" > "$work/sanitizer.txt"
  (IFS=';' && echo "${found[*]}") >&3
  [ -z "$bad" ]
}

stage_profile() {
  local ncu
  ncu=$(program_of ncu /usr/local/cuda*/bin/ncu /opt/nvidia/nsight-compute/*/ncu)
  [ -n "$ncu" ] || leave_out "no ncu here; the steps above name the time of each operator"
  mapfile -t sets < <(set_of "${case_124m[@]}" model.n_layer=1)
  timed "$ncu" --clock-control none --section SpeedOfLight --launch-skip 60 --launch-count 60 "$trainer" bench step \
    --config "$root/configs/gpt2-124m.toml" --warmup 1 --repeats 1 "${sets[@]}" > "$work/profile.ncu"
  grep -E '^  [a-z_].*\(|Compute \(SM\) Throughput|  Memory Throughput +%|Duration' "$work/profile.ncu" > "$work/profile.txt"
  echo "$(grep -c Duration "$work/profile.txt") kernels" >&3
}

# Sizes.
filter='*' short='*Activations/2.Gelu*:*Loss/2.Matches*:*Norm/2.Forward*:*Norm/2.Backward*:*RopeOf/2.Matches*:*Embedding/2.*Sums*:*Elementwise/2.*'
short+=':*AttentionOf/2.Matches*:*AttentionShapes/2.Match*:*Adam/1.Keeps*'
mpi_ranks='2 4' computes='bf16 fp32' repeats=10 tiny=() size=() shrink=()
case_124m=(train.global_batch=32 train.micro_batch=32 'train.recompute="none"' data.vocab_size=50304 run.device=cuda)
case_1_5b=(train.global_batch=16 train.micro_batch=16 'train.recompute="none"' data.vocab_size=50304 run.device=cuda)
train_run=(train.tokens=9830400 train.global_batch=32 train.micro_batch=32 'train.recompute="none"' data.vocab_size=8192)
if [ -n "$emulated" ]; then
  filter='*Loss/2.Matches*:*CudaTraining*' mpi_ranks=2 computes=bf16 repeats=1 size=(--size 65536)
  shrink=(model.n_layer=1 model.d_model=32 model.n_head=2 model.seq_len=16 data.vocab_size=352 train.global_batch=2
    train.micro_batch=2 hardware.peak_tflops=1)
  mapfile -t tiny < <(printf '%s\n' --config "$root/configs/gpt2-124m.toml" --repeats 1 && set_of "${shrink[@]}")
  size+=(--repeats 1)
  train_run=(train.tokens=96 optim.warmup_steps=1)
  patience=10 budget=$((10 * budget)) # an emulated device is slow, and nothing is measured
fi

stage machine 30
if [ "${results[0]:-passed}" != passed ] && [ -z "$emulated" ]; then
  hopeless='no GPU'
fi
stage tests 150
stage mpi 90
stage gemm 40
stage attention 30
stage cudnn 40
stage elementwise 30
stage optimizer 20
stage step-124m 40
stage step-1.5b 60
stage torch-124m 150
stage tuned 40
stage train 60
stage sanitizer 105
stage torch-1.5b 120
stage collectives 20
stage cpu 60
stage torch-cpu 150
stage profile 45

# --- Report ---------------------------------------------------------------------------------------------------------

# What decisions have set as targets, from what was measured: NAME MEASURED TARGET.
targets=()
target() { if [ -n "$2" ]; then targets+=("$1|$2|$3|$(awk -v a="$2" -v b="$3" 'BEGIN { print (a + 0 >= b + 0) ? "met" : "missed" }')"); fi; }
if [ -z "$emulated" ]; then
  target "GPT-2 124M, tokens/s" "$(number tokens_per_s "$work/step-124m.json")" 470000
  target "GPT-2 124M beside PyTorch" "$(number ratio "$work/torch-124m.json")" 1.15
  target "GPT-2 1.5B, mfu" "$(number mfu "$work/step-1.5b.json")" 0.55
  attention=$(grep -o '"forward_share":[0-9.]*,"head_dim":128[^}]*"seq_len":4096' "$work/attention.json" 2> /dev/null | sed 's/.*share":\([0-9.]*\),.*/\1/' | sort -g | tail -n 1)
  target "attention forward, head size 128, 4096 positions: share of the product rate" "$attention" 0.60
  target "elementwise operators: lowest share of the copy rate" "$(number lowest_share "$work/elementwise.json")" 0.80
fi

commit=$(sed -n 's/^commit //p' "$root/BUNDLE" 2> /dev/null || true)
commit=${commit:-$(git -C "$root" rev-parse --short=12 HEAD 2> /dev/null)}
gpu=$(head -n 1 "$work/machine.line" 2> /dev/null)
{
  printf '{"date":"%s","commit":"%s","gpu":"%s","emulated":%s,"seconds":%d,"machine":"%s","stages":[' "$(date -u +%FT%TZ)" \
    "$(text <<< "$commit")" "$(text <<< "$gpu")" "$([ -n "$emulated" ] && echo true || echo false)" $((SECONDS - start)) \
    "$(text < <(cat "$work/machine.txt" 2> /dev/null))"
  for i in "${!names[@]}"; do
    printf '%s\n{"name":"%s","result":"%s","seconds":%d,"line":"%s","document":%s}' "$([ "$i" -gt 0 ] && echo ,)" \
      "${names[i]}" "${results[i]}" "${seconds[i]}" "$(text <<< "${lines[i]}")" "$(document "${names[i]}")"
  done
  printf '],\n"targets":['
  for i in "${!targets[@]}"; do
    IFS='|' read -r name measured wanted verdict <<< "${targets[i]}"
    printf '%s{"name":"%s","measured":%s,"target":%s,"verdict":"%s"}' "$([ "$i" -gt 0 ] && echo ,)" "$name" "$measured" "$wanted" "$verdict"
  done
  printf ']}\n'
} > "$out/gpu_check.json"
{
  printf "## %s\n\n\`scripts/gpu_check.sh\`, commit %s, %s\n\n" "${gpu:-GPU}" "$commit" "$(date -u +%F)"
  printf '| stage | result | s | |\n|---|---|---|---|\n'
  for i in "${!names[@]}"; do printf '| %s | %s | %d | %s |\n' "${names[i]}" "${results[i]}" "${seconds[i]}" "${lines[i]//|/\\|}"; done
  if [ ${#targets[@]} -gt 0 ]; then
    printf '\n| target | measured | wanted | |\n|---|---|---|---|\n'
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
} > "$out/gpu_check.md"

echo
sed -n '/^| stage/,/^$/p; /^| target/,/^$/p' "$out/gpu_check.md"
echo "$out/gpu_check.md, gpu_check.json, gpu_check.log"
for i in "${!names[@]}"; do
  if [ "${results[i]}" = failed ] && { [ -n "$emulated" ] || [[ ${names[i]} != torch-* && ${names[i]} != profile ]]; }; then exit 1; fi
done
