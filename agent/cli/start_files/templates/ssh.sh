#!/usr/bin/env bash
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"   # sh has no arrays and no pipefail
HOSTS=({{hosts}})
IMAGE={{image}}
GPUS=({{flags}})   # docker's flags for your GPUs; () for none
FILES=({{files}})   # copied to ~/pod-agent on every machine

#~ {{about}}. The same container runs on every machine, by ssh and docker, until the job has ended everywhere:
#
#   export RAY_AUTH_TOKEN=$(openssl rand -hex 32)
#   bash loop.sh
#   bash loop.sh run -- python3 train.py --nodes {nodes}
#
# Prints the head's output and ends with its code; the workers' output is in files here. The first
# machine is the head: it owns AGENT_HEAD's address. Checkpoints, logs and models are in ~/pod-agent on
# each machine. Ctrl-C stops the job, in order, everywhere.
#
#~ The agent: {{why_agent}}
set -euo pipefail
: "${RAY_AUTH_TOKEN:?is not set: export one secret, for example from openssl rand -hex 32}"
cd "$(dirname "$0")"
{{packs}}
[ $# != 0 ] || set -- {{job_words}}
name=pod-agent-$$
export AGENT_HEAD=${HOSTS[0]#*@} EXPECTED_WORKERS=$((${#HOSTS[@]} - 1))
common=(
  {{common}}
)
job=(
  {{job}}
)
[ "$*" = run ] || job=()   # a command of your own is no recipe
flags=(docker run --rm --name "$name" --network host --shm-size 64G --ulimit memlock=-1
  ${GPUS[@]+"${GPUS[@]}"} --env AGENT_HEAD="$AGENT_HEAD" --env EXPECTED_WORKERS="$EXPECTED_WORKERS"
  --env RAY_AUTH_TOKEN --env WANDB_API_KEY --env HF_TOKEN ${common[@]+"${common[@]}"}
  ${job[@]+"${job[@]}"} --entrypoint bash)
words=("$IMAGE" -c {{script}} bash "$@")

put() { # HOST: the files, unless they are there
  local file
  for file in ${FILES[@]+"${FILES[@]}"}; do
    digest=$(sha256sum < "$file")
    ssh "$1" "mkdir -p pod-agent && cd pod-agent && there=$file.\$\$ &&
      { [ \"\$(sha256sum 2> /dev/null < $file)\" = '$digest' ] ||
        { cat > \$there && chmod 755 \$there && mv \$there $file; }; }" < "$file"
  done
}

start() { # HOST: the secrets go through ssh's stdin, so that no ps shows them
  local before after
  printf -v before '%q ' "${flags[@]}"
  printf -v after '%q ' "${words[@]}"
  ssh -o ServerAliveInterval=30 "$1" "read -r RAY_AUTH_TOKEN; read -r WANDB_API_KEY; read -r HF_TOKEN
    export RAY_AUTH_TOKEN
    if [ -n \"\$WANDB_API_KEY\" ]; then export WANDB_API_KEY; else unset WANDB_API_KEY; fi
    if [ -n \"\$HF_TOKEN\" ]; then export HF_TOKEN; else unset HF_TOKEN; fi
    mkdir -p pod-agent && $before --volume \"\$HOME/pod-agent:/root/pod-agent\" $after" \
    <<< "$RAY_AUTH_TOKEN"$'\n'"${WANDB_API_KEY:-}"$'\n'"${HF_TOKEN:-}"
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
