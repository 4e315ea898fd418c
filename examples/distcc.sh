#!/bin/sh
# Build whose compilers are in clones, by distcc. Runs in a VM that has distcc and the sources:
#
#     forkyard cp examples/distcc.sh p:/usr/bin/distcc.sh
#     forkyard exec p -- distcc.sh 4 make -C /src -j 4 CC='distcc gcc'
#
# Each clone has the compiler and all headers, for it is the VM that has them. It is asked over the family's network.
set -eu

clones=$1
shift
exec vmfork hosts -n "$clones" -- sh -euc '
    while read -r host slots; do
        $FORKYARD_RSH $host distccd --daemon --allow-private --enable-tcp-insecure --log-file /dev/null
        DISTCC_HOSTS="${DISTCC_HOSTS-} $host/${slots#slots=}"
    done <"$FORKYARD_HOSTFILE"
    export DISTCC_HOSTS DISTCC_FALLBACK=0
    exec "$@"' sh "$@"
