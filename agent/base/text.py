"""Text helpers: lists, sizes, control characters, addresses, TOML, lines at a terminal."""

from __future__ import annotations

import importlib
import ipaddress
import re
import shlex
import sys
import textwrap
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_CONTROLS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"
)
"""Terminal escape sequences and control characters, without line separators."""
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_DIRECTION_MARKS = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Characters that change the direction of text."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raises a ValueError that names the place."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    parsed: dict[str, Any] = toml.loads(text)
    return parsed


def listed(names: Iterable[str]) -> str:
    """Join names: `a`, `a and b`, `a, b and c`."""
    *first, last = [*names] or [""]
    if not first:
        return last
    return f"{', '.join(first)} and {last}"


def first_names(names: Iterable[str], most: int = 4) -> str:
    """Join the first names, and count the others: `a, b and 3 more`."""
    everything = [*names]
    more = len(everything) - most
    if more <= 0:
        return listed(everything)
    return listed([*everything[:most], f"{more} more"])


def nearly_equal(name: str, other: str) -> bool:
    """Return whether two names differ by one edit or two swapped letters, underscores ignored."""
    a = name.replace("_", "")
    b = other.replace("_", "")
    differs_at = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if differs_at is None:
        return abs(len(a) - len(b)) <= 1
    a = a[differs_at:]
    b = b[differs_at:]
    is_one_edit = b[1:] in {a, a[1:]} or a[1:] == b
    is_swap = a[:2] == b[1::-1] and a[2:] == b[2:]
    return is_one_edit or is_swap


def mib(size: int) -> str:
    """Format a size in MiB or KiB."""
    if size >= 1 << 20:
        return f"{size / (1 << 20):.0f} MiB"
    return f"{size / 1024:.0f} KiB"


def gigabytes(size: int) -> str:
    """Format a size in GB."""
    return f"{size / 1e9:.1f} GB"


def duration_text(seconds: float) -> str:
    """Format a duration in its two largest units, as the page does."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        larger = f"{whole // 60} min"
        rest = whole % 60
        return f"{larger} {rest} s" if rest else larger
    larger = f"{whole // 3600} h"
    rest = whole % 3600 // 60
    return f"{larger} {rest} min" if rest else larger


def short_duration(seconds: float) -> str:
    """Format a duration; one below ten seconds with two digits."""
    return f"{seconds:.2g} s" if seconds < 10 else duration_text(seconds)


def number_text(value: float, digits: int = 3, *, signed: bool = False) -> str:
    """Format a number with so many significant digits; a larger one in whole digits, as `312`."""
    sign = "+" if signed else ""
    if 10**digits - 0.5 <= abs(value) < _LARGEST_PLAIN:
        return f"{value:{sign}.0f}"
    return f"{value:{sign}.{digits}g}"


_LARGEST_PLAIN = 10**15  # a broken metric may be larger


def without_controls(text: str) -> str:
    """Return a text without terminal escape sequences and control characters."""
    return _CONTROLS.sub("", text)


def escaped(text: str) -> str:
    """Return a line with everything that is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def map_texts(data: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return JSON data with every text changed, the names of fields too."""
    if isinstance(data, dict):
        return {change(name): map_texts(value, change) for name, value in data.items()}
    if isinstance(data, list | tuple):
        # Most items are numbers: a head reads those of all GPUs with each report.
        return [
            value if type(value) in _WITHOUT_TEXT else map_texts(value, change) for value in data
        ]
    if isinstance(data, str):
        return change(data)
    return data


_WITHOUT_TEXT = {int, float, bool, type(None)}


def with_output(sentence: str, output: str) -> str:
    """Return a sentence about a program, and what the program printed last."""
    return f"{sentence}; last output: {output}" if output else sentence


def plain(text: str) -> str:
    """Return a text with newlines as its only control characters."""
    return _DIRECTION_MARKS.sub("", without_controls(_LINE_ENDS.sub("\n", text)))


def shown_path(path: Path) -> str:
    """Return a path as people type it: from the folder in which the agent was started."""
    with suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def is_ip(text: str) -> bool:
    """Return whether a text is an IP address, without a scope id, which may be any text."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def quota_key(ip: str) -> str:
    """Return what a limit for one address counts by: an IPv6 host may use all of its /64."""
    if ":" not in ip:
        return ip
    try:
        address = ipaddress.IPv6Address(ip.partition("%")[0])
    except ValueError:
        return ip
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def is_public(address: str) -> bool:
    """Return whether an address is routable on the internet."""
    return ipaddress.ip_address(address).is_global


def is_loopback(host: str) -> bool:
    """Return whether a host name or address always means the local machine."""
    if not is_ip(host):
        return host == "localhost" or host.endswith(".localhost")
    address = ipaddress.ip_address(host)
    return address.is_loopback or address.is_unspecified


def in_url(host: str) -> str:
    """Format a host for a URL or `host:port`: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host


def reached_at(listens_on: str) -> str:
    """Return the address for local connections to a listener on this host."""
    everywhere = {"0.0.0.0", "::", "localhost"}  # noqa: S104 - compared
    return "127.0.0.1" if listens_on in everywhere else listens_on


def own_command(python: str, *arguments: str) -> list[str]:
    """Return an argv that runs this agent by its file, since `-m` searches the cwd first.

    An agent that runs isolated from PYTHONPATH and user packages starts its own Python so too.
    """
    options = ["-I"] if sys.flags.isolated and python == sys.executable else []
    return [python, *options, str(Path(__file__).parents[1] / "__main__.py"), *arguments]


def shell_line(argv: Iterable[str]) -> str:
    """Return a command as a shell reads it, with as few quotes as possible."""
    return " ".join(map(_quoted, argv))


def _quoted(word: str) -> str:
    # shlex writes a single quote within a word as five characters
    if "'" in word and not set(word) & set('"$`\\!\n'):
        return f'"{word}"'
    return shlex.quote(word)


Tone = Literal["", "title", "good", "busy", "bad", "dim"]
_CODES: Mapping[Tone, str] = {"title": "1", "good": "32", "busy": "33", "bad": "1;31", "dim": "2"}
_LEAST_WIDTH = 40  # a narrower terminal folds lines by itself


class Line(NamedTuple):
    """A label and a text beside it; a folded text continues below itself."""

    label: str
    text: str = ""
    tone: Tone = ""  # the color of the label


class Terminal(NamedTuple):
    """Where lines are printed."""

    width: int | None = None  # its columns; None if it is no terminal, where lines are not folded
    has_colors: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str], columns: int) -> Terminal:
        """Return a terminal with so many columns; NO_COLOR turns colors off."""
        has_colors = not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
        return cls(columns, has_colors)

    def render(self, lines: Iterable[Line], clean: Callable[[str], str]) -> str:
        """Return lines as text; `clean` masks secrets, before a fold could split one."""
        rendered = []
        for line in lines:
            label = clean(line.label)
            text = clean(line.text)
            if self.width is not None and self.width >= _LEAST_WIDTH:
                text = _folded(label, text, self.width)
            code = _CODES.get(line.tone)
            if self.has_colors and label and code:
                label = f"\x1b[{code}m{label}\x1b[0m"
            rendered.append(f"{label}{text}")
        return "\n".join(rendered)


def _folded(label: str, text: str, width: int) -> str:
    """Fold a text that begins behind its label; under a long label it is indented a little."""
    below = len(label) if len(label) < width // 2 else 4
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=" " * len(label),
        subsequent_indent=" " * below,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)[len(label) :]


NO_TERMINAL = Terminal()  # a file or a pipe: lines as they are


def error_text(error: OSError) -> str:
    """Return the message of an OS error."""
    return error.strerror or str(error)


def iso_time(seconds: float) -> str:
    """Format a time for records: UTC, ISO 8601."""
    text = datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def seconds_between(start: str, end: str) -> float:
    """Return the seconds between two ISO times; 0 if one is invalid."""
    try:
        first, last = (datetime.fromisoformat(t.replace("Z", "+00:00")) for t in (start, end))
        return max(0.0, (last - first).total_seconds())
    except (TypeError, ValueError):
        return 0.0
