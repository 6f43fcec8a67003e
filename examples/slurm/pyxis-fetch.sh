#!/usr/bin/env bash
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"   # sh has no arrays and no pipefail
# Fetch what the nodes need: on a login node with internet, in this folder, before sbatch. What
# is there is left as it is. Nothing is written to the home, which is small on many clusters.
set -euo pipefail
cd "$(dirname "$0")"
export HF_HOME="$PWD/huggingface" PYTHONPATH=
mkdir -p data tmp

# The image, as one file.
command -v enroot > /dev/null || {
  echo "fetch.sh: no enroot on PATH here: module load enroot, or run it elsewhere: srun bash fetch.sh" >&2
  exit 1
}
export ENROOT_CACHE_PATH="$PWD/tmp" ENROOT_DATA_PATH="$PWD/tmp/enroot" ENROOT_TEMP_PATH="$PWD/tmp"
if [ ! -e image.sqsh ]; then
  rm -f tmp/image.sqsh
  enroot import --output tmp/image.sqsh 'docker://nvcr.io#nvidia/pytorch:25.11-py3'
  enroot create --force --name pod-agent tmp/image.sqsh
  enroot start --root --rw pod-agent bash -ec 'pip uninstall --quiet --yes xgboost transformer_engine flash_attn pynvml && pip install --quiet '"'"'openrlhf[vllm]==0.11.2'"'"''
  rm tmp/image.sqsh
  enroot export --output tmp/image.sqsh pod-agent
  mv tmp/image.sqsh image.sqsh
fi
inside() {
  [ -d tmp/enroot/fetch ] || enroot create --name fetch image.sqsh
  enroot start --root --rw --mount "$PWD:$PWD" --env HF_HOME fetch bash -c "cd '$PWD' && \"\$@\"" bash "$@"
}

# The model, into huggingface/.
inside python3 -c 'import sys; from huggingface_hub import snapshot_download as get; print(get(sys.argv[1]))' Qwen/Qwen2.5-7B-Instruct

# The data.
inside python3 -c 'import sys; from huggingface_hub import snapshot_download as get; get(sys.argv[1], repo_type="dataset", local_dir=sys.argv[2])' zhuzilin/dapo-math-17k "$PWD/data/dapo-math-17k"

rm -rf tmp
echo "all is here: sbatch openrlhf-grpo.sbatch"
