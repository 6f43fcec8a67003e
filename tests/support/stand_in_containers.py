"""Stand-ins for the programs that make and run containers, as shell scripts by their names.

Each does what `fetch.sh` and the batch scripts of Slurm ask of it, in the machine's own files; all
other words end it with 1. `install` writes one into a folder of PATH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

APPTAINER = """
case $verb in
pull) [ "${2%%:*}" = docker ] && touch "$1" ;;
build) [ -s "$2" ] && touch "$1" ;;
exec)
  while case $1 in --nv) shift ;; --bind) shift 2 ;; --pwd) cd "$2" && shift 2 ;; *) false ;; esac
  do :; done
  [ -f "$1" ] && exec "${@:2}" ;;
*) exit 1 ;;
esac
"""
ENROOT = """
data=${ENROOT_DATA_PATH:?}
case $verb in
import) [ "$1" = --output ] && touch "$2" ;;
create) [ "$1" = --force ] && shift; [ "$1" = --name ] && [ -f "$3" ] && mkdir -p "$data/$2" ;;
start)
  while case $1 in --root | --rw) shift ;; --mount | --env) shift 2 ;; *) false ;; esac do :; done
  [ -d "$data/$1" ] && exec "${@:2}" ;;
export) [ "$1" = --output ] && [ -d "$data/$3" ] && touch "$2" ;;
*) exit 1 ;;
esac
"""
PODMAN = """
case $verb in
pull) ;;
build) [ "$1" = --tag ] && grep -q ^FROM ;;
save) [ "$1" = --output ] && touch "$2" ;;
image) [ "$1" = inspect ] && exit 1 ;;
load) [ "$1" = --input ] && [ -f "$2" ] ;;
run)
  environ=()
  while case $1 in
    --rm) shift ;;
    --volume | --name | --network | --shm-size | --device | --group-add | --cap-add) shift 2 ;;
    --security-opt | --ulimit) shift 2 ;;
    --env) [ -z "${!2+x}" ] || environ+=("$2=${!2}"); shift 2 ;;
    --workdir) cd "$2" && shift 2 ;;
    --entrypoint) entry=$2 && shift 2 ;;
    *) false ;;
  esac do :; done
  exec env -i PATH="$PATH" HOME="$HOME" "${environ[@]}" "$entry" "${@:2}" ;;
*) exit 1 ;;
esac
"""
SRUN_WITH_PYXIS = r"""
mounts='' place=/ options=()
set -- "$verb" "$@"
while [ "${1#--}" != "$1" ]; do
  case $1 in
  --container-image=*) [ -f "${1#*=}" ] ;;
  --container-mounts=*) mounts=${1#*=} ;;
  --container-workdir=*) place=${1#*=} ;;
  --no-container-mount-home | --no-container-entrypoint) ;;
  *) options+=("$1") ;;
  esac
  shift
done
inside='
export PATH=/usr/local/bin:$PATH
mount -t tmpfs tmpfs /usr/local/bin
for one in ${1//,/ }; do
  from=${one%%:*}; rest=${one#*:}; to=${rest%%:*}
  if [ "$from" = "$to" ]; then continue; fi
  if [ -d "$from" ]; then mkdir -p "$to"; else touch "$to"; fi
  mount --bind "$from" "$to"
done
cd "$2" && shift 2 && exec "$@"'
exec /usr/bin/srun "${options[@]}" unshare --mount bash -ec "$inside" bash "$mounts" "$place" "$@"
"""
SCRIPTS = {"apptainer": APPTAINER, "enroot": ENROOT, "podman": PODMAN, "srun": SRUN_WITH_PYXIS}


def install(folder: Path, name: str, calls: Path | None = None) -> None:
    """Write a stand-in; it appends each call to a file."""
    noted = f'echo "{name} $*" >> {calls}\n' if calls is not None else ""
    program = folder / name
    program.write_text(
        f"#!/usr/bin/env bash\nset -e\n{noted}verb=$1\nshift{SCRIPTS[name]}", encoding="utf-8"
    )
    program.chmod(0o755)
