"""Rows for known messages: the cause, its remedy, and the words by which a log line matches."""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from functools import cache

from agent.base.value import Value

ANY = "…"
"""Stands for any text in the words of a message; `^` at their start, for the start of a line."""

LONGEST = 1_000
"""Characters of a line that expressions search."""
_ERROR = r"\W{0,6}(?:[A-Za-z_][\w.]{0,120})?(?:[Ee]rror|Exception|Timeout\w*|Disconnected|ERROR)\b"
NET = (
    r"requests\.exceptions\.(?:\w*Connection\w*|\w*Timeout|ChunkedEncodingError|HTTPError"
    r"|JSONDecodeError|RetryError)|aiohttp\.\w|ClientConnectorError|ServerDisconnectedError"
    r"|httpx\.\w+|httpcore\.\w+|openai\.\w*(?:Connection|Timeout|InternalServer)"
    r"|urllib3\.exceptions\.|urllib\.error\.|Connection(?:Refused|Reset)Error|RemoteDisconnected"
    r"|TimeoutError|\b5\d\d Server Error|HTTP Error 5\d\d|HTTP status 5\d\d"
)
"""Errors of a client whose server does not answer, or fails."""


class Weight(IntEnum):
    """How much a row explains; in one log the greatest weight wins."""

    LAST = 0
    """How a process ended. It counts only where the log has nothing else."""
    WEAK = 1
    """A service that does not answer, or a process that was killed. Most causes lead to these."""
    CAUSE = 2
    ROOT = 3
    """A fault of hardware, kernel or scheduler. It is often printed last, and explains the rest."""


class Again(Enum):
    """Whether another try may help."""

    YES = True
    NO = False
    EITHER = "either"
    """The log alone does not show it."""


PERMANENT = frozenset(
    (
        *("kv_cache", "wrong_interface", "roce_gid", "memlock"),
        *("duplicate_gpu", "driver_too_old", "cuda_library", "gpu_architecture"),
        *("flash_attn_abi", "glibc", "transformers_version", "ray_version"),
        *("compiler_missing", "batch_not_divisible", "heads_not_divisible", "config_key"),
        *("argument_unknown", "data_column", "data_empty", "chat_template"),
        *("data_file", "hub_not_found", "hub_gated", "checkpoint_corrupt"),
        *("checkpoint_shape", "checkpoint_world_size", "checkpoint_missing", "disk_full"),
        *("disk_quota", "shm_full", "open_files", "threads"),
        *("permission", "certificate", "wandb_key", "module_missing"),
        *("circular_import", "time_limit"),
    )
)
"""Labels of causes that another try on the same node cannot remove."""
TEMPORARY = frozenset(
    (
        *("gpu_lost", "gpu_ecc", "gpu_xid", "hub_rate_limited"),
        *("wandb_network", "preempted", "node_lost"),
    )
)
"""Labels of causes that another try, perhaps on another node, may not meet."""


AFTER_LOSS = frozenset(
    (
        *("nccl_socket", "wrong_interface", "infiniband_link", "roce_gid"),
        *("reward_server", "retriever", "rollout_server", "preempted", "node_lost", "native_crash"),
    )
)
"""Labels of errors that the loss of a node leads to."""


class Words(Value):
    """One message, as some version of a program prints it."""

    text: str
    example: str
    error: bool = False
    """Whether the line must begin with the name of an exception."""
    near: str = ""
    """A regular expression for the line or one of the lines before it."""
    only: str = ""
    """A regular expression that the line must match as well."""
    unless: str = ""
    """A regular expression that the line must not match."""
    mild: bool = False
    """Whether a warning counts, too, and one that speaks of another try."""

    @property
    def sign(self) -> str:
        """Return the longest part that each matching line contains."""
        return max(self.text.removeprefix("^").split(ANY), key=len)

    def match(self, line: str, body: str, before: str) -> bool:
        """Return whether a line matches; `body` is the line without the prefixes of a launcher."""
        return (
            _contains(self.text, line, body)
            and (not self.error or compiled(_ERROR).match(body) is not None)
            and (not self.only or compiled(self.only).search(line, 0, LONGEST) is not None)
            and (not self.unless or compiled(self.unless).search(line, 0, LONGEST) is None)
            and (not self.near or compiled(self.near).search(f"{before}\n{line}") is not None)
        )


class Cause(Value):
    """A cause of failures with its remedy, and the messages that show it."""

    key: str
    labels: tuple[str, ...]
    """Labels of tests/causes/labels.toml: several where the messages do not show which one it is;
    none for trouble of Ray's own start."""
    cause: str
    """May name groups of `reads` in braces."""
    what_to_do: str
    words: tuple[Words, ...]
    sources: tuple[str, ...]
    """Issue threads, or source files, that have the messages."""
    weight: Weight = Weight.CAUSE
    reads: str = ""
    """A regular expression whose named groups fill `cause` and `what_to_do`."""
    is_live: bool = True
    """Whether it is reported while the job runs."""
    of_ray: bool = False
    """Whether it counts only in the logs of Ray itself: jobs print such lines in passing."""

    @property
    def again(self) -> Again:
        """Return whether another try may help."""
        if self.labels and PERMANENT.issuperset(self.labels):
            return Again.NO
        return Again.YES if self.labels and TEMPORARY.issuperset(self.labels) else Again.EITHER

    def match(self, line: str, body: str, before: str = "") -> bool:
        """Return whether a line shows this cause."""
        return any(words.match(line, body, before) for words in self.words)

    def filled(self, line: str) -> tuple[str, str]:
        """Return the cause and the remedy with the names in a line."""
        if not self.reads:
            return self.cause, self.what_to_do
        found = compiled(self.reads).search(line)
        names = compiled(self.reads).groupindex
        values = {name: (found and found[name]) or "?" for name in names}
        return self.cause.format(**values), self.what_to_do.format(**values)


def _contains(text: str, line: str, body: str) -> bool:
    """Return whether the parts of a text stand in a line in their order."""
    at, (first, *others) = 0, _parts(text)
    if first.startswith("^"):
        if not body.startswith(first[1:]):
            return False
        at, line = len(first) - 1, body
        parts = others
    else:
        parts = [first, *others]
    for part in parts:
        found = line.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


@cache
def _parts(text: str) -> tuple[str, ...]:
    return tuple(text.split(ANY))


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile an expression at its first use: most rows never need theirs."""
    return re.compile(pattern)
