#!/usr/bin/env bash
# Checks the files of scripts/release.sh in minimal root file systems of distributions, without this project's packages.
#
#   scripts/check_release.sh [DIR] [--suites "bookworm trixie noble"] [--roots DIR] [--quickstart] [--help]
#
#   DIR            output folder of scripts/release.sh (default: dist)
#   --suites       roots to try (default: bookworm trixie noble, that is Debian 12, Debian 13 and Ubuntu 24.04)
#   --roots DIR    where roots are made and kept (default: /var/tmp); one that exists is used again
#   --quickstart   also time the quick start, all 600 steps, from the wheel and with scripts/quickstart.sh --prebuilt, in the
#                  first root
#
# Needs root, debootstrap and the distributions' archives (scripts/fresh_root.sh). In each root: the archive in a folder
# with a space in its name, the libraries that it uses, training without MPI and on two ranks under Open MPI and MPICH with
# equal losses, a launcher without MPI, the wheel from installation to removal, the .deb. If a root cannot be created,
# it is reported and skipped; exit status 1 if a check fails or no root was tried.
set -euo pipefail
cd "$(dirname "$0")/.."

# --- in the root: the checks, in a copy of the checkout next to /dist
steps() { # LAUNCHER...: prints the losses of 20 steps of the quick start
  rm -rf /tmp/run
  "$@" train --config configs/quickstart.toml --set run.dir=/tmp/run --max-steps 20 > /tmp/log 2>&1 || { cat /tmp/log; return 1; }
  grep -o '"event":"step".*' /tmp/run/metrics.jsonl | grep -o '"loss":[0-9.]*' | sha256sum
}
expect() { # WHAT EXPECTED GOT
  [ "$2" = "$3" ] || { echo "FAILED: $1: expected $2, got $3"; exit 1; }
  echo "ok: $1"
}
wheel_quickstart() {  # from the wheel at hand to a trained, evaluated model
  local begin=$SECONDS trainer=/opt/venv/bin/trainer
  rm -rf /opt/venv /tmp/run && python3 -m venv /opt/venv
  /opt/venv/bin/pip install --quiet --no-index /dist/trainer_llm-*.whl
  $trainer train --config configs/quickstart.toml --set run.dir=/tmp/run | tail -3
  $trainer eval --checkpoint /tmp/run | tail -2
  $trainer generate --checkpoint /tmp/run --prompt "She had never" --tokens 150 > /dev/null
  echo "ok: quick start from the wheel in $((SECONDS - begin)) s"
}
inside() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 DEBIAN_FRONTEND=noninteractive
  (cd /dist && sha256sum --quiet -c SHA256SUMS) && echo "ok: checksums"
  local folder="/opt/a folder"
  rm -rf "$folder" && mkdir -p "$folder"
  tar -xf /dist/trainer-*-glibc2.36.tar.gz -C "$folder" --strip-components=1
  local trainer="$folder/bin/trainer"
  "$trainer" --version | head -2
  expect "libraries outside the archive" "ld-linux-x86-64.so.2 libc.so.6 libm.so.6 linux-vdso.so.1" \
    "$(ldd "$folder/lib/trainer/trainer" | grep -v "$folder" | awk '{print $1}' | xargs -n1 basename | sort | xargs)"
  [ -e "$folder/share/trainer/docs/README.md" ] || { echo "FAILED: the archive has no manual"; exit 1; }
  local solo two status=0
  solo=$(steps "$trainer")
  echo "ok: training without MPI, losses $solo"
  if ! command -v mpirun > /dev/null; then  # not if the root is reused
    OMPI_COMM_WORLD_SIZE=2 "$trainer" --config configs/quickstart.toml 2> /tmp/log || status=$?
    expect "status of a launcher without MPI" 2 $status
    grep -q "libmpi.so.40" /tmp/log || { cat /tmp/log; exit 1; }
  fi

  apt-get -qq update
  apt-get -qq install -y --no-install-recommends openmpi-bin python3-venv > /dev/null
  two=$(steps mpirun.openmpi -np 2 --oversubscribe --bind-to none "$trainer")
  echo "ok: 2 ranks of Open MPI, losses $two"
  apt-get -qq install -y --no-install-recommends mpich > /dev/null
  if grep -q noble /etc/os-release; then  # its MPICH (4.2.0-5build3) finds only one rank (pmodels/mpich#7064)
    steps mpiexec.mpich -np 2 "$trainer" > /tmp/refused || true
    expect "refusals of Ubuntu 24.04's MPICH" 2 "$(grep -c "2 ranks were started, but MPICH.* finds 1" /tmp/refused)"
  else
    expect "losses of 2 ranks of MPICH" "$two" "$(steps mpiexec.mpich -np 2 "$trainer")"
  fi

  local file missing=
  for file in "$folder"/lib/trainer/*; do
    grep -A 5 "\"name\": \"${file##*/}\"" /dist/trainer-*.cdx.json | grep -q "$(sha256sum < "$file" | cut -d' ' -f1)" || missing+=" ${file##*/}"
  done
  expect "files that the SBOM lacks or lists with a different checksum" "" "$missing"
  rm -rf /opt/venv && python3 -m venv /opt/venv
  find /opt/venv | sort > /tmp/before
  /opt/venv/bin/pip install --quiet --no-index /dist/trainer_llm-*.whl
  expect "losses of the wheel" "$solo" "$(steps /opt/venv/bin/trainer)"
  expect "losses of the wheel's module" "$solo" "$(steps /opt/venv/bin/python -m trainer_llm)"
  [ "${1:-}" != quickstart ] || wheel_quickstart
  /opt/venv/bin/pip uninstall --quiet --yes trainer-llm
  expect "files that the wheel leaves" "" "$(find /opt/venv -type f -newer /tmp/before -path '*trainer*' -printf '%p ')"

  apt-get -qq install -y /dist/trainer_*.deb > /dev/null
  expect "losses of the .deb" "$solo" "$(steps /usr/bin/trainer)"
  apt-get -qq remove -y trainer > /dev/null
  expect "the .deb's program after its removal" "" "$(ls /usr/bin/trainer 2> /dev/null || true)"
  if [ "${1:-}" = quickstart ]; then
    local begin=$SECONDS
    scripts/quickstart.sh --prebuilt /dist/trainer-*-glibc2.36.tar.gz | tail -20
    echo "ok: quick start from the archive in $((SECONDS - begin)) s"
  fi
}
if [ "${1:-}" = --inside ]; then
  inside "${@:2}"
  exit
fi

dist=dist suites="bookworm trixie noble" roots=/var/tmp quickstart=
while [ $# -gt 0 ]; do
  case $1 in
    --suites) suites=${2:?--suites needs names}; shift ;;
    --roots) roots=${2:?--roots needs a folder}; shift ;;
    --quickstart) quickstart=quickstart ;;
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "scripts/$(basename "$0")"; exit 0 ;;
    -*) echo "check_release.sh: unknown argument '$1' (try --help)" >&2; exit 2 ;;
    *) dist=$1 ;;
  esac
  shift
done
[ -e "$dist/SHA256SUMS" ] || { echo "check_release.sh: $dist/SHA256SUMS not found: run scripts/release.sh first" >&2; exit 2; }

tried=0 failed=
for suite in $suites; do
  root=$roots/trainer-$suite
  if ! scripts/fresh_root.sh "$suite" --dir "$root" --keep -- true; then
    echo "SKIPPED: no root of $suite could be created"
    continue
  fi
  rm -rf "$root/dist" && cp -r "$dist" "$root/dist"
  tried=$((tried + 1))
  scripts/fresh_root.sh "$suite" --dir "$root" --keep -- bash scripts/check_release.sh --inside $quickstart || failed+=" $suite"
  quickstart=
done
[ -z "$failed" ] || { echo "FAILED in:$failed" >&2; exit 1; }
[ $tried -gt 0 ] || { echo "check_release.sh: no root was tried" >&2; exit 1; }
echo "All checks passed in $tried roots."
