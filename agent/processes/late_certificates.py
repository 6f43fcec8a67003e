"""Load the certificates of authorities at the first TLS connection.

aiohttp makes two contexts while it is imported (3.14). To load their certificates takes 45 ms of
CPU time in every pod, just as Ray starts, and most runs open no TLS connection at all.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def certificates_at_first_use() -> Iterator[None]:
    """Have each context that is made meanwhile load its certificates at its first connection.

    This holds for connections of asyncio, which all begin with `wrap_bio`.
    """
    load = ssl.SSLContext.set_default_verify_paths

    def load_later(context: ssl.SSLContext) -> None:
        def load_and_wrap(*arguments: Any, **options: Any) -> ssl.SSLObject:  # noqa: ANN401 - passed on
            del context.wrap_bio
            load(context)
            return context.wrap_bio(*arguments, **options)

        context.wrap_bio = load_and_wrap  # type: ignore[method-assign]

    ssl.SSLContext.set_default_verify_paths = load_later  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        ssl.SSLContext.set_default_verify_paths = load  # type: ignore[method-assign]
