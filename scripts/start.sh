#!/bin/sh
# bin/trainer of a release: starts the program in lib/trainer. On a system whose C library is too old it reports that;
# the loader would only list missing symbols.
here=$(dirname "$(readlink -f "$0")")
glibc=$(getconf GNU_LIBC_VERSION 2> /dev/null) && glibc=${glibc#glibc } || glibc=none
case $glibc in
  2.[0-9] | 2.[0-9].* | 2.[12][0-9] | 2.[12][0-9].* | 2.3[0-5] | 2.3[0-5].* | none)
    echo "trainer: this release needs glibc 2.36 or newer (Debian 12, Ubuntu 24.04, Fedora 37, RHEL 10 and newer); this" \
      "system has: $glibc. Build the trainer from source here (docs/install.md)." >&2
    exit 2
    ;;
esac
exec "$here/../lib/trainer/trainer" "$@"
