"""Lines of a job's script that would end the agent or its Ray, such as `pkill -9 python`.

Many frameworks' scripts clean up a machine before they start Ray themselves. Under the agent that
ends the agent, the Ray of the run, and with them the job. Only words at the place of a command
count: a comment, a text that is printed and a here-document do not. Scripts that the script starts
or sources are read as well, but not what those start. Which names and command lines a pattern is
tried on is `_Victims`.
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.node.facts import EndingLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IGNORE = "# pod-agent: ignore"
"""A comment by which a user insists that a line ends nothing of the agent."""
_LARGEST = 1 << 20  # bytes of a script that is read
_MOST = 3  # lines that are named
_SHELLS = re.compile(r"(ba|da|z|k)?sh")


class _Victims(Value):
    """What runs on a node of ours, by the names and command lines that pkill compares."""

    names: tuple[str, ...]  # of processes
    lines: tuple[str, ...]  # their command lines, for `pkill -f`
    has_ray: bool


def ending_lines(command: Sequence[str], *, with_ray: bool) -> tuple[EndingLine, ...]:
    """Return the first lines of a job's command, or of its script, that end the agent or its Ray.

    `with_ray` is true if the agent starts a Ray.
    """
    victims = _victims(command, with_ray=with_ray)
    given = _inline_text(command)
    if given:
        lines = _with_called(given, "the command after --", victims)
        return tuple(lines)[:_MOST]
    path = _script(command)
    text = _text(path) if path else ""
    look = _in_python if _is_python(text, path) else _with_called
    return tuple(look(text, path, victims))[:_MOST]


def _is_python(text: str, path: str) -> bool:
    first = text.partition("\n")[0]
    return path.endswith(".py") or (first.startswith("#!") and "python" in first)


def _victims(command: Sequence[str], *, with_ray: bool) -> _Victims:
    agent = f"python3 -m agent run -- {' '.join(command)}"
    names: tuple[str, ...] = ("python", "python3", "pod-agent")
    lines: tuple[str, ...] = (
        agent,
        agent.replace("python3 -m agent", "/usr/bin/python3 /usr/bin/pod-agent"),
    )
    if with_ray:
        names = (*names, "ray", "raylet", "gcs_server", "ray::IDLE")
        lines = (*lines, "ray start --head --block", "raylet/raylet --node_ip_address=10.0.0.1")
    return _Victims(names, lines, with_ray)


# --- what is read --------------------------------------------------------------------------------


def _inline_text(command: Sequence[str]) -> str:
    """Return the text of `bash -c '…'`, or ''."""
    if not command or not _SHELLS.fullmatch(PurePath(command[0]).name):
        return ""
    for at, word in enumerate(command[1:], 1):
        is_flag = word.startswith("-") and not word.startswith("--")
        if is_flag and word.endswith("c") and at + 1 < len(command):
            return command[at + 1]
        if not word.startswith("-"):
            break
    return ""


def _script(command: Sequence[str]) -> str:
    """Return the path of the command's script: its program, or the first word that is a file."""
    for at, word in enumerate(command):
        if "{" in word:
            continue
        is_named = word.endswith((".py", ".sh", ".bash"))
        if (is_named or at == 0) and _is_text(word):
            return word
    return ""


def _is_text(word: str) -> bool:
    """Return whether a word is a file of a script: by its name, or its first two bytes."""
    try:
        path = Path(word)
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return False
        if word.endswith((".py", ".sh", ".bash")):
            return True
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except (OSError, ValueError):
        return False


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- shell ---------------------------------------------------------------------------------------

_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_PREFIXES = {
    *("sudo", "command", "exec", "nohup", "time", "env", "nice", "timeout", "setsid"),
    *("if", "then", "elif", "else", "while", "until", "do", "!", "{", "("),
}
"""Words before a command, which may have flags and numbers."""
_OPENS = {"if", "while", "until", "for", "case", "select", "function", "{"}
_CLOSES = {"fi", "done", "esac", "}"}
_NO_COMMAND = {"for", "case", "select", "function", *_CLOSES}
"""Words that open or close a block whose further words on the line are no command."""
_MOST_SCRIPTS = 16  # that a script starts, and that are read
_SOURCES = {"source", "."}
_SHOWN_LINE = 200
_OPERATORS = set(";&|()`")
"""The characters between two commands of a line."""


class _Command(Value):
    """One command of a script."""

    words: tuple[str, ...]
    is_sure: bool  # False below a condition, in a loop or in a function: it may not be reached


def _with_called(text: str, path: str, victims: _Victims) -> Iterator[EndingLine]:
    """Yield the lines of a script, and of those that it starts or sources, that end something."""
    seen = {path}
    for number, line, commands in _lines_with_commands(text):
        if line.rstrip().endswith(IGNORE):
            continue
        ending = [command for command in commands if _command_ends(command.words, victims)]
        ending += _searching_kills(commands, victims)
        if ending:
            is_sure = any(command.is_sure for command in ending)
            yield EndingLine(path, number, line.strip()[:_SHOWN_LINE], is_sure)

        for command in commands:
            called = _called_script(command.words, path)
            if not called or called in seen or len(seen) > _MOST_SCRIPTS:
                continue
            seen.add(called)
            yield from _in_called(called, victims, is_sure=command.is_sure)


def _in_called(path: str, victims: _Victims, *, is_sure: bool) -> Iterator[EndingLine]:
    """Yield such lines of a script that another one starts; what it starts itself is not read."""
    text = _text(path)
    if _is_python(text, path):
        return
    for number, line, commands in _lines_with_commands(text):
        ending = [command for command in commands if _command_ends(command.words, victims)]
        ending += _searching_kills(commands, victims)
        if ending and not line.rstrip().endswith(IGNORE):
            reached = is_sure and any(command.is_sure for command in ending)
            yield EndingLine(path, number, line.strip()[:_SHOWN_LINE], reached)


_OF_ITS_FOLDER = re.compile(r"^\$(?:\w+|\{[^}]+\}|\(.*\))/")
"""A variable or command at the start of a path, usually the folder of the script itself."""


def _called_script(words: Sequence[str], path: str) -> str:
    """Return the script that a command starts by a shell, by its path, or sources; '' for none."""
    program = words[0]
    candidates = [word for word in words[1:] if not word.startswith("-")][:1]
    is_program = program.endswith((".sh", ".bash"))
    if is_program:
        candidates = [program]
    elif program not in _SOURCES and not _SHELLS.fullmatch(PurePath(program).name):
        return ""
    for word in candidates:
        beside = _OF_ITS_FOLDER.sub("", word)
        places = [str(PurePath(path).parent / beside)]
        if beside == word:
            places.insert(0, word)  # where the job runs comes first
        for place in places:
            if _is_text(place):
                return place
    return ""


def _lines_with_commands(text: str) -> Iterator[tuple[int, str, list[_Command]]]:
    """Yield each line with its number and its commands."""
    depth = 0
    here = ""
    for number, line in _whole_lines(text):
        # Inside a here-document nothing is a command of this shell.
        if here:
            if line.strip() == here:
                here = ""
            continue
        opened = _HERE.search(line)
        if opened is not None:
            here = opened[2]
        commands, depth = _commands(line, depth)
        yield number, line, commands


def _searching_kills(commands: Sequence[_Command], victims: _Victims) -> list[_Command]:
    """Return the search of `ps aux | grep python | xargs kill -9`, or of `kill -9 $(pgrep ray)`."""
    kills = any(
        command.words[:1] == ("kill",) or command.words[:2] == ("xargs", "kill")
        for command in commands
    )
    searched = [command for command in commands if command.words[0] in {"grep", "pgrep", "pidof"}]
    return [command for command in searched if kills and _search_matches(command.words, victims)]


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers; one that ends with a backslash goes on in the next."""
    begun = 0
    parts: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun or number
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield begun, " ".join([*parts, line])
        begun = 0
        parts = []
    if parts:
        yield begun, " ".join(parts)


def _ends(line: str, victims: _Victims) -> bool:
    """Return whether one of a line's commands ends the agent or its Ray."""
    commands, _ = _commands(line)
    ends_by_itself = any(_command_ends(command.words, victims) for command in commands)
    return ends_by_itself or bool(_searching_kills(commands, victims))


def _commands(line: str, depth: int = 0) -> tuple[list[_Command], int]:
    """Return the commands of a line, and how many blocks are open after it.

    A comment is none, and a text in quotes is one word, whatever it says.
    """
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()`")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        tokens = list(lexer)
    except ValueError:  # quotes that end on another line
        return [], depth

    parsed: list[_Command] = []
    words: list[str] = []
    is_conditional = False  # after && or ||
    for part in [*tokens, ";"]:
        if part != "$" and not set(part) <= _OPERATORS:
            words.append(part)
            continue
        if words:
            command, depth = _parsed(words, depth, is_conditional=is_conditional)
            parsed += command
        words = []
        if part in {"&&", "||"}:
            is_conditional = True
        elif part in {";", "&", ";;"}:
            is_conditional = False
    return parsed, depth


def _parsed(words: list[str], depth: int, *, is_conditional: bool) -> tuple[list[_Command], int]:
    """Return the command in some words, if there is one, and the depth after them."""
    is_sure = depth == 0 and not is_conditional
    for at, word in enumerate(words):
        is_keyword = word in _PREFIXES or word in _NO_COMMAND or word in _OPENS
        if not is_keyword:
            break
        if word in _CLOSES:
            depth = max(0, depth - 1)
        elif word in _OPENS:
            depth += 1
        if word in _NO_COMMAND:
            rest = words[at + 1 :]
            if word == "function" and rest[-1:] != ["{"]:
                depth -= 1  # its block opens on another line
            return [], depth
        if word == "{":
            is_sure = False
    bare = _without_prefix(words)
    return ([_Command(tuple(bare), is_sure)] if bare else []), depth


def _without_prefix(words: Sequence[str]) -> list[str]:
    """Drop assignments, and words such as `sudo`, with their flags and numbers."""
    at = 0
    seen_prefix = False
    while at < len(words):
        word = words[at]
        is_assignment = re.fullmatch(r"\w+=.*", word, re.DOTALL) is not None
        is_option = seen_prefix and re.fullmatch(r"-\S*|\d+[smh]?", word) is not None
        if word not in _PREFIXES and not is_assignment and not is_option:
            break
        seen_prefix = seen_prefix or word in _PREFIXES
        at += 1
    bare = list(words[at:])
    if not bare:
        return []
    if bare[0] == "xargs":
        rest = [word for word in bare[1:] if not word.startswith("-")]
        return ["xargs", *rest]
    return [PurePath(bare[0]).name, *bare[1:]]


_PKILL_TAKES = {"-u", "-U", "-G", "-t", "--euid", "--uid", "--group", "--terminal", "--signal"}
_PKILL_LIMITS = ("-P", "--parent", "-g", "--pgroup", "-s", "--session", "-F", "--pidfile", "-v")
_KILLALL_TAKES = {"-u", "--user", "-s", "--signal", "-o", "-y", "-n", "--ns"}


def _command_ends(words: Sequence[str], victims: _Victims) -> bool:
    program = words[0]
    if program == "ray":
        return victims.has_ray and list(words[1:2]) == ["stop"]
    if program == "pkill":
        return _search_matches(words, victims)
    if program == "killall":
        names = _operands(words[1:], _KILLALL_TAKES)
        is_pattern = "-r" in words or "--regexp" in words
        return any(_name_matches(name, victims, is_pattern=is_pattern) for name in names)
    if program == "killall5":
        return True
    return program == "kill" and words[-1] == "-1" and len(words) > 2  # every process


def _operands(words: Sequence[str], taking: set[str]) -> list[str]:
    """Return the words that are neither flags nor the value of one."""
    operands = []
    skips = False
    for word in words:
        if skips:
            skips = False
        elif word.startswith("-"):
            skips = word in taking
        elif re.match(r"\d*[<>]", word) is None:
            operands.append(word)
    return operands


def _name_matches(name: str, victims: _Victims, *, is_pattern: bool) -> bool:
    if is_pattern:
        return any(_matches(name, victim) for victim in victims.names)
    return name in victims.names


def _search_matches(words: Sequence[str], victims: _Victims) -> bool:
    """Return whether the pattern of pkill, pgrep, pidof or grep finds one of the victims."""
    flags = [word for word in words[1:] if word.startswith("-")]
    if words[0] != "grep" and any(flag.startswith(_PKILL_LIMITS) for flag in flags):
        return False
    if words[0] == "grep" and any(flag.startswith("-") and "v" in flag for flag in flags):
        return False
    operands = _operands(words[1:], set() if words[0] == "grep" else _PKILL_TAKES)
    if not operands or "$" in operands[0]:
        return False
    pattern = operands[0]
    if words[0] == "pidof":
        return pattern in victims.names
    is_full = words[0] == "grep" or any(
        flag == "--full" or re.fullmatch(r"-\w*f\w*", flag) for flag in flags
    )
    is_exact = any(flag == "--exact" or re.fullmatch(r"-\w*x\w*", flag) for flag in flags)
    texts = victims.lines if is_full else victims.names
    if is_exact:
        pattern = f"^(?:{pattern})$"
    return any(_matches(pattern, text) for text in texts)


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False


# --- Python --------------------------------------------------------------------------------------

_RUNS = {
    *("system", "popen", "run", "call", "check_call", "check_output", "Popen", "getoutput"),
    *("getstatusoutput", "exec_command", "execute"),
}


def _in_python(text: str, path: str, victims: _Victims) -> Iterator[EndingLine]:
    """Yield calls that run such a command; one within a function or `if` may not be reached."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    at_top = {id(node.value) for node in tree.body if isinstance(node, ast.Expr | ast.Assign)}
    lines = text.splitlines()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: node.lineno):
        line = lines[call.lineno - 1]
        runs = any(_ends(shell_line, victims) for shell_line in _shell_text(call).splitlines())
        if runs and not line.rstrip().endswith(IGNORE):
            yield EndingLine(path, call.lineno, line.strip()[:200], id(call) in at_top)


def _shell_text(call: ast.Call) -> str:
    """Return the command that a call of `os.system` or `subprocess` runs, as far as it is text."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in _RUNS or not call.args:
        return ""
    first = call.args[0]
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    if isinstance(first, ast.JoinedStr):  # with every text that it may contain
        return "".join(_texts_in(first))
    if isinstance(first, ast.List | ast.Tuple):
        words = [item.value for item in first.elts if isinstance(item, ast.Constant)]
        return shlex.join(map(str, words))
    return ""


def _texts_in(node: ast.AST) -> Iterator[str]:
    """Yield the texts in an expression, in their order."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from _texts_in(child)
