"""What Ray's client uploads for a job, watched: it packs a folder and sends it, and says nothing.

Its own methods are wrapped, of one client and by their private names; a Ray that has others
uploads as well, and only the folder and the time are told. Tried on Ray 2.40, 2.47, 2.52 and 2.60.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PACKING, SENDING = "packing", "sending"
_CHUNK = 1 << 16


class Upload:
    """What is uploaded in one try to submit a job; told by one thread, looked at by another."""

    def __init__(self, known: Mapping[str, Any] | None, tell: Callable[..., None]) -> None:
        self._known = dict(known or {})
        """What the agent measured of the working_dir: its folder, files and bytes."""
        self._tell = tell
        self._folder = str(self._known.get("folder", ""))
        self._sent: Counted | None = None
        self._one = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._began, self._read = time.monotonic(), bytes_read()

    def tell(self) -> None:
        """Tell how far it has come, where there is something that is uploaded."""
        with self._one:
            self._say(is_over=False)

    def packs(self, folder: object) -> None:
        """Note what is packed now."""
        with self._one:
            self._folder, self._sent = str(folder), None

    def sends(self, package: bytes) -> Counted:
        """Return a package as something that is counted while it is sent."""
        with self._one:
            self._sent = Counted(package)
            return self._sent

    def arrived(self) -> None:
        """Tell that it was taken; what follows is another."""
        with self._one:
            self._say(is_over=True)
            self._folder, self._sent = "", None
            self._begin()

    def _say(self, *, is_over: bool) -> None:
        if not self._folder:
            return
        known = self._known if self._folder == self._known.get("folder") else {}
        sent = self._sent
        self._tell(
            folder=self._folder,
            files=known.get("files", 0),
            size=known.get("size", 0) if sent is None else len(sent),
            stage=PACKING if sent is None else SENDING,
            done=max(0, bytes_read() - self._read) if sent is None else sent.count,
            seconds=round(time.monotonic() - self._began, 3),
            is_over=is_over,
        )


class Counted:
    """Bytes as a body that `requests` reads piece by piece."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)
        self.count = 0

    def __len__(self) -> int:
        """Return the length of all of it, for the header."""
        return len(self._content)

    def read(self, size: int = -1) -> bytes:
        """Return the next piece."""
        end = len(self) if size < 0 else self.count + size
        piece = bytes(self._content[self.count : end])
        self.count += len(piece)
        return piece

    def __iter__(self) -> Iterator[bytes]:
        """Yield piece by piece; that it can is how `requests` knows a body to be read."""
        while piece := self.read(_CHUNK):
            yield piece


def watch(client: Any, upload: Callable[[], Upload | None]) -> None:  # noqa: ANN401 - Ray's, untyped
    """Have a client tell its upload of now what it packs and sends."""
    pack, ask = getattr(client, "_upload_package", None), getattr(client, "_do_request", None)
    if not callable(pack) or not callable(ask):
        return

    def packed(uri: str, folder: object, *args: object, **kwargs: object) -> object:
        now = upload()
        if now is None:
            return pack(uri, folder, *args, **kwargs)
        now.packs(folder)
        made = pack(uri, folder, *args, **kwargs)
        now.arrived()
        return made

    def asked(method: str, endpoint: str, *args: object, **kwargs: object) -> object:
        now, data = upload(), kwargs.get("data")
        if now is not None and method == "PUT" and isinstance(data, bytes):
            kwargs["data"] = now.sends(data)
        return ask(method, endpoint, *args, **kwargs)

    client._upload_package, client._do_request = packed, asked  # noqa: SLF001 - see above


def bytes_read() -> int:
    """Return how many bytes this process has read from files; 0 where the kernel does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])
    return 0
