"""Which compile caches this node keeps: by AGENT_CACHE_DIR, its disks, and its kind."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.base.text import error_text
from agent.job.compile_caches import OFF, CompileCaches, default_folder, seal_of, signer_of
from agent.job.torchrun_command import split_python
from agent.node import read
from agent.node.node_kind import read_kind
from agent.node.python_facts import of_command
from agent.plan.make import private_folder
from agent.plan.plan_job import checkpoint_folder
from agent.record.background import run_within
from agent.settings.jobs import TORCHRUN, launcher, recipe_info
from agent.settings.model import secret_texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import Facts, Mount
    from agent.plan.plan import Plan
    from agent.platforms.resolve import Topology
    from agent.settings.load import Loaded
    from agent.settings.model import Settings


def read_caches(
    loaded: Loaded, topology: Topology, facts: Facts, environ: Mapping[str, str]
) -> tuple[CompileCaches | None, str]:
    """Return the caches of this node, if it keeps any; else why not, or '' if nobody asked."""
    settings = loaded.settings
    if settings.cache_dir == OFF or topology.is_idle or topology.given_ray is not None:
        return None, ""
    volume = settings.cache_dir
    no_volume = ""
    if volume is None:
        volume, no_volume = _beside_checkpoints(loaded, facts)
    if not volume:
        return None, no_volume

    # May the job run what is in a folder of this node?
    around = private_folder(facts)
    fault = _fault_of(facts, around)
    if fault:
        return None, fault

    python = facts.ray
    executable = _python_of_job(loaded, facts, environ)
    if executable != facts.ray.executable:
        python = read.ask_python(executable)
    seal = seal_of(secret_texts(settings).get("RAY_AUTH_TOKEN"))
    signer = signer_of(seal, facts.uid)
    volume = str(Path(volume).expanduser())
    why_not_kept = ""
    if settings.cache_dir is not None:
        why_not_kept = run_within(times.STALLED_DISK, lambda: read.why_no_folder(volume)) or ""
    caches = CompileCaches(
        volume=volume,
        around=around,
        kind=read_kind(facts, python),
        signer=signer,
        is_head=topology.is_head,
        why_not_kept=why_not_kept,
    )
    return caches, ""


def with_archive_size(plan: Plan) -> Plan:
    """Add the archive that would seed this node, or why it cannot be read; neither without one."""
    caches = plan.caches
    if caches is None:
        return plan

    def look() -> CompileCaches:
        for name in caches.archives:
            try:
                size = Path(caches.volume, name).lstat().st_size
            except FileNotFoundError:
                continue
            except OSError as error:
                return replace(caches, archive_fault=error_text(error))
            return replace(caches, archive_found=name, archive_bytes=size)
        return caches

    late = f"no answer within {times.STALLED_DISK:g} s"
    looked_at = run_within(times.STALLED_DISK, look)
    return replace(plan, caches=looked_at or replace(caches, archive_fault=late))


def _python_of_job(loaded: Loaded, facts: Facts, environ: Mapping[str, str]) -> str:
    """Return the Python of the job's command or its script, else that of Ray or of the launcher."""
    words = loaded.command or ("",)
    search = environ.get("PATH")
    named = split_python(words)[0]
    if named is not None:
        path = shutil.which(named, path=search)
    elif launcher(loaded.settings) == TORCHRUN and words[0].endswith(".py"):
        path = None  # torchrun starts it by its own Python
    else:
        path = of_command(words[0], search)
    if path is None:
        return facts.job_python
    # The Pythons of two environments are links to one file: their folders differ.
    is_same = Path(path).parent.resolve() == Path(facts.job_python).parent.resolve()
    if is_same:
        return facts.job_python
    return path


def _beside_checkpoints(loaded: Loaded, facts: Facts) -> tuple[str, str]:
    """Return the folder beside the checkpoints if these are on a volume, else '' and maybe why."""
    settings = loaded.settings
    folder = checkpoint_folder(settings, loaded.command)
    if not folder or not _has_checkpoints(settings, loaded.command):
        return "", ""

    def look() -> tuple[str, Mount | None]:
        # For a command the agent has not read the mount before.
        return os.path.realpath(folder), facts.checkpoints or read.mount_of(folder)

    place, mount = run_within(times.STALLED_DISK, look) or (folder, None)
    if mount is None or mount.is_containers_own:
        return "", ""

    # A program of the user may want an empty folder, or remove what is not its own there:
    # OpenRLHF's training programs count each folder as a checkpoint, and remove the oldest.
    if place == mount.folder and recipe_info(settings, loaded.command) is None:
        why = f"AGENT_CHECKPOINTS={folder} is a whole volume, and the command may use all of it"
        return "", f"{why}. Set AGENT_CACHE_DIR to keep them"
    return default_folder(place, mount.folder), ""


def _has_checkpoints(settings: Settings, command: tuple[str, ...] | None) -> bool:
    """Return whether the job writes checkpoints, as far as is known."""
    known = recipe_info(settings, command)
    return settings.checkpoints is not None or (known is not None and bool(known.framework))


def _fault_of(facts: Facts, around: str) -> str:
    """Return why nothing can be kept in a folder, or the job may not run what is there; or ''."""
    folder = read.read_folder(around)
    if folder is not None and (not folder.is_folder or folder.uid != facts.uid):
        return f"{around} is not this user's own"
    with suppress(OSError):
        if os.statvfs(facts.temp).f_flag & os.ST_NOEXEC:
            return f"{facts.temp} is mounted without the right to execute"
    if folder is not None and folder.mode & stat.S_IWOTH:
        return f"others may write to {around}"
    with suppress(OSError):
        nearest = read.existing_parent(Path(around))
        if not os.access(nearest, os.W_OK):
            return f"{nearest} may not be written"
    return ""
