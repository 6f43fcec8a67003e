#!/usr/bin/env bash
# What one of the nodes that train does for the recipe prime-rl, which starts it on each:
# prime_rl.sh RUN_FOLDER ROUTER_URL ENGINE_URL... [@ FILE] --FLAG VALUE...
#
# The first node has prime-rl's launcher read the flags and make the files of its processes, which also
# removes broadcasts and rollouts that are newer than the checkpoint to resume from. It runs the
# orchestrator and the env servers beside its trainer; the others run their trainer alone. Whichever
# process fails first ends them all.
set -o pipefail

run=$1
router=$2
shift 2
engines=()
while [ "$#" -gt 0 ] && [[ $1 != --* && $1 != @ ]]; do
  engines+=("$1")
  shift
done
configs=$run/configs
checkpoints=$run/checkpoints
ready=$run/pod-agent-attempts/${AGENT_ATTEMPT_ID:?is set by AGENT_LAUNCHER=node}

if [ "$NODE_RANK" = 0 ]; then
  # prime-rl resumes from the highest step, complete or not: its orchestrator saves its own part at any end
  # (0.8.0), and a save of the trainer that was killed lacks .metadata, which is written last.
  for step in "$checkpoints"/step_*; do
    if [ -e "$step" ] && ! { [ -e "$step/trainer/.metadata" ] && [ -e "$step/orchestrator/progress.pt" ]; }; then
      echo "$step is a part of a checkpoint: it is now ${step%/*}/part_of_${step##*/}" >&2
      rm -rf "${step%/*}/part_of_${step##*/}"
      mv "$step" "${step%/*}/part_of_${step##*/}" || exit
    fi
  done

  rm -rf "$configs/envs" # of a former run with other environments
  rl "$@" --dry-run --resume || exit
  if ! python3 -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["weight_broadcast"]["type"] != "filesystem")' \
    "$configs/orchestrator.json"; then
    echo "weight_broadcast: set type = \"filesystem\": by NCCL no engine could be restarted" >&2
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

# Orchestrator and trainer write one run of W&B, as below prime-rl's own launcher.
export WANDB_RUN_ID=${WANDB_RUN_ID:-$AGENT_ATTEMPT_ID} WANDB_SHARED_MODE=1
export PRL_RUN_ID=$WANDB_RUN_ID

# Its metrics, step by step, go to the agent; the file is on the first node alone.
metrics=()
if [ "$NODE_RANK" = 0 ] && [ -n "${AGENT_PROGRESS_FILE:-}" ]; then
  metrics=(--monitors.file.path "$AGENT_PROGRESS_FILE")
fi
WANDB_SHARED_LABEL=trainer torchrun --role=trainer \
  --nnodes="$NNODES" --node-rank="$NODE_RANK" --nproc-per-node="$NPROC_PER_NODE" \
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
  WANDB_SHARED_LABEL=orchestrator orchestrator @ "$configs/orchestrator.json" \
    --model.client.base-url "$router" --model.client.admin-base-url "${engines[@]}" \
    --rollout_transport.host "$MASTER_ADDR" &
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
