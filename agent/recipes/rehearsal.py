"""The rehearsal: a small GRPO on CPUs that takes every path a real job would take."""

from __future__ import annotations

from agent.own_command import own_command


def command() -> tuple[str, ...]:
    """Return the job's command, with placeholders for what is known only when all have joined."""
    return tuple(
        own_command(
            "rehearsal",
            "--reward-url",
            "{reward_url}",
            "--nodes",
            "{nodes}",
            "--out",
            "{log_dir}",
        )
    )
