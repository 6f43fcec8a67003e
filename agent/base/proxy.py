"""The proxy of the environment for a request."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_for(url: str) -> str | None:
    """Return the proxy of the environment for a request that has a secret; None without.

    `trust_env` would do more: a `default` entry of ~/.netrc would replace the secret.
    """
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
