#!/usr/bin/env bash
# What one of the nodes that train does in a run of prime-rl on several nodes; pod-agent starts it on each,
# with AGENT_LAUNCHER=node: train.sh RL.toml RUN_FOLDER ROUTER_URL ADMIN_URL...
#
# The first node has prime-rl make the files of its processes, which also removes broadcasts and rollouts that
# are newer than the checkpoint to resume from. It runs the orchestrator and the env servers beside its trainer;
# the others run their trainer alone. Whichever process fails first ends them all.
set -o pipefail

config=$1
run=$2
router=$3
shift 3
configs=$run/configs
ready=$run/pod-agent-attempts/${AGENT_ATTEMPT_ID:?is set by AGENT_LAUNCHER=node}

if [ "$NODE_RANK" = 0 ]; then
  rl @ "$config" --dry-run --resume || exit
  if ! python3 -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["weight_broadcast"]["type"] != "filesystem")' \
    "$configs/orchestrator.json"; then
    echo "$config: set type = \"filesystem\" in [weight_broadcast]: by NCCL no engine could be restarted" >&2
    exit 78
  fi
  mkdir -p "$ready" || exit
fi
waited=0
until [ -d "$ready" ]; do
  if [ "$waited" -ge 900 ]; then
    echo "no files of this attempt in $run after 15 minutes: is it on a disk that all nodes share?" >&2
    exit 1
  fi
  sleep 1
  waited=$((waited + 1))
done

# Its metrics, step by step, go to the agent; the file is on the first node alone.
metrics=()
if [ "$NODE_RANK" = 0 ] && [ -n "${AGENT_PROGRESS_FILE:-}" ]; then
  metrics=(--monitors.file.path "$AGENT_PROGRESS_FILE")
fi
torchrun --role=trainer --nnodes="$NNODES" --node-rank="$NODE_RANK" --nproc-per-node="$NPROC_PER_NODE" \
  --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$AGENT_ATTEMPT_ID" --local-ranks-filter=0 \
  -m prime_rl.trainer.rl.train @ "$configs/trainer.json" --rollout_transport.host "$MASTER_ADDR" \
  "${metrics[@]}" &
must_succeed=("$!")

if [ "$NODE_RANK" = 0 ]; then
  for file in "$configs"/envs/*/*.json; do
    if [ -e "$file" ]; then
      env-server @ "$file" &
    fi
  done
  orchestrator @ "$configs/orchestrator.json" --model.client.base-url "$router" \
    --model.client.admin-base-url "$@" --rollout_transport.host "$MASTER_ADDR" &
  must_succeed+=("$!")
fi

# A process that fails ends the others; so does the end of an env server, whatever its code is.
trap 'kill -TERM $(jobs -p) 2>/dev/null' EXIT
trap 'exit 143' TERM
left=${#must_succeed[@]}
while [ "$left" -gt 0 ]; do
  wait -n -p ended
  code=$?
  case " ${must_succeed[*]} " in
    *" $ended "*) [ "$code" = 0 ] || exit "$code" ;;
    *) exit "$([ "$code" = 0 ] && echo 1 || echo "$code")" ;;
  esac
  left=$((left - 1))
done
