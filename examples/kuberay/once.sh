#!/usr/bin/env bash
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"   # sh has no arrays and no pipefail
# Once, before the first run: the disk, the agent's file. It may run again: what exists stays,
# and the agent's file is copied anew.
set -euo pipefail
cd "$(dirname "$0")"

kubectl apply -f workspace.yaml
kubectl wait pod/rl-files --for=condition=Ready --timeout=5m || {
  kubectl get events --field-selector involvedObject.name=rl-workspace >&2 || true
  echo "rl-files is not ready: rl-workspace needs a storage class whose disks several nodes can mount" \
    "(ReadWriteMany; see kubectl get storageclass). Have one made, or let init take a claim that exists: --volume CLAIM" >&2
  exit 1
}
kubectl cp pod_agent-0.1.0-py3-none-any.whl rl-files:/workspace/pod_agent-0.1.0-py3-none-any.whl
