"""How far Ray's client has come with what a job brings: a folder that is packed and sent to Ray."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.base.words import mib
from agent.decisions.shared import Said

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKING, SENDING = "packing", "sending"


@dataclass(frozen=True)
class Uploading:
    """A word of it, every now and then; of what takes no time only the last."""

    id: str
    """The attempt for which it is done."""
    folder: str
    files: int = 0
    """0 where nobody counted them."""
    size: int = 0
    """Bytes of the package; 0 where they are not known yet."""
    stage: str = PACKING
    done: int = 0
    """Bytes that were read to pack it, or sent."""
    seconds: float = 0.0
    """Since it began."""
    is_over: bool = False


@dataclass(frozen=True)
class Upload:
    """What the head knows of it."""

    last: Uploading
    is_under_way: bool = True
    """False once it is over, or the try of which it was part."""
    most: int = 0
    """Bytes that were sent at most: another try begins anew."""
    moved: float = 0.0
    """When it was more than ever before."""

    @property
    def evidence(self) -> str:
        """Say how far it has come."""
        last = self.last
        if last.stage == SENDING and last.size:
            return f"sending {last.folder}: {mib(last.done)} of {mib(last.size)}"
        read = f": {mib(last.done)} read" if last.done else ""
        return f"packing {last.folder}{read}"

    @property
    def share(self) -> float | None:
        """Return how much of it is sent; None while it is packed."""
        last = self.last
        return last.done / last.size if last.stage == SENDING and last.size else None


def heard(before: Upload | None, last: Uploading, now: float) -> Upload:
    """Take in a word of it."""
    if before is None or before.last.id != last.id:
        before = Upload(last, moved=now)
    sent = last.done if last.stage == SENDING else 0
    moved = now if sent > before.most else before.moved
    return Upload(last, not last.is_over, max(sent, before.most), moved)


def ended(before: Upload | None) -> Upload | None:
    """Note that a try is over: what was known of it tells nothing of the next."""
    return None if before is None else replace(before, is_under_way=False)


def said(before: Upload | None, last: Uploading) -> Iterator[Said]:
    """Say what is uploaded, once, and how long it took; what takes no time is one sentence."""
    what = ", ".join(filter(None, (_files(last.files), mib(last.size) if last.size else "")))
    if last.is_over:
        told = f"{what}, in {last.seconds:.2g} s" if what else f"in {last.seconds:.2g} s"
        yield Said(f"uploaded {last.folder} to Ray: {told}")
    elif before is None or (before.last.id, before.last.folder) != (last.id, last.folder):
        yield Said(f"uploading {last.folder} to Ray{f': {what}' if what else ''}")


def _files(count: int) -> str:
    return f"{count} file{'s' if count > 1 else ''}" if count else ""
