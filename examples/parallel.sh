#!/bin/sh
# Parallel job: a VM that has its input in memory becomes N that each work on a
# part of it, and is one again. (SnowFlock, section 2.1, figure 1b.)
#
#     forkyard run tiny --name p
#     examples/parallel.sh p 4
#
# Counts primes. Nothing is sent to the clones: they have what their parent had.
set -eu

vm=$1 n=$2
# The input, and whatever else is dear to make, once.
forkyard exec "$vm" -- sh -c 'seq 2 4000 >/tmp/numbers'
# In each clone; $FORKYARD_ID is its number, from 1.
part='
    awk -v id="$FORKYARD_ID" -v n='"$n"' "
        NR % n == id - 1 {
            for (d = 2; d * d <= \$1; d++) if (\$1 % d == 0) next
            primes++
        }
        END { print primes + 0 }" /tmp/numbers'
forkyard exec "$vm" -- vmfork run -n "$n" -- sh -c "$part" |
    awk '{ sum += $NF; print } END { print sum " primes below 4000" }'
