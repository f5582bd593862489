#!/usr/bin/env bash
# Builds and packs a release of this checkout: archives, a wheel, a .deb, the sources, an SBOM and checksums.
#
#   scripts/release.sh [--out DIR] [--dirty] [--help]
#
#   --out DIR   folder for the files (default: dist); files with the same names are replaced
#   --dirty     pack a checkout that has uncommitted changes, for testing
#
# Run it on Debian 12: the release runs on systems whose C library is at least as new as the build's, and this script
# refuses a program that needs more than glibc 2.36. The same commit produces the same bytes in any folder. A release is a
# tag v1.2.3 with a section of that name in CHANGELOG.md; any other commit gets the version that `trainer --version` has.
set -euo pipefail
cd "$(dirname "$0")/.."

out=dist dirty=
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=${2:?--out needs a folder}; shift ;;
    --dirty) dirty=yes ;;
    --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "scripts/$(basename "$0")"; exit 0 ;;
    *) echo "release.sh: unknown argument '$1' (try --help)" >&2; exit 2 ;;
  esac
  shift
done
die() { echo "release.sh: $1" >&2; exit 2; }
say() { printf '\n[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }

[ -n "$dirty" ] || git diff --quiet HEAD || die "the checkout has uncommitted changes: commit them, or use --dirty"
if tag=$(git describe --exact-match --tags --match 'v[0-9]*' 2> /dev/null); then
  grep -q "^## ${tag#v}\b" CHANGELOG.md || die "CHANGELOG.md has no section '## ${tag#v}' for the tag $tag"
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

say "Packages"
scripts/install_packages.sh --release
say "Build (build-release-portable)"
cmake --preset release-portable > /dev/null
cmake --build --preset release-portable
build="build-release-portable"
version=$($build/trainer --version | sed -n '1s/trainer \([^ ]*\).*/\1/p')
name=trainer-$version-$(uname -m)-linux-glibc2.36

say "Pack $name"
rm -rf "$build/pack"
cmake --install $build --strip --prefix "$build/pack/$name" > /dev/null
for file in "$build/pack/$name"/lib/trainer/*; do
  newer=$(objdump -T "$file" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | awk -F. '$2 > 36')
  [ -z "$newer" ] || die "$file needs ${newer//$'\n'/, }, which is newer than glibc 2.36: build on Debian 12"
done
mkdir -p "$out"
python3 scripts/pack_release.py "$build/pack/$name" "$version" "$out"
(cd $build && cpack --config CPackConfig.cmake -G DEB -B pack/deb > /dev/null)
cp $build/pack/deb/*.deb "$out"
git archive --format=tar --prefix="trainer-$version/" HEAD | gzip -n > "$out/trainer-$version-source.tar.gz"
(cd "$out" && sha256sum -- *"$version"*.tar.* *.whl *.deb *.json > SHA256SUMS)
ls -l "$out"
