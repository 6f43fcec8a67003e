"""Frameworks without a package: the options of their parsers, recorded with the commit."""


def words(text: str) -> tuple[str, ...]:
    """List the words of a multi-line text."""
    return tuple(text.split())
