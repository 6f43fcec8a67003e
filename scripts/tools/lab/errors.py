"""Errors of the lab itself, as opposed to those of programs in its pods."""

from __future__ import annotations


class LabError(RuntimeError):
    """The lab could not do an operation; the message has what, why, and the last evidence."""
