# sh clear.sh PREFIX CGROUPS
# Waits until standard input ends. Then takes away what is left of every host whose folder
# begins with PREFIX: its processes, known by what they were told and by their cgroup, which
# is the one in CGROUPS that is called as its folder is; and both of these.
trap '' HUP INT QUIT TERM
cat >/dev/null
prefix=$1 cgroups=$2
for folder in "$prefix"*/; do
    [ -d "$folder" ] || continue
    echo "clearing away $folder, whose test program was killed" >&2
    group=$cgroups/$(basename "$folder")
    # What is killed cannot start anything more; what it has just started is seen the next
    # time. The folder's name is no word of this script's, nor of what looks for it.
    while
        told=$(printf %s "$folder" | grep -lsaF -f - /proc/[0-9]*/cmdline /proc/[0-9]*/environ | cut -d/ -f3)
        inside=$(find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null)
        [ -n "$told$inside" ]
    do
        kill -9 $told $inside 2>/dev/null
        sleep 0.05
    done
    # Who was in a group leaves it a moment after it was killed.
    for try in $(seq 600); do
        [ -d "$group" ] || break
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
    rm -rf "$folder"
done
