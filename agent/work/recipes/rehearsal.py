"""The rehearsal: a small GRPO on CPUs that takes every path a real job would take."""

from __future__ import annotations

from agent.base.own_command import own_command


def command(python: str) -> tuple[str, ...]:
    """Return the job's command, for Ray's Python; placeholders stand for what is known later."""
    return tuple(
        own_command(
            python,
            "rehearsal",
            "--reward-url",
            "{reward_url}",
            "--nodes",
            "{nodes}",
            "--out",
            "{log_dir}",
        )
    )
