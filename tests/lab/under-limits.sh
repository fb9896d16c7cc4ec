# The agent, the bridge and reap in cgroups with the memory limits of their manifests: the first two beside
# clients that keep connections, don't read, and send too much, reap with 15,000 Nodes of 30 kB. Each client has an address of its own: a connection to an
# IPv6 address of this host comes from the same address. Run by init.

limit=67108864
ip link set lo up
for client in $(seq 12); do ip addr add "fd00::$client/128" dev lo; done
for number in $(seq 400); do mkdir "$cgroup/service-$number.service"; done

# start NAME COMMAND…: runs a command within a memory limit.
start() {
    own=$cgroup/$1
    shift
    mkdir "$own"
    echo "$limit" >"$own/memory.max"
    sh -c "echo 0 >$own/cgroup.procs && exec $*" 2>"/tmp/$(basename "$own").log" &
}
start agent psi-agent --listen-address='[::]:9942' --probe-address='[::]:9944' --scope=all
# Nothing listens there. Without any authority, no client can be made.
authority=LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJkVENDQVJ1Z0F3SUJBZ0lVREdIWkdnK1kyOEtueWNLSElZTnlpN3BTamdBd0NnWUlLb1pJemowRUF3SXcKRHpFTk1Bc0dBMVVFQXd3RWJtOXVaVEFnRncweU5qRXhNak15TVRFd01UWmFHQTh5TVRJMk1UQXpNREl4TVRBeApObG93RHpFTk1Bc0dBMVVFQXd3RWJtOXVaVEJaTUJNR0J5cUdTTTQ5QWdFR0NDcUdTTTQ5QXdFSEEwSUFCRTJOClpjVjc5bkR6cUdzODJhdFY2a0J0Kzk1SWk0c2VKSU1lNTlDTXJGUEswLzZZOGxKNFIrcXlEYXh2K2tCbHgyQzQKcWpPS094YnQ0MTZJRjlrR0JLQ2pVekJSTUIwR0ExVWREZ1FXQkJTaDhzRTZabE9lSjk2YVpPUHU0aTZTckp2RwpPVEFmQmdOVkhTTUVHREFXZ0JTaDhzRTZabE9lSjk2YVpPUHU0aTZTckp2R09UQVBCZ05WSFJNQkFmOEVCVEFECkFRSC9NQW9HQ0NxR1NNNDlCQU1DQTBnQU1FVUNJUUQ1T05wOG5GYTBpQ1Y5ZkFsUW1aNERueGVwTHppSUNjWkoKUmpYWk1EU2VJd0lnUERTS05iR3E4TTk3Qm8zY2pXak9HOFJoWmc3V0JUZFZzWXVCc2ZTeElJcz0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=
cat >/tmp/kubeconfig <<END
{"apiVersion": "v1", "kind": "Config", "current-context": "none",
 "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1", "certificate-authority-data": "$authority"}}],
 "users": [{"name": "none", "user": {}}],
 "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}]}
END
start bridge psi-agent bridge --listen-address='[::]:9943' --probe-address='[::]:9945' \
    --kubeconfig=/tmp/kubeconfig
for try in $(seq 60); do
    if wget -q -O /dev/null http://127.0.0.1:9944/readyz && wget -q -O /dev/null http://127.0.0.1:9945/livez; then
        break
    fi
    sleep 1
done
section logs cat /tmp/agent.log /tmp/bridge.log
section metrics sh -c 'wget -q -O - http://127.0.0.1:9942/metrics | wc -c'

# Clients that send nothing.
for number in $(seq 80); do
    sleep 100000 | nc "fd00::$((number % 12 + 1))" 9942 >/dev/null 2>&1 &
done
# Clients that ask and don't read: what nc receives fills the pipe behind it.
for number in $(seq 60); do
    { printf 'GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n'; sleep 100000; } |
        nc "fd00::$((number % 12 + 1))" 9942 2>/dev/null | sleep 100000 &
done
# A million names for the bridge, from more clients than it answers at a time.
{
    printf 'POST /prioritize HTTP/1.1\r\nHost: a\r\nContent-Length: 4000020\r\n\r\n{"NodeNames":["'
    yes 'a","' | tr -d '\n' | head -c 4000000
    printf 'a"]}  '
} >/tmp/names
for client in $(seq 5); do
    sh -c "cat /tmp/names; sleep 100000" | nc "fd00::$client" 9943 >/tmp/answer.$client 2>/dev/null &
done

# probed PORT: how many of ten probes, one each 2 s, are answered within the 5 s of the manifests.
probed() {
    answered=0
    for probe in $(seq 10); do
        if timeout 5 wget -q -O /dev/null "http://127.0.0.1:$1/livez"; then answered=$((answered + 1)); fi
        sleep 2
    done
    echo "$answered"
}
section agent.probed probed 9944
section bridge.probed probed 9945
section bridge.answers sh -c 'cat /tmp/answer.* | grep -c "at most 20000"'
# `section` has a variable `name`.
for program in agent bridge; do
    section "$program.events" cat "$cgroup/$program/memory.events"
    section "$program.peak" cat "$cgroup/$program/memory.peak"
    section "$program.sock" grep -w sock "$cgroup/$program/memory.stat"
    section "$program.processes" cat "$cgroup/$program/cgroup.procs"
done

# An API server that lists Nodes by pages, each with a fresh value and 30 kB of others' contents.
cat >/tmp/nodes.sh <<'END'
now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
while read -r method url protocol; do
    while read -r line && [ ${#line} -gt 1 ]; do :; done
    first=${url##*continue=}
    first=${first%%&*}
    case "$first" in *[!0-9]*) first=0 ;; esac
    awk -v first="$first" -v now="$now" 'BEGIN {
        rest = "x"
        while (length(rest) < 30000) rest = rest rest
        rest = "\"others.example/config\":\"" rest "\""
        next_page = first + 50 < 15000 ? first + 50 : ""
        printf "{\"kind\":\"NodeList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"1\",\"continue\":\"%s\"},\"items\":[", next_page
        for (node = first; node < first + 50; node++) {
            printf "%s{\"metadata\":{\"name\":\"node-%d\",\"annotations\":{\"psi-agent.io/score\":\"15\",", (node > first ? "," : ""), node
            printf "\"psi-agent.io/cpu\":\"15\",\"psi-agent.io/observed-at\":\"%s\",\"psi-agent.io/basis\":\"psi/10\",%s}}}", now, rest
        }
        print "]}"
    }' >/tmp/page
    printf 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n' "$(wc -c </tmp/page)"
    cat /tmp/page
done
END
# The other two and their clients are no part of this, and cost time.
for program in agent bridge; do echo 1 >"$cgroup/$program/cgroup.kill"; done
nc -ll -p 8001 -e sh /tmp/nodes.sh 2>/tmp/nodes.log &
sed 's#127.0.0.1:1"#127.0.0.1:8001"#' /tmp/kubeconfig >/tmp/kubeconfig-of-nodes
mkdir "$cgroup/reap"
echo "$limit" >"$cgroup/reap/memory.max"
section reap sh -c "echo 0 >$cgroup/reap/cgroup.procs && exec psi-agent reap --older-than=15m --kubeconfig=/tmp/kubeconfig-of-nodes"
section reap.events cat "$cgroup/reap/memory.events"
section reap.peak cat "$cgroup/reap/memory.peak"
