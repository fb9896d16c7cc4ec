# SELinux enforcing with Debian's policy: `check` by an agent of the type container_t, and by one of the type
# spc_t. Each is in a PID namespace of its own and sees the host's /proc, as in a pod. Run by init.

mount -t selinuxfs selinuxfs /sys/fs/selinux
# The kernel takes the policy in one write.
dd if=/policy of=/sys/fs/selinux/load bs=16M count=1 2>/dev/null
# Fedora's policy lets containers read cgroups. Debian's does with this.
echo 1 >/sys/fs/selinux/booleans/container_manage_cgroup
echo 1 >/sys/fs/selinux/commit_pending_bools

mkdir /image /out /etc
mount -t tmpfs -o context=system_u:object_r:container_ro_file_t:s0 tmpfs /image
mount -t tmpfs -o mode=1777,context=system_u:object_r:container_file_t:s0 tmpfs /out
cp /bin/busybox /bin/psi-agent /image
echo 'agent:x:9942:9942::/:/bin/sh' >/etc/passwd

# The vCPU of a VM, with categories of its own.
cat >/image/vm <<'end'
#!/image/busybox sh
echo "CPU 0/KVM" >/proc/self/comm
kill -STOP $$
end
# Opens its files itself: it may not use those of the shell that starts it.
cat >/image/agent <<'end'
#!/image/busybox sh
exec >"/out/$1" 2>&1 </out/empty
until [ -e /image/enforcing ]; do /image/busybox sleep 1; done
/image/busybox grep CapEff /proc/self/status
/image/busybox id -u
/image/psi-agent check --cgroup-root=/sys/fs/cgroup
/image/psi-agent check --cgroup-root=/sys/fs/cgroup --cpu-source=run-delay
echo >"/out/$1.done"
end
chmod 755 /image/vm /image/agent
touch /out/empty

# The domain of the next program. echo would write the end of the line separately, which resets it.
domain='printf %s "system_u:system_r:$0" >/proc/self/attr/exec'
sh -c "echo 0 >$limited/cgroup.procs; $domain; exec /image/vm" container_t:s0:c10,c20 &
for type in container_t spc_t; do
    unshare -p -f su agent -c "$domain; exec /image/agent $type" "$type:s0:c1,c2" &
done
sleep 2
echo 1 >/sys/fs/selinux/enforce
touch /image/enforcing
until [ -e /out/container_t.done ] && [ -e /out/spc_t.done ]; do sleep 1; done
# grep ends the line.
section enforce grep . /sys/fs/selinux/enforce
section container_t cat /out/container_t
section spc_t cat /out/spc_t
