#!/usr/bin/env bash
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"   # sh has no arrays and no pipefail
# Fetch what the nodes need: on a login node with internet, in this folder, before sbatch. What
# is there is left as it is. Nothing is written to the home, which is small on many clusters.
set -euo pipefail
cd "$(dirname "$0")"
export HF_HOME="$PWD/huggingface" PYTHONPATH=
mkdir -p data tmp

inside() { PATH="/home/acme/venv/bin:$PATH" "$@"; }   # in the framework's Python
inside python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("verl") is None)' || {
  echo "verl is not in /home/acme/venv/bin: install it there" >&2
  exit 1
}

# verl's repository: the framework where the image lacks it, and the program that makes the data.
test -e "$PWD/verl" || { new=$(mktemp -d "$PWD/verl".XXXXXX) && git clone --quiet --depth 1 --branch v0.9.0 https://github.com/verl-project/verl "$new" && chmod 755 "$new" && { mv -T "$new" "$PWD/verl" || test -e "$PWD/verl"; }; }

# The model, into huggingface/.
inside python3 -c 'import sys; from huggingface_hub import snapshot_download as get; print(get(sys.argv[1]))' Qwen/Qwen2.5-7B-Instruct

# The data.
inside env PYTHONPATH="$PWD/verl" bash -c "test -e $PWD/data/gsm8k/train.parquet || python3 $PWD/verl/examples/data_preprocess/gsm8k.py --local_save_dir $PWD/data/gsm8k"

rm -rf tmp
echo "all is here: sbatch verl-grpo.sbatch"
