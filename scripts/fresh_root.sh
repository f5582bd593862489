#!/usr/bin/env bash
# Runs the quickstart in a fresh root file system of a distribution, as on a machine where nothing is installed yet.
#
#   scripts/fresh_root.sh SUITE [--dir DIR] [--cache DIR] [--mirror URL] [--keep] [--help] [-- COMMAND...]
#
#   SUITE         bookworm (Debian 12), trixie (Debian 13) or noble (Ubuntu 24.04)
#   --dir DIR     folder of the root (default: /var/tmp/trainer-SUITE); an existing root is reused
#   --cache DIR   a folder of ccache to share with the root
#   --mirror URL  the distribution's archive (default: debootstrap's choice)
#   --keep        do not remove the root afterwards
#   COMMAND       command to run in it, in a copy of this checkout's tracked files (default: scripts/quickstart.sh)
#
# Needs root, debootstrap, the distribution's archive and 3 GB of disk; to check signatures also the distribution's keys
# (debian-archive-keyring or ubuntu-keyring). Mounts are in a private namespace and end with the script. Exit
# status: the command's.
set -euo pipefail
cd "$(dirname "$0")/.."

suite='' dir='' cache='' mirror='' keep=''
while [ $# -gt 0 ]; do
  case $1 in
    --dir) dir=${2:?--dir needs a folder}; shift ;;
    --cache) cache=$(realpath "${2:?--cache needs a folder}"); shift ;;
    --mirror) mirror=${2:?--mirror needs the address of an archive}; shift ;;
    --keep) keep=yes ;;
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "scripts/$(basename "$0")"; exit 0 ;;
    --) shift; break ;;
    -*) echo "fresh_root.sh: unknown argument '$1' (try --help)" >&2; exit 2 ;;
    *) suite=$1 ;;
  esac
  shift
done
[ $# -gt 0 ] || set -- scripts/quickstart.sh

die() { echo "fresh_root.sh: $1" >&2; exit 2; }
components=main script='' keys=debian-archive-keyring keyring=/usr/share/keyrings/debian-archive-keyring.gpg
case $suite in
  bookworm | trixie) ;;
  noble)
    components=main,universe keys=ubuntu-keyring keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    # debootstrap's steps are the same for all of Ubuntu's suites, but older versions do not know this suite's name.
    [ -e /usr/share/debootstrap/scripts/noble ] || script=gutsy
    ;;
  *) die "expected a suite: bookworm, trixie or noble (try --help)" ;;
esac
[ "$(id -u)" = 0 ] || die "needs root, for chroot"
command -v debootstrap > /dev/null || die "needs debootstrap: apt-get install debootstrap"
dir=${dir:-/var/tmp/trainer-$suite}

say() { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }

if [ ! -e "$dir/etc/os-release" ]; then
  say "Making $dir"
  signatures=(--keyring="$keyring")
  if [ ! -e "$keyring" ]; then
    echo "fresh_root.sh: no $keyring here, so package signatures cannot be verified: install $keys," >&2
    echo "or give --mirror an https address that you trust." >&2
    signatures=(--no-check-gpg)
  fi
  mkdir -p "$dir"
  # An empty mirror or script is debootstrap's own choice. It also writes the root's list of archives.
  debootstrap --variant=minbase --components="$components" "${signatures[@]}" "$suite" "$dir" "$mirror" "$script" \
    > "$dir.log" 2>&1 || { tail -n 5 "$dir.log" >&2; exit 1; }
fi
rm -rf "$dir/src/trainer"
mkdir -p "$dir/src/trainer"
git ls-files -z | xargs -0 tar c | tar x -C "$dir/src/trainer"
cp /etc/resolv.conf "$dir/etc/resolv.conf"

# In the namespace: mounts that programs need, then the command.
# shellcheck disable=SC2317
inside() {
  mount --make-rprivate /
  mount -t proc proc "$dir/proc"
  mount --rbind /sys "$dir/sys"
  mount --rbind /dev "$dir/dev"
  mount -t tmpfs shm "$dir/dev/shm"
  environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
  if [ -n "$cache" ]; then
    mkdir -p "$dir/cache"
    mount --bind "$cache" "$dir/cache"
    environment+=(CCACHE_DIR=/cache CCACHE_BASEDIR=/src CCACHE_NOHASHDIR=1)
  fi
  # shellcheck disable=SC2016
  chroot "$dir" env -i "${environment[@]}" sh -c 'cd /src/trainer && exec "$@"' sh "$@"
}
export -f inside
export dir cache
say "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$dir/etc/os-release"): $*"
begin=$SECONDS status=0
unshare --mount bash -euo pipefail -c 'inside "$@"' bash "$@" || status=$?
say "$suite: status $status after $(((SECONDS - begin) / 60)) min $(((SECONDS - begin) % 60)) s"
[ -n "$keep" ] || rm -rf --one-file-system "$dir"
exit $status
