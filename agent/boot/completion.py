"""Completion of the command line for bash, zsh and fish, made from the parser."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from agent.boot.command_line import SHELLS
from agent.boot.init import PLATFORMS
from agent.settings.jobs import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.boot.command_line import CommandLine

_WORDS = {
    "recipe": tuple(BY_NAME),
    "logs": ("head", "agent", "ray", "job"),
    "completion": SHELLS,
    "init": (*PLATFORMS, *BY_NAME),
    "run": ("--",),
}
"""What a verb takes besides its options."""


def completion_for(shell: str, line: CommandLine) -> str:
    """Return the script that a shell evaluates."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](line)


def _cases(line: CommandLine) -> Iterator[tuple[str, str]]:
    """Yield what may follow each verb; '' for the verb itself."""
    yield "''", " ".join([*line.verbs, *line.parser.flags])
    for verb, parser in line.verbs.items():
        yield verb, " ".join([*_WORDS.get(verb, ()), *parser.flags])


def _bash(line: CommandLine) -> str:
    cases = "\n".join(f"        {verb}) words='{words}' ;;" for verb, words in _cases(line))
    return f"""\
_pod_agent() {{
    local verb='' word words=''
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in
        --) return ;;
        -*) ;;
        *) verb=$word; break ;;
        esac
    done
    case $verb in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _pod_agent pod-agent"""


def _zsh(line: CommandLine) -> str:
    cases = "\n".join(f"    {verb}) compadd -- {words} ;;" for verb, words in _cases(line))
    return f"""\
#compdef pod-agent
_pod_agent() {{
    local verb='' word
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case $word in
        --) _files; return ;;
        -*) ;;
        *) verb=$word; break ;;
        esac
    done
    case $verb in
{cases}
    esac
    _files
}}
compdef _pod_agent pod-agent"""


def _fish(line: CommandLine) -> str:
    return "\n".join(_fish_lines(line))


def _fish_lines(line: CommandLine) -> Iterator[str]:
    first = "complete -c pod-agent -n __fish_use_subcommand"
    for verb, about in line.about.items():
        yield f"{first} -f -a {verb} -d {shlex.quote(about)}"
    yield f"{first} -l version"
    for verb, parser in line.verbs.items():
        within = f"complete -c pod-agent -n '__fish_seen_subcommand_from {verb}'"
        for flag, about in parser.flags.items():
            kind = "-l" if flag.startswith("--") else "-s"
            text = f" -d {shlex.quote(about)}" if about and "==" not in about else ""
            yield f"{within} {kind} {flag.lstrip('-')}{text}"
        words = " ".join(word for word in _WORDS.get(verb, ()) if word != "--")
        if words:
            yield f"{within} -a '{words}'"
