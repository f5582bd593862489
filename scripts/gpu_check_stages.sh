# The stages of scripts/gpu_check.sh, which sources this file: the commands of each, and the line that it prints.
# shellcheck shell=bash
# shellcheck disable=SC2154 # gpu_check.sh sets the variables

stage_machine() {
  {
    "$trainer" --version
    command -v nvidia-smi > /dev/null &&
      timed nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit,pstate --format=csv
    echo "$(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
    "$python" --version 2>&1
    echo "$pytorch"
    cat "$root/BUNDLE" 2> /dev/null
  } > "$work/machine.txt"
  if command -v "$python" > /dev/null && [ "$("$python" -c 'import os; print(os.environ.get("LD_LIBRARY_PATH", ""))')" != "$theirs" ]; then
    echo "Python gets the libraries of the bundle" >&3
    return 1
  fi
  gpu=$(sed -n 's/^ *cuda 0: //p' "$work/machine.txt")
  echo "${gpu:-no GPU: $(sed -n 's/.*\(no CUDA device.*\|no CUDA in this build.*\)/\1/p' "$work/machine.txt" | head -n 1)}" >&3
  [ -n "$gpu" ]
}

# Each program runs in several parts, so that computing the references keeps all cores busy.
stage_tests() {
  local parts=$(($(nproc) * 3 / 4)) program part failed='' skipped=0 ran=0 pids
  if [ "$parts" -lt 1 ]; then parts=1; fi
  if [ "$parts" -gt 12 ]; then parts=12; fi
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

# Ranks that are processes sharing the GPU: bit-identical to ranks that are threads, and close to one rank.
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
      timed "$python" "$here/compare_layouts.py" --trainer "$from_python/trainer" --config "$root/configs/quickstart.toml" --steps 10 \
        --set "data.train=[\"$root/data/austen.txt\"]" --set run.device=cuda --set precision.compute=fp32 \
        --set "parallel.$layout" --launcher "$from_python/mpirun -np 2" || failed+=" whole-run:$layout"
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
  echo "best bf16 GEMM $(awk -v x="$(number peak_gflops "$work/gemm-bf16.json")" 'BEGIN { printf "%.0f", x / 1000 }') TFLOP/s" >&3
  return $status
}
stage_attention() { bench attention attention --compute bf16 --set hardware.attention=own "${tiny[@]}" && grep '^b ' "$work/attention.txt" | tail -n 1 >&3; }
# The library's attention, if it is compiled in and installed: the operators' tests with it, then its rates.
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
    echo "$(grep '; copying' "$work/elementwise.txt"); slowest operator at $(number lowest_share "$work/elementwise.json") of it" >&3
}
stage_optimizer() { bench optimizer optimizer "${size[@]}" && grep '^AdamW' "$work/optimizer.txt" >&3; }
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

# The matrix unit of the GPU's host CPU, if it has one.
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
  grep '^median of' "$work/cpu-step.txt" >&3
  return $status
}
stage_torch_cpu() {
  has_amx
  torch torch-cpu 124m-4x1024 --device cpu --compute bf16 fp32 --rounds 2 --steps 3 --warmup 2
}

# Runs a command of stage $1 while nvidia-smi samples the GPU, and writes what it saw while the GPU was busy.
with_clocks() { # NAME COMMAND…
  local name=$1 sampler='' status=0
  shift
  if command -v nvidia-smi > /dev/null; then
    nvidia-smi --query-gpu=utilization.gpu,clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active \
      --format=csv,noheader,nounits -lms 100 > "$work/$name.samples" 2> /dev/null &
    sampler=$!
  fi
  "$@" || status=$?
  if [ -z "$sampler" ]; then return $status; fi
  kill "$sampler" 2> /dev/null
  wait "$sampler" 2> /dev/null
  # The two lowest bits of the reasons are idleness and settings; higher ones are limits of power and temperature.
  awk -F ', *' '$1 >= 90 && NF == 5 { print $2, $3, $4, $5 !~ /^0x0*[0-3]?$/ }' "$work/$name.samples" | sort -g > "$work/$name.busy"
  awk '{ mhz[NR] = $1; watts += $2; if ($3 > hottest) hottest = $3; limited += $4 }
    END { if (NR) printf "{\"samples\":%d,\"sm_mhz\":%d,\"least_sm_mhz\":%d,\"watts\":%.0f,\"celsius\":%d,\"limited\":%d}\n",
                         NR, mhz[int((NR + 1) / 2)], mhz[1], watts / NR, hottest, limited }' "$work/$name.busy" > "$work/$name.clocks.json"
  if [ -s "$work/$name.clocks.json" ]; then
    echo "clocks while busy: $(tr -d '{}"' < "$work/$name.clocks.json" | sed 's/,/, /g; s/:/ /g')" >> "$work/$name.txt"
  fi
  return $status
}

step() { # NAME CONFIG OVERRIDE…
  local name=$1 config=$2
  shift 2
  if [ -n "$emulated" ]; then # what the GPU will compute is at least counted, in its true size
    mapfile -t sets < <(set_of "$@")
    timed "$trainer" bench step --config "$root/configs/$config" "${sets[@]}" --dry-run || return
  fi
  mapfile -t sets < <(set_of "$@" "${shrink[@]}")
  with_clocks "$name" bench "$name" step --config "$root/configs/$config" --warmup "$warmup" --repeats "$repeats" "${step_data[@]}" "${sets[@]}" &&
    grep '^median of' "$work/$name.txt" >&3
}
stage_step_124m() { step step-124m gpt2-124m.toml "${case_124m[@]}"; }
stage_step_1_5b() { step step-1.5b gpt2-1.5b.toml "${case_1_5b[@]}"; }
# The same step on text, in which some tokens are frequent.
stage_text_124m() {
  timed "$trainer" tokenize --input "$root/data/austen.txt" --output "$work/text" "${text_tokenizer[@]}" || return
  step_data=(--data "$work/text/tokens.bin") && step text-124m gpt2-124m.toml "${case_124m[@]}"
}
# Steps as in real runs: half a million tokens per step, so that the update costs little.
stage_full_124m() { step full-124m gpt2-124m.toml "${full_124m[@]}"; }
stage_full_1_5b() { warmup=1 repeats=$few && step full-1.5b gpt2-1.5b.toml "${full_1_5b[@]}"; }

# Measures the library's algorithms for every GEMM of a step, then the step with the fastest ones.
stage_tuned() {
  mapfile -t sets < <(set_of "${case_124m[@]}" "${shrink[@]}")
  timed "$trainer" bench gemm --config "$root/configs/gpt2-124m.toml" "${sets[@]}" --write-tuning "$work/tuning.json" || return
  step tuned gpt2-124m.toml "${case_124m[@]}" "hardware.gemm_tuning=$work/tuning.json" || return
  cp "$work/tuning.json" "$out/gemm_tuning.json"
}

# A complete run: text, tokenizer, training, a sample; prints the speed that the run itself reports.
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
  [[ $pytorch == PyTorch* ]] || leave_out "no PyTorch for $python"
  local name=$1 case=$2 status refusal
  shift 2
  timed "$python" "$root/tests/bench/compare_torch.py" --trainer "$from_python/trainer" --python "$python" --device "$torch_device" --cases "$case" \
    --compute bf16 --rounds 2 --steps 10 --warmup 5 --max-seconds 60 --variant "$variant" --log "$out/$name.log" \
    --json "$work/$name.pretty" "${torch_tiny[@]}" "$@" > "$work/$name.txt" 2> "$work/$name.errors"
  status=$?
  cat "$work/$name.errors"
  if [ -s "$work/$name.pretty" ]; then tr -d '\n' < "$work/$name.pretty" > "$work/$name.json"; fi
  if [ $status != 0 ]; then
    refusal=$(grep '^trainer: ' "$work/$name.errors" | tail -n 1) # our message, or else PyTorch's
    echo "${refusal:-$(tail -n 1 "$out/$name.log")}" >&3
    return $status
  fi
  if [ -n "$compiler" ]; then tail -n 1 "$work/$name.txt" >&3; else echo "$(tail -n 1 "$work/$name.txt") not compiled: no C compiler here" >&3; fi
}
stage_torch_124m() { torch torch-124m gpu-124m; }
stage_torch_1_5b() { torch torch-1.5b gpu-1.5b --no-race; }
stage_torch_full_124m() { torch torch-full-124m gpu-124m-full --no-race --steps 5 --warmup 2; }
stage_torch_full_1_5b() { torch torch-full-1.5b gpu-1.5b-full --no-race --rounds 1 --steps 2 --warmup 1; }

# PyTorch compiles the shapes of the second call while the tests run, for the second call: one step each, whose code stays in the cache.
start_compiling() {
  if [ -n "$only" ] && [[ " $only " != *" torch-compile "* ]] || [ "$call" = 2 ] || [ -n "$hopeless" ]; then return; fi
  [[ $pytorch == PyTorch* ]] && [ -n "$compiler" ] || return
  set -m
  (for name in "${compiled[@]}"; do
    local -n sets_of_case=$name
    local model=${name#*_}
    mapfile -t sets < <(set_of "${sets_of_case[@]}" train.global_batch=64 "${shrink[@]}")
    "$python" "$root/tests/bench/torch_gpt.py" --config "$root/configs/gpt2-${model/_/.}.toml" "${sets[@]}" --dtype "$variant" \
      --device "$torch_device" --compile --warmup 1 --steps 1 && echo "$name compiled"
  done > "$work/compiled" 2>&1) &
  background=$!
  set +m
}
stage_torch_compile() {
  [ -n "$compiler" ] || leave_out "no C compiler here, which torch.compile needs"
  [ -n "$background" ] || leave_out "no PyTorch for $python"
  while kill -0 "$background" 2> /dev/null && [ "$deadline" -gt "$SECONDS" ]; do sleep 0.2; done
  cp "$work/compiled" "$out/torch-compile.log"
  # The second call may run on a machine that has lost the folder: an archive comes back with the results.
  tar -C "$cache" -czf "$work/torch-cache.tar.gz" . || return
  local kib kept
  kib=$(du -k "$work/torch-cache.tar.gz" | cut -f 1)
  if [ "$kib" -le $((16 * 1024)) ]; then
    mv "$work/torch-cache.tar.gz" "$out/"
    kept="torch-cache.tar.gz, $kib KiB"
  else
    kept="in $cache only: $kib KiB is too much to bring back"
  fi
  echo "$(grep -c ' compiled$' "$work/compiled") of ${#compiled[@]} shapes; $kept" >&3
  [ "$(grep -c ' compiled$' "$work/compiled")" -gt 0 ]
}

# Runs short tests of every operator under each tool of compute-sanitizer.
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
  [ -n "$ncu" ] || leave_out "no ncu here; the steps above show the time of each operator"
  mapfile -t sets < <(set_of "${case_124m[@]}" model.n_layer=1)
  timed "$ncu" --clock-control none --section SpeedOfLight --launch-skip 60 --launch-count 60 "$trainer" bench step \
    --config "$root/configs/gpt2-124m.toml" --warmup 1 --repeats 1 "${sets[@]}" > "$work/profile.ncu"
  grep -E '^  [a-z_].*\(|Compute \(SM\) Throughput|  Memory Throughput +%|Duration' "$work/profile.ncu" > "$work/profile.txt"
  echo "$(grep -c Duration "$work/profile.txt") kernels" >&3
}
