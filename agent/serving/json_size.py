"""Count the values in JSON before it is parsed: small ones take many times their size."""

from __future__ import annotations

_SEPARATORS = (b",", b"[", b"{")


def has_more_values(body: bytes | bytearray, most: int) -> bool:
    """Return whether JSON has more than `most` values; names of fields and brackets count, too."""
    # Most bodies have so few of these signs that it does not matter whether they are in a text.
    signs = sum(body.count(sign) for sign in _SEPARATORS)
    if signs + body.count(b'"') // 2 <= most:
        return False

    # Count each text, and the separators between two texts.
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = 0
    at = 0
    while values <= most:
        begins = body.find(b'"', at)
        ends = body.find(b'"', begins + 1)
        if begins < 0 or ends < 0:
            return values + sum(body.count(sign, at) for sign in _SEPARATORS) > most
        values += 1 + sum(body.count(sign, at, begins) for sign in _SEPARATORS)
        at = ends + 1
    return True
