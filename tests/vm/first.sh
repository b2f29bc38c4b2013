#!/bin/sh
# Runs first in the virtual machine: gives it this machine's files anew, cached, and writable in memory only, and runs
# the given program there. As virtme-ng mounts them nothing is cached, and every start of Python takes half a minute.
#
#   first.sh RESULTS PROGRAM [ARGUMENT...]      RESULTS: the one folder whose files outlive the virtual machine
set -eu
echo "the stock kernel is up"
results=$1
shift
here=$(pwd)
mount -t tmpfs -o mode=0755,size=75% memory /mnt
mkdir /mnt/files /mnt/upper /mnt/work /mnt/root
mount -t 9p -o ro,cache=loose,trans=virtio,version=9p2000.L,msize=524288 bgplb-files /mnt/files
mount -t overlay -o lowerdir=/mnt/files,upperdir=/mnt/upper,workdir=/mnt/work files /mnt/root
for folder in dev proc sys; do mount --rbind "/$folder" "/mnt/root/$folder"; done
mount -t tmpfs -o mode=0755 run /mnt/root/run
mount --bind "$results" "/mnt/root$results"
ip link set lo up
modprobe tun
# Not chroot: who enters the namespaces of a process in the lab would find itself outside of it.
cd /mnt/root
pivot_root . mnt
cd "$here"
exec "$@"
