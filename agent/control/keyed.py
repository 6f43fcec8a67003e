"""What a head's port does only for those who prove that they may: by the token, or by the key.

Without a token the key in the newest run's folder proves that the caller is on the head's node.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.base.words import escaped
from agent.control.http import Answer, ask
from agent.record import control_key

if TYPE_CHECKING:
    from pathlib import Path

    from agent.settings import Settings


def keys_here(settings: Settings, log_root: Path) -> list[str]:
    """Return all that may prove it: the token where there is one, else the keys that lie here."""
    token = settings.ray_auth_token
    return [token.reveal()] if token is not None else [*control_key.found_in(log_root)]


def ask_with_key(url: str, settings: Settings, log_root: Path, *, post: bool = False) -> Answer:
    """Ask with all that proves it here, until something is accepted."""
    answer = Answer(0, evidence="no key to the head's port lies here")
    for key in keys_here(settings, log_root):
        answer = ask(url, key, post=post)
        if answer.status != 401:
            break
    return answer


def why_not(answer: Answer, what_is_done: str) -> str:
    """Say why a head did not do it; `what_is_done` says it as `a run is stopped` does."""
    if not answer.status or answer.status in {401, 403}:
        what = answer.evidence or "it asks for proof"
        return (
            f"{what}; without RAY_AUTH_TOKEN {what_is_done} from its head's node alone, by the "
            "user whose agent it is and with the same AGENT_LOG_DIR"
        )
    try:
        return escaped(str(json.loads(answer.body)["error"]))
    except (ValueError, KeyError, TypeError):
        return f"it answered {answer.status}"
