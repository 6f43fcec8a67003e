#!/usr/bin/env bash
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"   # sh has no arrays and no pipefail
#~ Once, before the first run: {{made}}. It may run again: what exists stays{{again}}.
set -euo pipefail
cd "$(dirname "$0")"

kubectl apply -f workspace.yaml
{{if literals}}
kubectl create secret generic pod-agent {{literals}} ||
  kubectl get secret pod-agent   # it exists
{{end}}
kubectl wait pod/rl-files --for=condition=Ready --timeout=5m || {
  kubectl get events --field-selector involvedObject.name={{claim}} >&2 || true
  echo "rl-files is not ready: {{claim}} needs a storage class whose disks several nodes can mount" \
    "(ReadWriteMany; see kubectl get storageclass). {{remedy}}" >&2
  exit 1
}
{{if agent_file}}
kubectl cp {{agent_file}} rl-files:/workspace/{{agent_file}}
{{end}}
