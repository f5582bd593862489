#!/bin/sh
# Fails on sources that clang-format would change; --fix changes them. Versions format differently, so clang-format 14
# (Debian 12's) is required: without it nothing is checked and the status is 77, which ctest shows as skipped.
cd "$(dirname "$0")/.." || exit 1
for format in clang-format-14 clang-format none; do
  "$format" --version 2> /dev/null | grep -q 'version 14\.' && break
done
if [ "$format" = none ]; then
  echo "clang-format 14 is not installed: nothing is checked"
  exit 77
fi
case ${1:-} in
  --help | -h) sed -n '2,3s/^# //p' "scripts/${0##*/}"; exit 0 ;;
esac
if [ "${1:-}" = --fix ]; then
  how="-i"
else
  how="--dry-run -Werror"
fi
find src tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | sort | xargs "$format" $how
