"""`pod-agent completion`: the script for a shell, made from the tables of verbs and options."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from agent.cli.options import name_among, value
from agent.cli.parser import flags_of
from agent.cli.start_files.platforms_of_init import PLATFORMS
from agent.cli.verbs import VERBS
from agent.settings.jobs import BY_NAME

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

SHELLS = ("bash", "zsh", "fish")
OPTIONS = (value("shell", "SHELL", ", ".join(SHELLS), name_among("shell", SHELLS)),)
_ARGUMENTS = {
    "recipe": tuple(BY_NAME),
    "logs": ("head", "agent", "ray", "job"),
    "completion": SHELLS,
    "init": (*PLATFORMS, *BY_NAME),
}
"""What a verb takes besides its options."""
_BASH = """\
_pod_agent() {
    local verb='' word words=''
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $word in
        --) return ;;
        -*) ;;
        *) verb=$word; break ;;
        esac
    done
    case $verb in
CASES
    esac
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _pod_agent pod-agent"""


def run(_: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print the script."""
    print(completion_for(options.shell))


def completion_for(shell: str) -> str:
    """Return the script that a shell evaluates."""
    # On a Mac or Windows the modules of the other verbs cannot be loaded.
    is_linux = sys.platform == "linux"
    verbs = [name for name, verb in VERBS.items() if is_linux or verb.works_anywhere]
    words = {verb: [*_ARGUMENTS.get(verb, ()), *flags_of(verb)] for verb in verbs}
    if shell == "fish":
        return "\n".join(_fish_lines(words))

    words["''"] = [*verbs, "--version", "--help"]
    cases = (f"    {verb}) words='{' '.join(follow)}' ;;" for verb, follow in words.items())
    script = _BASH.replace("CASES", "\n".join(cases))
    if shell == "zsh":
        return f"autoload -Uz bashcompinit && bashcompinit\n{script}"
    return script


def _fish_lines(words: Mapping[str, list[str]]) -> Iterator[str]:
    first = "complete -c pod-agent -n __fish_use_subcommand"
    yield f"{first} -l version"
    for name, verb in VERBS.items():
        yield f"{first} -f -a {name} -d {shlex.quote(verb.about)}"
        for word in words[name]:
            within = f"complete -c pod-agent -n '__fish_seen_subcommand_from {name}'"
            yield f"{within} {_fish_kind(word)} {word.lstrip('-')}"


def _fish_kind(word: str) -> str:
    """Return the option of `complete` that declares a long flag, a short one or an argument."""
    if word.startswith("--"):
        return "-l"
    if word.startswith("-"):
        return "-s"
    return "-a"
