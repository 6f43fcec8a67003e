"""Checks of W&B's key: by its shape alone, since nobody is asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology

_SHORTEST = 40
_SIGNS = re.compile(r"[\w-]+", re.ASCII)


def key_shape(facts: Facts, settings: Settings, _topology: Topology) -> Finding:
    """W&B refuses a key by its shape once the job calls it, long after the boot."""
    secret = settings.wandb_api_key
    if secret is None:
        told = "W&B has this machine's login" if facts.wandb_login else "none: W&B stays offline"
        return Finding("W&B key", Level.OK, told)
    before, _, after = secret.reveal().partition("-")
    own = after or before
    if not _SIGNS.fullmatch(own):
        what = "it has signs other than letters, digits, dashes and underscores"
    elif len(own) < _SHORTEST:
        what = f"it has {len(own)} characters; W&B's have {_SHORTEST} or more"
    else:
        return Finding("W&B key", Level.OK, "has the shape of one")
    remedy = "Copy WANDB_API_KEY anew from W&B's settings, or unset it: W&B then stays offline"
    return Finding("W&B key", Level.WARN, what, remedy)
