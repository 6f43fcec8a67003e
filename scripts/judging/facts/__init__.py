"""Frameworks without a package: what their parsers know, written down with the commit."""


def words(text: str) -> tuple[str, ...]:
    """List the words of a text over several lines."""
    return tuple(text.split())
