"""How the nodes of a run share a model: who serves, who takes, and their secret."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from agent.base.value import Value

if TYPE_CHECKING:
    from agent.settings.model import Settings

KEY_VARIABLE = "POD_AGENT_MODEL_KEY"
"""Holds the secret of a node's model server and its callers: both programs are the agent's own."""


def key_of(settings: Settings) -> dict[str, str]:
    """Return the variable with that secret, which is made of the token; {} without a token.

    The hub's client, which is not the agent's, inherits it: so it opens nothing but the model.
    """
    token = settings.ray_auth_token
    if token is None:
        return {}
    key = hmac.digest(token.reveal().encode(), b"files of the model", "sha256").hex()
    return {KEY_VARIABLE: key}


class ModelSharing(Value):
    """How the nodes of a run share the model that they fetch."""

    port: int  # that of every node's model server
    head: str = ""  # the head that a worker asks; '' on the head

    def pull_words(self, model: tuple[str, ...]) -> tuple[str, ...]:
        """Return the arguments of the program that takes the model from other nodes."""
        return (*model, "--head", self.head, "--port", str(self.port))


def server_port(last_worker: int) -> int:
    """Return the port of model servers: of the range of Ray's workers, one that is used last.

    The last one is the store of AGENT_PREFLIGHT.
    """
    return last_worker - 1
