#!/usr/bin/env bash
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"   # sh has no arrays and no pipefail
HOSTS=(10.0.0.5 10.0.0.6 10.0.0.7)
IMAGE=python:3.12-slim
GPUS=(--gpus all)   # docker's flags for your GPUs; () for none
FILES=(pod_agent-0.1.0-py3-none-any.whl)   # copied to ~/pod-agent on every machine

# The rehearsal: a small GRPO on CPUs that takes every path that a real job takes. The same
# container runs on every machine, by ssh and docker, until the job has ended everywhere:
#
#   export RAY_AUTH_TOKEN=$(openssl rand -hex 32)
#   bash loop.sh
#   bash loop.sh run -- python3 train.py --nodes {nodes}
#
# Prints the head's output and ends with its code; the workers' output is in files here. The first
# machine is the head: it owns AGENT_HEAD's address. Checkpoints, logs and models are in ~/pod-agent on
# each machine. Ctrl-C stops the job, in order, everywhere.
#
# The agent: a wheel of 1 MB, which each node installs by pip into an environment of its own,
# beside the image's packages: the image has pip, and the nodes reach an index. Where they reach
# none: `init` with --agent dist/pod-agent, the one file.
set -euo pipefail
: "${RAY_AUTH_TOKEN:?is not set: export one secret, for example from openssl rand -hex 32}"
cd "$(dirname "$0")"
[ $# != 0 ] || set -- run
name=pod-agent-$$
export AGENT_HEAD=${HOSTS[0]#*@} EXPECTED_WORKERS=$((${#HOSTS[@]} - 1))
common=(
  --env AGENT_LOG_DIR=/root/pod-agent/agent-logs
)
job=(
)
[ "$*" = run ] || job=()   # a command of your own is no recipe
flags=(docker run --rm --name "$name" --network host --shm-size 64G --ulimit memlock=-1
  ${GPUS[@]+"${GPUS[@]}"} --env AGENT_HEAD="$AGENT_HEAD" --env EXPECTED_WORKERS="$EXPECTED_WORKERS"
  --env RAY_AUTH_TOKEN --env WANDB_API_KEY --env HF_TOKEN ${common[@]+"${common[@]}"}
  ${job[@]+"${job[@]}"} --entrypoint bash)
words=("$IMAGE" -c 'pip install --quiet '"'"'ray[default]==2.52.0'"'"' && python3 -m venv --without-pip /opt/pod-agent && python3 -c '"'"'import site; print(*site.getsitepackages(), sep="\n")'"'"' > $(echo /opt/pod-agent/lib/python3*/site-packages)/image.pth && python3 -m pip list --format=freeze --exclude-editable > /opt/pod-agent/constraints.txt && python3 -m pip --python /opt/pod-agent/bin/python install --quiet --constraint /opt/pod-agent/constraints.txt '"'"'/root/pod-agent/pod_agent-0.1.0-py3-none-any.whl[maths]'"'"' && ln -sf /opt/pod-agent/bin/pod-agent /usr/local/bin/pod-agent && exec /opt/pod-agent/bin/pod-agent "$@"' bash "$@")

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
