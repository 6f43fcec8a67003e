#!/usr/bin/env bash
HOSTS=(10.0.0.5 10.0.0.6 10.0.0.7)  # change (1 of 3): the machines, the head first, as all reach them
IMAGE=you/pod-agent:latest          # change (2 of 3): an image with the agent in it, on every machine
GPUS=(--gpus all)                   # change (3 of 3): docker's flags for your GPUs; () for none

# The same container on every machine, by ssh and docker, until the job ends everywhere:
#
#   export RAY_AUTH_TOKEN=$(openssl rand -hex 32)
#   examples/ssh/loop.sh                                    # the rehearsal: a GRPO on CPUs
#   examples/ssh/loop.sh run -- python3 train.py --nodes {nodes}
#
# Prints the head's output and ends with its code; the workers' output goes to files here. The
# machine that owns AGENT_HEAD's address is the head. Ctrl-C stops the job, in order, everywhere.
set -euo pipefail
: "${RAY_AUTH_TOKEN:?is not set: export one secret, for example from openssl rand -hex 32}"
name=pod-agent-$$
export AGENT_HEAD=${HOSTS[0]#*@} EXPECTED_WORKERS=$((${#HOSTS[@]} - 1))
docker=(docker run --rm --name "$name" --network host --shm-size 64G --ulimit memlock=-1
  ${GPUS[@]+"${GPUS[@]}"} --env AGENT_HEAD="$AGENT_HEAD" --env EXPECTED_WORKERS="$EXPECTED_WORKERS"
  --env RAY_AUTH_TOKEN "$IMAGE" "$@")

start() { # HOST: the secret travels through ssh's stdin, so that no ps shows it
  local command
  printf -v command '%q ' "${docker[@]}"
  ssh -o ServerAliveInterval=30 "$1" \
    "read -r RAY_AUTH_TOKEN && export RAY_AUTH_TOKEN && $command" <<< "$RAY_AUTH_TOKEN"
}

stop() { # each agent has 25 s to stop its part (AGENT_STOP_GRACE)
  for host in "${HOSTS[@]}"; do ssh "$host" docker stop --time 30 "$name" > /dev/null & done
}

trap 'trap "" INT TERM; stop' INT TERM
for host in "${HOSTS[@]:1}"; do start "$host" > "$host.log" 2>&1 & done
start "${HOSTS[0]}" &
head=$!
until wait "$head" && code=0 || { code=$?; ! kill -0 "$head" 2> /dev/null; }; do :; done
wait || true  # for the workers, which leave with the head
exit "$code"
