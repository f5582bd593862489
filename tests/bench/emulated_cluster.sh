#!/bin/bash
# Runs a command under mpirun over emulated hosts: network namespaces on this machine, joined by a bridge, each behind a link
# of limited rate. Ranks of a host share memory; between hosts they use only TCP over the link. All hosts share the
# cores, so times mean nothing; ratios are meaningful where the network is the bottleneck. Only bandwidth is emulated, no latency.
#
#   tests/bench/emulated_cluster.sh --hosts 2 --ranks 1 --rate 200mbit -- build/trainer --config configs/quickstart.toml
#
# --hosts H    emulated hosts (default 2, at most 250)
# --ranks R    ranks on each host (default 1)
# --rate RATE  what a host can send, a number and kbit, mbit or gbit (default 200mbit); none: no limit
# --slow RATE  what the last host can send, if that differs
# --mpi ARG    one more argument for mpirun; may be repeated
#
# Needs root; status 77 with the reason where namespaces or traffic control are not permitted, else that of mpirun. All
# interfaces are in namespaces named after this process, and are removed with them whenever the script ends.
set -u

usage() {
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
}

mistake() {
  echo "emulated_cluster.sh: $1 (--help says more)" >&2
  exit 2
}

skip() {
  echo "emulated_cluster.sh: skipped: $1" >&2
  exit 77
}

hosts=2 ranks=1 rate=200mbit slow= mpi=()
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --) shift; break ;;
    --hosts | --ranks | --rate | --slow | --mpi) [ $# -ge 2 ] || mistake "$1 needs a value" ;;&
    --hosts) hosts=$2; shift 2 ;;
    --ranks) ranks=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    --slow) slow=$2; shift 2 ;;
    --mpi) mpi+=("$2"); shift 2 ;;
    *) mistake "unknown argument $1" ;;
  esac
done
[[ $hosts =~ ^[1-9][0-9]*$ && $hosts -le 250 ]] || mistake "--hosts $hosts: a number from 1 to 250 is needed"
[[ $ranks =~ ^[1-9][0-9]*$ ]] || mistake "--ranks $ranks: a number from 1 is needed"
[[ $rate =~ ^([0-9]+[kmg]bit|none)$ ]] || mistake "--rate $rate: a number and kbit, mbit or gbit, or none, is needed"
[[ ${slow:-$rate} =~ ^([0-9]+[kmg]bit|none)$ ]] || mistake "--slow $slow: a number and kbit, mbit or gbit is needed"
[ $# -gt 0 ] || mistake "no command after --"
for tool in ip tc unshare mpirun; do
  command -v $tool > /dev/null || skip "$tool is not installed"
done

name=emulated-$$
files=$(mktemp -d)

# The bridge and the links are inside the namespaces and vanish with them.
tear_down() {
  for space in $(ip netns list | sed -n "s/^\($name-[a-z0-9]*\).*/\1/p"); do
    ip netns pids "$space" | xargs -r kill -KILL 2> /dev/null
    ip netns delete "$space"
  done
  rm -rf "$files"
}
trap tear_down EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

must() {
  "$@" 2> "$files/why" || skip "$*: $(head -n 1 "$files/why")"
}

must ip netns add "$name-switch"
must ip -n "$name-switch" link add name switch type bridge
must ip -n "$name-switch" link set switch up
for host in $(seq "$hosts"); do
  must ip netns add "$name-h$host"
  must ip -n "$name-switch" link add "h$host" type veth peer name eth0 netns "$name-h$host"
  must ip -n "$name-switch" link set "h$host" master switch up
  must ip -n "$name-h$host" address add "10.77.0.$host/24" dev eth0
  # Smaller than the burst: tbf splits larger ones into single packets, which costs more CPU time than the transfer itself.
  must ip -n "$name-h$host" link set eth0 up gso_max_size 32000
  must ip -n "$name-h$host" link set lo up
  # Each host's sending rate is limited, which also limits the rate at which it receives from any one host.
  sends=$rate
  [ "$host" = "$hosts" ] && sends=${slow:-$rate}
  [ "$sends" = none ] || must tc -n "$name-h$host" qdisc add dev eth0 root tbf rate "$sends" burst 64kb latency 100ms
  echo "10.77.0.$host slots=$ranks" >> "$files/hosts"
done

# Replaces ssh: agent ADDRESS COMMAND…. MPI assumes that ranks with the same host name share memory.
cat > "$files/agent" << AGENT
#!/bin/sh
host=h\${1##*.}
shift
exec ip netns exec $name-\$host unshare --uts sh -c "hostname \$host-$$; exec \$*"
AGENT
chmod +x "$files/agent"

# In the background, so that a signal to this script is handled immediately, not after the run.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ip netns exec "$name-h1" unshare --uts sh -c "hostname h1-$$; exec \"\$@\"" sh \
  mpirun --hostfile "$files/hosts" --map-by slot --bind-to none --mca plm_rsh_agent "$files/agent" \
  --mca orte_tmpdir_base "$files" --mca pml ob1 --mca btl tcp,self,vader --mca btl_tcp_if_include eth0 \
  --mca oob_tcp_if_include eth0 --mca mpi_yield_when_idle 1 \
  ${mpi[@]+"${mpi[@]}"} -np $((hosts * ranks)) "$@" &
wait $!
