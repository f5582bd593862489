#!/bin/sh
# Fails when an object compiled for one instruction set defines a symbol that the linker may merge with the same symbol of
# another set's object: a function built with AVX-512 could then run on a CPU without it.
# usage: check_isa_symbols.sh OBJECT...
set -eu
case ${1:-} in
  --help | -h) sed -n '2,4s/^# //p' "$0"; exit 0 ;;
esac
[ $# -gt 0 ] || { echo "usage: $0 OBJECT..." >&2; exit 2; }
shared=$(nm --demangle --defined-only --print-file-name "$@" | grep -E ' [WVu] .*(trainer|std)::' || true)
if [ -n "$shared" ]; then
  echo "kernel files (*.isa.cpp) must define no inline or template symbols outside unnamed namespaces:" >&2
  echo "$shared" >&2
  exit 1
fi
