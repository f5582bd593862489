#!/usr/bin/env bash
# Fetches about 25 MB of public-domain English text from Debian packages, which are unpacked, not installed.
#
#   scripts/get_text.sh DIR [--help]
#
# Writes DIR/{kjv,austen,spurgeon,henry,jargon}.txt. Needs apt-get, dpkg, python3 and a package source (Debian or
# Ubuntu); about 12 MB are downloaded. If all files exist, it does nothing.
#   kjv       the King James Bible, one verse per line       bible-kjv-text
#   austen    Jane Austen's six novels                       r-cran-janeaustenr
#   spurgeon  C. H. Spurgeon, The Treasury of David (1885)   sword-comm-tdavid
#   henry     Matthew Henry, Concise Commentary (1710)       sword-comm-mhcc
#   jargon    the Jargon File                                jargon-text
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)

case ${1:---help} in
  --help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) echo "get_text.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
esac
mkdir -p "$1"
out=$(cd "$1" && pwd)

missing=0
for name in kjv austen spurgeon henry jargon; do [ -s "$out/$name.txt" ] || missing=1; done
if [ $missing = 0 ]; then echo "all texts are in $out"; exit 0; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
packages="bible-kjv bible-kjv-text r-cran-janeaustenr sword-comm-tdavid sword-comm-mhcc jargon-text"
# shellcheck disable=SC2086  # a list of words
if ! apt-get download -q $packages; then
  echo "get_text.sh: the download failed; run 'apt-get update' (as root) and try again" >&2
  exit 1
fi
for package in *.deb; do dpkg -x "$package" root; done
python3 "$scripts/extract_text.py" root "$out"
