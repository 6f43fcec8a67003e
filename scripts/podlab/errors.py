"""What can go wrong in the lab itself, as opposed to what runs in its pods."""

from __future__ import annotations


class LabError(RuntimeError):
    """The lab could not do what was asked; the message says what, why, and the last evidence."""
