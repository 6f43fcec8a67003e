"""A Ray that is there already: somebody else starts and stops it, the agent only submits to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.addresses import in_url
from agent.base.errors import Problem
from agent.base.value import dataclass
from agent.settings.jobs import launcher
from agent.settings.model import TOKEN_MODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.settings import Settings


@dataclass(frozen=True)
class GivenRay:
    """Where somebody else's Ray answers, and what of it is on this machine."""

    owner: str
    """Who starts and stops it."""
    gcs_host: str
    gcs_port: int
    dashboard: str
    """The URL of its dashboard, which takes jobs."""
    session: str | None = None
    """The folder in which Ray keeps its sessions; None where the head is another machine."""
    submission_id: str | None = None
    """The id by which its owner will look for the job; None where the agent may choose."""
    asks_token: bool = False
    """True where it takes nothing without a token that the agent must be given."""

    @property
    def gcs(self) -> str:
        """Return where its GCS answers."""
        return f"{in_url(self.gcs_host)}:{self.gcs_port}"


def settings_without_effect(settings: Settings, given: GivenRay) -> Iterator[Problem]:
    """Name every setting that could only reach a Ray of our own: silence would be a lie."""
    owner = given.owner
    flags = {
        "AGENT_NUM_CPUS": settings.num_cpus is not None,
        "AGENT_NUM_GPUS": settings.num_gpus is not None,
        "AGENT_RESOURCES": bool(settings.resources),
        "AGENT_RAY_ARGS": bool(settings.ray_args),
        "AGENT_DASHBOARD_HOST": settings.dashboard_host is not None,
    }
    names = " + ".join(name for name, is_set in flags.items() if is_set)
    if names:
        expected = f"nothing here, but rayStartParams of the pods' group in {owner}"
        yield Problem(names, f"a value, though Ray is started by {owner}", expected)
    if settings.debug_ray != "0":
        flag = "RAY_DEBUG=legacy" if settings.debug_ray == "1" else "RAY_DEBUG_POST_MORTEM=1"
        expected = f"nothing here, but {flag} in the environment of the pods' groups"
        yield Problem("DEBUG_RAY", f"a value, though Ray is started by {owner}", expected)
    if launcher(settings, None) != "ray":
        asked = f"{launcher(settings, None)!r}, though the nodes are {owner}'s, with Ray on them"
        yield Problem("AGENT_LAUNCHER", asked, "ray; or pods of their own, without Ray")
    if settings.prepare_each is not None:
        expected = "AGENT_PREPARE, which runs once; or an init container in each pods' group"
        yield Problem("AGENT_PREPARE_EACH", f"a command, but no agent on {owner}'s nodes", expected)
    if settings.preflight is not None:
        asked = f"{settings.preflight!r}, though no agent is on {owner}'s nodes"
        yield Problem("AGENT_PREFLIGHT", asked, "unset")
    if given.asks_token and settings.ray_auth_token is None:
        expected = f"the token of {owner}'s Ray (key auth_token of the secret named as the cluster)"
        yield Problem("RAY_AUTH_TOKEN", f"nothing beside {TOKEN_MODE}=token", expected)
