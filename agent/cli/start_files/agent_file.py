"""How the nodes get the agent: a wheel that they install, or the one file that they run.

A wheel of 1 MB is packed from the installed agent, so that it is always at hand. Nodes install it
into an environment of its own, beside the image's Python, whose packages are the constraints: pip
refuses rather than moves one. Where nodes share a disk and may have no package index, that
environment is made on the disk once, or they run the one file, which needs neither pip nor an
index.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shlex
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

import agent
from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(agent.__file__).parent
ONE_FILE = "pod-agent"
HOME = "/opt/pod-agent"
"""The environment of the agent on a node, where a wheel is installed."""
_IMAGES_PACKAGES = 'import site; print(*site.getsitepackages(), sep="\\n")'
"""Prints where the image's packages are; by a .pth file the agent's environment has them, too."""
_DAY = (1980, 1, 1, 0, 0, 0)  # the same wheel for the same sources


class AgentFile(Value, frozen=True):
    """The file by which nodes get the agent."""

    kind: Literal["wheel", "one file"]
    name: str
    why: str  # Why this kind fits the platform
    content: bytes = b""  # '' where the file is used where it is, or fetched
    place: str = ""  # Where it is on the shared disk, if it is used there
    url: str = ""
    sha256: str = ""

    @property
    def is_sent(self) -> bool:
        """Return whether the file is written beside the start file, and sent along."""
        return bool(self.content)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the file."""
        return self.sha256 or hashlib.sha256(self.content).hexdigest()

    def commands(self, place: str, *, is_linked: bool = True) -> list[str]:
        """Return the shell commands after which the agent can be started; the file is at `place`.

        A published file is fetched to `place` and verified. An installed one `is_linked` where a
        shell finds it, which only root may.
        """
        if self.kind == "one file":
            return [self.fetch_command(place)] if self.url else []

        # The environment has the image's packages, too, and pip may not move one of them.
        source = f"{place}[maths]"
        if self.url:
            source = f"pod-agent[maths] @ {self.url}#sha256={self.sha256}"
        packages = f"{HOME}/lib/python3*/site-packages"
        install = f"install --quiet --constraint {HOME}/constraints.txt"
        link = f"ln -sf {HOME}/bin/pod-agent /usr/local/bin/pod-agent"
        return [
            f"python3 -m venv --without-pip {HOME}",
            f"python3 -c '{_IMAGES_PACKAGES}' > $(echo {packages})/image.pth",
            f"python3 -m pip list --format=freeze --exclude-editable > {HOME}/constraints.txt",
            f"python3 -m pip --python {HOME}/bin/python {install} '{source}'",
            *([link] if is_linked else ()),
        ]

    def fetch_command(self, place: str) -> str:
        """Return the shell command that fetches the published file and verifies its digest."""
        folder = PurePosixPath(place).parent
        fetch = "import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])"
        url = shlex.quote(self.url)  # a signed one has `&`
        return (
            f"test -e {place} || {{ mkdir -p {folder} && new=$(mktemp {folder}/agent.XXXXXX)"
            f" && python3 -c '{fetch}' {url} $new"
            f' && echo "{self.sha256}  $new" | sha256sum --check --quiet && mv $new {place}; }}'
        )

    def start(self, place: str) -> str:
        """Return the shell words that start the agent, after `commands`."""
        if self.kind == "wheel":
            return f"{HOME}/bin/pod-agent"
        return f"sh {self.place or place}"


@cache
def packed_wheel() -> tuple[str, bytes]:
    """Return the name and the content of a wheel of this agent."""
    described = _description()
    version = agent.__version__
    info = f"pod_agent-{version}.dist-info"
    members = dict(_sources())
    members.update({f"{info}/{name}": content for name, content in described.items()})
    members[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: pod-agent\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(
        f"{name},{_hash(content)},{len(content)}\n" for name, content in members.items()
    )
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()

    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name, _DAY)
            member.external_attr = 0o644 << 16
            archive.writestr(member, content, zipfile.ZIP_DEFLATED)
    return f"pod_agent-{version}-py3-none-any.whl", wheel.getvalue()


def _sources() -> Iterator[tuple[str, bytes]]:
    """Return the package's files by their names in a wheel."""
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(PACKAGE.parent).as_posix(), path.read_bytes()


def _description() -> dict[str, bytes]:
    """Return what an installation records of itself: libraries, command, license."""
    names = ("METADATA", "entry_points.txt")
    for folder in PACKAGE.parent.glob("pod_agent-*.dist-info"):
        if all((folder / name).is_file() for name in names):
            return {name: (folder / name).read_bytes() for name in names}
    # Of a checkout; a build may have left an egg-info there, which has no METADATA.
    for installed in metadata.distributions(name="pod-agent"):
        texts = {name: installed.read_text(name) for name in names}
        if all(texts.values()):
            return {name: (text or "").encode() for name, text in texts.items()}
    raise metadata.PackageNotFoundError("pod-agent")


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


def one_file_here() -> Path | None:
    """Return the one file: that from which this agent was unpacked, or that of the checkout."""
    unpacked_from = PACKAGE.parent / "unpacked-from"
    candidates = []
    if unpacked_from.is_file():
        candidates.append(Path(unpacked_from.read_text(encoding="utf-8")))
    root = checkout()
    if root is not None:
        candidates.append(root / "dist" / ONE_FILE)
    return next((path for path in candidates if path.is_file()), None)


def checkout() -> Path | None:
    """Return the checkout from which this agent runs, if it does."""
    root = PACKAGE.parent
    return root if (root / "scripts" / "build").is_file() else None
