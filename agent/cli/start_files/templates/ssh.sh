#!/usr/bin/env bash
HOSTS=({{hosts}})  # change (1 of 3): the machines, the head first, as all reach them
IMAGE={{image}}   # change (2 of 3): the framework's image
GPUS=({{flags}})   # change (3 of 3): docker's flags for your GPUs; () for none
AGENT={{agent}}   # the one file, which is copied to ~/pod-agent on every machine

# The same container on every machine, by ssh and docker, until the job ends everywhere:
#
#   export RAY_AUTH_TOKEN=$(openssl rand -hex 32)
#   bash loop.sh                                    # {{about}}
#   bash loop.sh run -- python3 train.py --nodes {nodes}
#
# Prints the head's output and ends with its code; the workers' output is in files here. The machine
# that owns AGENT_HEAD's address is the head. Ctrl-C stops the job, in order, everywhere.
set -euo pipefail
: "${RAY_AUTH_TOKEN:?is not set: export one secret, for example from openssl rand -hex 32}"
name=pod-agent-$$
export AGENT_HEAD=${HOSTS[0]#*@} EXPECTED_WORKERS=$((${#HOSTS[@]} - 1))
{{if given}}
job=(
  {{given}}
)
{{end}}
flags=(docker run --rm --name "$name" --network host --shm-size 64G --ulimit memlock=-1
  ${GPUS[@]+"${GPUS[@]}"} --env AGENT_HEAD="$AGENT_HEAD"
  --env EXPECTED_WORKERS="$EXPECTED_WORKERS" --env RAY_AUTH_TOKEN {{job}}--entrypoint {{entrypoint}})
words=("$IMAGE" {{words}}"$@")

put() { # HOST: the one file, unless it is there
  local digest there='pod-agent.$$'
  digest=$(sha256sum < "$AGENT")
  ssh "$1" "[ \"\$(sha256sum 2> /dev/null < pod-agent)\" = '$digest' ] ||
    { cat > $there && chmod 755 $there && mv $there pod-agent; }" < "$AGENT"
}

start() { # HOST: the secret goes through ssh's stdin, so that no ps shows it
  local before after
  printf -v before '%q ' "${flags[@]}"
  printf -v after '%q ' "${words[@]}"
  ssh -o ServerAliveInterval=30 "$1" "read -r RAY_AUTH_TOKEN && export RAY_AUTH_TOKEN && $before \
    --volume \"\$HOME/pod-agent:/usr/local/bin/pod-agent:ro\" $after" <<< "$RAY_AUTH_TOKEN"
}

stop() { # each agent has 25 s to stop its part (AGENT_STOP_GRACE)
  for host in "${HOSTS[@]}"; do ssh "$host" docker stop --time 30 "$name" > /dev/null & done
}

for host in "${HOSTS[@]}"; do put "$host"; done
trap 'trap "" INT TERM; stop' INT TERM
for host in "${HOSTS[@]:1}"; do start "$host" > "$host.log" 2>&1 & done
start "${HOSTS[0]}" &
head=$!
until wait "$head" && code=0 || { code=$?; ! kill -0 "$head" 2> /dev/null; }; do :; done
wait || true  # for the workers, which leave with the head
exit "$code"
