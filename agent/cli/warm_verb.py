"""`pod-agent warm`: fetch models to this node, read them, and seed its compile caches."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.errors import (
    AgentError,
    PreflightError,
    Problem,
    SettingsError,
    UnavailableError,
)
from agent.base.text import listed, own_command
from agent.cli.options import value
from agent.job.compile_caches import SEAL, seal_of
from agent.node.read import find_ray
from agent.processes.cache_program import REFUSED
from agent.processes.page_cache import read_ahead
from agent.run.plan_input import plan_from_environment
from agent.settings import load
from agent.settings.rules import is_hub_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from agent.node.facts import RayPython

OPTIONS = (
    value("models", "MODEL", "folders, or ids on the hub; default: AGENT_MODEL", nargs="*"),
    value("--revision", "REV", "branch, tag or commit; of AGENT_MODEL: AGENT_MODEL_REVISION"),
)
_EXPECTED = (
    "a folder or an id, or AGENT_MODEL set; or AGENT_CACHE_DIR set, to seed compile caches alone"
)


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Seed the caches, then fetch and read the models; raise if one of them is not here then."""
    settings = load(environ, options.command).settings
    models = options.models or [model for model in [settings.model] if model is not None]

    # What refuses the run's caches is no reason against its models.
    try:
        caches = seed_caches(environ, options.command)
    except AgentError as error:
        if not models:
            raise
        caches = f"left out: {error.sentence()}"
    if caches:
        print(f"compile caches: {caches}", flush=True)
    elif not models:
        raise SettingsError((Problem("MODEL", "none", _EXPECTED),))

    ray = find_ray(environ.get("PATH"))
    failed = []
    for model in models:
        revision = options.revision
        if revision is None and model == settings.model:
            revision = settings.model_revision
        why = fetch(model, revision, ray, environ)
        if not why:
            sentence, is_read = read_ahead(model, revision, environ)
            print(f"{model}: {sentence}", flush=True)
            why = "" if is_read else sentence
        if why:
            failed.append(f"{model} ({why})")
    if failed:
        raise UnavailableError(
            f"not warmed: {listed(failed)}",
            remedy="Name a folder of this machine, or an id that HF_TOKEN may read on the hub",
            culprit="MODEL",
        )


def seed_caches(environ: Mapping[str, str], command: list[str] | None) -> str:
    """Seed the caches as a run of this job would; return what came of it, or '' without any.

    What would refuse the run is raised.
    """
    plan = plan_from_environment(environ, command, wants_job=False)
    if plan.caches is None:
        return f"left out: {plan.why_no_caches}" if plan.why_no_caches else ""
    done = subprocess.run(
        [*plan.caches.argv("seed"), "--limit", f"{times.CACHES_SEED:g}"],
        env={**environ, SEAL: seal_of(plan.secret())},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == REFUSED:
        raise PreflightError(done.stdout.strip(), culprit="AGENT_CACHE_DIR")
    return done.stdout.strip()


def fetch(model: str, revision: str | None, ray: RayPython, environ: Mapping[str, str]) -> str:
    """Fetch a model of the hub as a run does; return '' or why it is not here."""
    if Path(model).expanduser().exists():
        return ""
    if not is_hub_id(model):
        return "no such folder"
    if ray.hub is None:
        return f"{ray.executable} has no huggingface_hub, which fetches it"
    pinned = () if revision is None else ("--revision", revision)
    argv = own_command(ray.executable, "fetch-model", model, *pinned)
    code = subprocess.run(argv, env=dict(environ), check=False).returncode
    return "" if code == 0 else "it was not fetched: the reason is above"
