# A throttled and a memory-limited container that did what their limits forbid, frozen so that
# their numbers stand still while the agent and then the test read them. Run by init.

# within CGROUP COMMAND: runs a shell command in the cgroup.
within() {
    sh -c "echo 0 >$1/cgroup.procs && $2"
}

mke2fs -F /dev/nvme0n1 >/dev/null
mkdir /disk
mount -t ext4 -o noatime /dev/nvme0n1 /disk
dd if=/dev/zero of=/disk/swap bs=1M count=16 2>/dev/null
mkswap /disk/swap >/dev/null
swapon /disk/swap

# Huge pages come, go and are split in their own time.
echo never >/sys/kernel/mm/transparent_hugepage/enabled

echo "5000 100000" >"$throttled/cpu.max"
for loop in 1 2 3; do
    within "$throttled" 'while :; do :; done' &
done

echo 24M >"$limited/memory.max"
echo 4M >"$limited/memory.swap.max"
# Page cache beyond the limit, written and read: reclaimed again and again.
within "$limited" 'dd if=/dev/zero of=/disk/data bs=1M count=40 && cat /disk/data' >/dev/null 2>&1
# Anonymous memory beyond the limit and swap: ends in an OOM kill.
within "$limited" 'dd if=/dev/zero of=/dev/null bs=40M count=1' >/dev/null 2>&1 || true
# Anonymous memory that stays: the second dd fills half of its block and waits for more. Zeros
# would be dropped where pages are to be swapped out.
within "$limited" '{ dd if=/dev/urandom bs=1M count=10; >/tmp/held; sleep 3600; } |
    dd bs=20M iflag=fullblock' >/dev/null 2>&1 &
until [ -e /tmp/held ]; do sleep 1; done
# Some of it to swap, which is not read again. The slots that the OOM kill freed stay charged, up to
# 64 for each CPU. A write that reclaimed less than it names fails.
while [ "$(cat "$limited/memory.swap.current")" -lt 1500000 ]; do
    echo "4M swappiness=200" >"$limited/memory.reclaim" || true
done
# Page cache beyond the softer limit.
echo 16M >"$limited/memory.high"
within "$limited" 'cat /disk/data' >/dev/null

for container in "$throttled" "$limited"; do
    echo 1 >"$container/cgroup.freeze"
    until grep -q "frozen 1" "$container/cgroup.events"; do sleep 1; done
done
sync
# Pages still queued on some CPU would join their list, and so memory.stat, at any moment.
echo 1 >/proc/sys/vm/compact_memory
# The kernel adds up memory.stat and pressure every 2 s.
sleep 5

section check psi-agent check
section once psi-agent once --scope all
cd "$cgroup"
section files find kubepods.slice -type f \( -name 'cpu.*' -o -name 'memory.*' -o -name 'io.*' \) \
    ! -name memory.reclaim ! -name memory.numa_stat \
    -exec grep -H '' {} +

mkdir -p /etc
echo 'nobody:x:65534:65534::/:/bin/sh' >/etc/passwd
section unprivileged.capabilities su nobody -c 'grep CapEff /proc/self/status'
section unprivileged su nobody -c 'psi-agent once --scope all'
