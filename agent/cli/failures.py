"""The lines that say why a verb failed."""

from __future__ import annotations

from agent.base.errors import AgentError, SettingsError


def failure_lines(error: AgentError) -> tuple[str, ...]:
    """Return what is printed of an error: each wrong setting has a line."""
    if not isinstance(error, SettingsError):
        return (f"pod-agent: {error.sentence()}",)
    return (
        "pod-agent: the settings are wrong, nothing was started:",
        *(f"  {problem.sentence()}" for problem in error.problems),
        *(f"  {hint}" for hint in error.hints),
        f"refused: {len(error.problems)} problem(s) (exit code 78). {error.remedy}",
    )
