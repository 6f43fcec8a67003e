"""Readers of values: each converts a text, or raises ValueError with what it expects."""

from __future__ import annotations

import ipaddress
import re
import shlex
from signal import Signals
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from agent.base.text import is_ip
from agent.base.typed import decode

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s?)?")
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_Resources = dict[
    Annotated[str, msgspec.Meta(pattern=r"^(?!(?:CPU|GPU|memory)$)[!-~]+$")],
    Annotated[float, msgspec.Meta(ge=0, le=1e12)],
]

Choice = TypeVar("Choice", bound=str)


class Secret:
    """A text whose repr is masked."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reveal() == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(********)"


def secret(text: str) -> Secret:
    """Read a secret."""
    if "\0" in text:
        raise ValueError("text without NUL bytes")
    return Secret(text)


def yes_or_no(text: str) -> bool:
    """Read 1/true or 0/false."""
    word = text.strip().lower()
    if word not in {"1", "true", "0", "false"}:
        raise ValueError("1 or true, 0 or false")
    return word in {"1", "true"}


def duration(text: str) -> float:
    """Read `90s`, `10m`, `1h30m` or plain seconds as seconds."""
    word = text.strip().lower()
    match = _DURATION.fullmatch(word)
    if not word or match is None:
        raise ValueError("a duration such as 90s, 10m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if not 0 < total <= 30 * 24 * 3600:
        raise ValueError("a duration above 0 and of at most 30 days, such as 90s or 10m")
    return total


def duration_or_off(text: str) -> float:
    """Read a duration, or `0` for never."""
    return 0.0 if text.strip() in {"0", "off"} else duration(text)


def duration_or_auto(text: str) -> float | Literal["auto"]:
    """Read a duration, `auto`, or `0` for never."""
    if text.strip().lower() == "auto":
        return "auto"
    try:
        return duration_or_off(text)
    except ValueError as error:
        raise ValueError(f"`auto`, 0, or {error}") from None


def amount(most: float, expected: str) -> Callable[[str], float]:
    """Make a reader of numbers above 0 and up to `most`."""

    def read(text: str) -> float:
        if not re.fullmatch(_NUMBER, text.strip()) or not 0 < float(text) <= most:
            raise ValueError(expected)
        return float(text)

    return read


def signal_name(text: str) -> str:
    """Read a signal that a program may catch, `USR1` or `SIGUSR1`; '' for `off`."""
    word = text.strip().upper()
    if word in {"OFF", "0"}:
        return ""
    name = word if word.startswith("SIG") else f"SIG{word}"
    if name not in Signals.__members__ or name in {"SIGKILL", "SIGSTOP", "SIGCHLD"}:
        raise ValueError("a signal that the job catches, such as SIGUSR1, or off")
    return name


def text(given: str) -> str:
    """Read a text that is not blank."""
    if not given.strip():
        raise ValueError("some text; leave the variable unset for its default")
    if "\0" in given:
        raise ValueError("text without NUL bytes")
    return given


def absolute_path(path: str) -> str:
    """Read a path that does not depend on the current directory."""
    word = text(path).strip()
    if not word.startswith(("/", "~/")):
        raise ValueError("an absolute path, such as /workspace/checkpoints")
    return word


def shared_folder_or_off(path: str) -> str:
    """Read an absolute path that is the same on all nodes, or `off`."""
    if path.strip().lower() == "off":
        return "off"
    try:
        word = absolute_path(path)
    except ValueError:
        raise ValueError("`off`, or an absolute path such as /workspace/caches") from None
    if "{" in word or "}" in word:
        raise ValueError("a path without braces: all nodes share one folder, without placeholders")
    return word


def one_of(*choices: Choice) -> Callable[[str], Choice]:
    """Make a reader of one of these words."""

    def read(text: str) -> Choice:
        choice = {choice.lower(): choice for choice in choices}.get(text.strip().lower())
        if choice is None:
            raise ValueError(f"one of {', '.join(choices)}")
        return choice

    return read


def whole(low: int, high: int, what: str = "a whole number") -> Callable[[str], int]:
    """Make a reader of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        word = text.strip()
        if not re.fullmatch(r"[0-9]{1,9}", word) or not low <= int(word) <= high:
            raise ValueError(f"{what} from {low} to {high}")
        return int(word)

    return read


port = whole(1024, 65_535, "a port")  # reads a port that needs no privileges


def host(text: str) -> str:
    """Read a host name or an IP address."""
    word = text.strip()
    if is_ip(word):
        return str(ipaddress.ip_address(word))
    if not _HOST.fullmatch(word) or len(word) > 253 or re.fullmatch(r"[\d.]+", word):
        raise ValueError("a host name or an IP address, without scheme or port")
    return word.rstrip(".")


def reachable_host(text: str) -> str:
    """Read a host that other nodes can reach: 0.0.0.0 is none."""
    word = host(text)
    if word in {"0.0.0.0", "::"}:  # noqa: S104 - refused here
        raise ValueError("an address, not 0.0.0.0: it is sent to other nodes")
    return word


def ip(text: str) -> str:
    """Read an IP address that other nodes can use."""
    if not is_ip(text.strip()):
        raise ValueError("an IP address of this node")
    return reachable_host(text)


def matching(pattern: str, expected: str) -> Callable[[str], str]:
    """Make a reader of texts that match a pattern as a whole."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text.strip()):
            raise ValueError(expected)
        return text.strip()

    return read


pod_id = matching(  # it becomes part of a host name
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?",
    "a RunPod pod id such as abc123 (the id alone, no domain)",
)
base_url = matching(  # a key is sent there, so it is encrypted or local
    r"(?:https://[\w.-]+|http://(?:localhost|127\.0\.0\.1|\[::1\]))(?::[1-9]\d{0,4})?(?:/[\w.~-]+)*",
    "an https URL such as https://api.runpod.io (http only of this machine), without / at its end",
)
judge_url = matching(
    r"https?://[^\s/?#@]+(?:/[\w.~%-]+)*/?",
    "an http(s) URL without a user or a key in it, such as https://judge.example/v1",
)
revision = matching(
    r"(?a:(?!/)(?!.*(?:\.\.|//))[\w./-]+(?<!/))",
    "a branch, a tag or a commit of the model on the hub",
)
url_path = matching(r"/[\w./~%+-]*", "a path that begins with /, such as /get_reward")


def notify_urls(text: str) -> Secret:
    """Read URLs, each of which is a secret: whoever has it can send messages."""
    expected = "URLs with a host, https://host/path, with spaces between them"
    for url in secret(text).reveal().split():
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of its port or host
            is_url = False
        if not is_url or not url.isprintable():
            raise ValueError(expected)
    return Secret(text.strip())


def resources(text: str) -> dict[str, float]:
    """Read Ray's custom resources."""
    try:
        return decode(text, _Resources)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError(
            'JSON of names and amounts such as {"h100": 8} (CPU and GPU have AGENT_NUM_CPUS and '
            "AGENT_NUM_GPUS)"
        ) from None


def shell_words(text: str) -> tuple[str, ...]:
    """Split words as a shell does, without expansion."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"words that a shell could split ({error})".lower()) from None
