#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages required to build the trainer; does nothing if all are present.
#
#   scripts/install_packages.sh [--tests] [--release] [--help]
#
#   --tests     also the packages that the test suite needs
#   --release   also the packages that scripts/release.sh needs
#
# Debian 12 or Ubuntu 24.04 and newer. Uses sudo only if not run as root. Only missing packages are installed, and they
# are printed first; if none is missing, no network is needed.
set -euo pipefail

packages=(g++ cmake ninja-build python3 libfmt-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libsentencepiece-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libzstd-dev libsnappy-dev libopenmpi-dev openmpi-bin)
optional=(ccache)  # ccache for faster rebuilds; MPICH for tests

for argument in "$@"; do
  case $argument in
    --release) packages+=(libmpich-dev binutils dpkg-dev git zstd) ;;
    --tests) packages+=(libgtest-dev) optional+=(libmpich-dev mpich) ;;
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "install_packages.sh: unknown argument '$argument' (try --help)" >&2; exit 2 ;;
  esac
done

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null)" = installed ]; }

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
  echo "No apt-get here: nothing is installed. Needed (Debian's names): ${packages[*]}; optional: ${optional[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}" "${optional[@]}"; do
  installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "All packages are installed."
  exit 0
fi

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo > /dev/null || {
    echo "install_packages.sh: not root and no sudo; as root run: apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }

apt update || echo "Package lists could not be refreshed; using the existing ones." >&2
chosen=()
for package in "${missing[@]}"; do
  if [[ " ${optional[*]} " == *" $package "* ]] && ! apt-cache show "$package" > /dev/null 2>&1; then
    echo "Not in this system's archive; the build works without it: $package"
  else
    chosen+=("$package")
  fi
done
if [ ${#chosen[@]} -gt 0 ]; then
  echo "Installing ${chosen[*]}"
  apt install -y --no-install-recommends "${chosen[@]}" > /dev/null
fi
