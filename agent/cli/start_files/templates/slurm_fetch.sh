#!/usr/bin/env bash
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"   # sh has no arrays and no pipefail
#~ Fetch what the nodes need: on a login node with internet, in this folder, before sbatch. What is
#~ there is left as it is. Nothing is written to the home, which is small on many clusters.
set -euo pipefail
cd "$(dirname "$0")"
export HF_HOME="$PWD/huggingface" PYTHONPATH=
mkdir -p data tmp

{{if agent_url}}
# The agent, published, with its digest.
{{agent_fetch}}
chmod 755 {{agent_name}}

{{end}}
{{if none}}
{{if makes_python}}
# A Python with Ray, for the rehearsal. It is made where it stays: its programs name its place.
[ -e venv/made ] || {
  python3 -m venv --clear venv
  venv/bin/python -m pip install 'ray[default]'
  touch venv/made
}
{{end}}
inside() { PATH="{{python_folder}}:$PATH" "$@"; }   # in the framework's Python
{{if imports}}
inside python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("{{imports}}") is None)' || {
  echo "{{imports}} is not in {{python_folder}}: install it there" >&2
  exit 1
}
{{end}}
{{end}}
{{if apptainer}}
# The image, as one file; without one each node would convert it at each start.
command -v apptainer > /dev/null || {
  echo "fetch.sh: no apptainer on PATH here: module load apptainer, or run it elsewhere: srun bash fetch.sh" >&2
  exit 1
}
export APPTAINER_CACHEDIR="$PWD/tmp" APPTAINER_TMPDIR="$PWD/tmp"
if [ ! -e image.sif ]; then
{{if installs}}
  cat > tmp/image.def << 'EOF'
Bootstrap: docker
From: {{image}}
%post
  {{installs}}
EOF
  apptainer build tmp/image.sif tmp/image.def
{{end}}
{{if no_installs}}
  apptainer pull tmp/image.sif docker://{{image}}
{{end}}
  mv tmp/image.sif image.sif
fi
inside() { apptainer exec --bind "$PWD" --pwd "$PWD" image.sif "$@"; }
{{end}}
{{if pyxis}}
# The image, as one file.
command -v enroot > /dev/null || {
  echo "fetch.sh: no enroot on PATH here: module load enroot, or run it elsewhere: srun bash fetch.sh" >&2
  exit 1
}
export ENROOT_CACHE_PATH="$PWD/tmp" ENROOT_DATA_PATH="$PWD/tmp/enroot" ENROOT_TEMP_PATH="$PWD/tmp"
if [ ! -e image.sqsh ]; then
  rm -f tmp/image.sqsh
  enroot import --output tmp/image.sqsh 'docker://{{enroot_image}}'
{{if installs}}
  enroot create --force --name pod-agent tmp/image.sqsh
  enroot start --root --rw pod-agent bash -ec {{quoted_installs}}
  rm tmp/image.sqsh
  enroot export --output tmp/image.sqsh pod-agent
{{end}}
  mv tmp/image.sqsh image.sqsh
fi
inside() {
  [ -d tmp/enroot/fetch ] || enroot create --name fetch image.sqsh
  enroot start --root --rw --mount "$PWD:$PWD" --env HF_HOME fetch bash -c "cd '$PWD' && \"\$@\"" bash "$@"
}
{{end}}
{{if podman}}
# The image, as one file, which each node loads.
engine=$(command -v podman || command -v docker) || {
  echo "fetch.sh: neither podman nor docker on PATH here: run it elsewhere: srun bash fetch.sh" >&2
  exit 1
}
if [ ! -e image.tar ]; then
  "$engine" pull {{base_image}}
{{if installs}}
  "$engine" build --tag {{image}} - << 'EOF'
FROM {{base_image}}
RUN {{joined_installs}}
EOF
{{end}}
  "$engine" save --output tmp/image.tar {{image}}
  mv tmp/image.tar image.tar
fi
inside() {
  "$engine" run --rm --volume "$PWD:$PWD" --workdir "$PWD" --env HF_HOME --entrypoint "$1" {{image}} "${@:2}"
}
{{end}}

{{if wheel}}
# The agent, in an environment of its own beside the packages of the framework's Python. pip refuses
# rather than moves one of those.
cmp -s {{agent_name}} {{environment}}/made || {
  rm -rf {{environment}}
  inside bash -ec 'python3 -m venv --without-pip "$1"
    python3 -c "import site; print(*site.getsitepackages(), sep=chr(10))" > "$(echo "$1"/lib/python3*/site-packages)/image.pth"
    python3 -m pip list --format=freeze --exclude-editable > "$1/constraints.txt"
    python3 -m pip --python "$1/bin/python" install --quiet --constraint "$1/constraints.txt" "$2"' \
    bash {{environment}} './{{agent_name}}[maths]'
  cp {{agent_name}} {{environment}}/made
}

{{end}}
{{if checkout}}
# {{folder}}'s repository: the framework where the image lacks it, and the program that makes the data.
{{checkout}}

{{end}}
{{if model}}
# The model, into {{hub}}.
inside {{hub_python}} -c 'import sys; from huggingface_hub import snapshot_download as get; print(get(sys.argv[1]))' {{model}}

{{end}}
{{if data_set}}
# The data.
inside {{hub_python}} -c 'import sys; from huggingface_hub import snapshot_download as get; get(sys.argv[1], repo_type="dataset", local_dir=sys.argv[2])' {{data_set}} {{data_folder}}

{{end}}
{{if prepare}}
# The data.
inside env PYTHONPATH={{prepare_path}} bash -c {{prepare}}

{{end}}
{{if services}}
# The retriever that runs beside the job, its index and its questions.
cat > services.toml << EOF
{{services}}
EOF
{{service_steps}}

{{end}}
rm -rf tmp
echo "all is here: sbatch {{sbatch}}"
