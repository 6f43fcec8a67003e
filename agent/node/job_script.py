"""Lines of a job's script that do what the agent does, or end it, such as `ray start`.

Many frameworks' scripts clean up a machine, start Ray and submit the job themselves. Under the
agent that ends the run, or starts a Ray beside its own.

1. A comment, a quoted text and a here-document contain no command of a shell: they are blanked.
2. What is left is cut into commands at `;`, `&`, `|` and parentheses.
3. Each command is compared with the expressions of `_OF_RAY`.

Python files are searched for `ray.init(…)`, and for such commands in the texts that they run.
Scripts that a script starts or sources are read as well, but not what those start.
"""

from __future__ import annotations

import ast
import re
import shlex
from itertools import islice, takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.value import Value
from agent.node.facts import ScriptLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.node.facts import ScriptAction

IGNORE = "# pod-agent: ignore"
"""A comment by which a user insists on a line."""
COMMAND = "the command after --"
"""The path of a line of the command itself."""
_LARGEST = 1 << 20  # bytes of a script that is read
_MOST = 10  # lines that are named
_MOST_SCRIPTS = 16  # that a script starts, and that are read
_SHOWN_LINE = 200  # characters
_SCRIPTS = (".py", ".sh", ".bash")


def script_lines(
    command: Sequence[str], *, with_ray: bool, folder: Path | None = None
) -> tuple[ScriptLine, ...]:
    """Return the first lines of a job's command and scripts that would end or repeat the agent.

    `with_ray` is true if the agent starts a Ray: without it no word of Ray matters. The command
    runs in `folder`, by default in the current one.
    """
    reader = _ScriptReader(folder or Path(), with_ray=with_ray)
    return tuple(islice(reader.in_command(command), _MOST))


# --- commands of a shell -------------------------------------------------------------------------

_SILENT = re.compile(
    r"""
      \\[\s\S]                                   # an escaped character; a line that goes on
    | (?<!\S)\#.*                                # a comment
    | (?<!<)<<-?[ ]*(['"]?)([A-Za-z_]\w*)\1.*    # a here-document, to the line that ends it
      (?:\n(?![ \t]*\2[ \t]*$).*)*
    | \$'(?:[^'\\]|\\[\s\S])*'?
    | '[^']*'?
    | "(?:[^"\\]|\\[\s\S])*"?
    """,
    re.VERBOSE | re.MULTILINE,
)
_IN_QUOTES = str.maketrans({**dict.fromkeys(" \t\r\n", "_"), **dict.fromkeys(";&|()`", "'")})
"""A quoted text becomes one word; what separates commands in it becomes a quote."""
_SEPARATOR = re.compile(r"(&&|\|\||[;&|()`])")
_BEFORE = re.compile(
    r"""\s*(?:
      (?:then|do|else|elif|!|time|if|while|until|\{|sudo|command|exec|nohup|env|nice|timeout|setsid
        |[A-Za-z_]\w*=\S*)
      (?:\s+|$)
      (?:(?:-\S*|\d+[smh]?)(?:\s+|$))*
    )*""",
    re.VERBOSE,
)
"""Words before a command, with their flags and numbers."""
_CONDITION = re.compile(r"(?<!\S)(?:if|while|until)(?!\S)")
_BLOCK = re.compile(r"(?:for|case|select)(?!\S)|function\s.*\{$")
_END = re.compile(r"(?:fi|done|esac|\})(?!\S)")


class _Command(Value):
    """One command of a script, without the words before it."""

    number: int  # of its line
    line: str  # as it is in the script
    text: str
    is_sure: bool  # False below a condition, in a loop or in a function: it may not be reached


def _commands(text: str) -> Iterator[_Command]:
    """Yield the commands of a text of a shell."""
    depth = 0
    for number, line, visible in _lines(text):
        is_conditional = False
        for piece in _SEPARATOR.split(visible):
            if _SEPARATOR.fullmatch(piece):
                is_conditional = piece in {"&&", "||"} or (is_conditional and piece not in ";&")
                continue
            before = _BEFORE.match(piece)
            words = before[0] if before else ""
            bare = piece[len(words) :].strip()
            depth += words.split().count("{")
            if bare:
                yield _Command(number, line, bare, depth == 0 and not is_conditional)

            # The command of an `if` runs for certain, those behind it do not.
            opened = len(_CONDITION.findall(words)) + bool(_BLOCK.match(bare))
            depth = max(0, depth + opened - bool(_END.match(bare)))


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each line with its number, and again with only what a shell runs.

    One that ends with a backslash or within quotes goes on in the next.
    """
    number = 1
    start = 0
    for visible in _SILENT.sub(_blanked, text).split("\n"):
        end = start + len(visible)
        yield number, text[start:end], visible
        number += text.count("\n", start, end + 1)
        start = end + 1


def _blanked(found: re.Match[str]) -> str:
    """Return a text of the same length in which no command is found."""
    is_quoted = found[0][0] in "$'\""
    return found[0].translate(_IN_QUOTES) if is_quoted else " " * len(found[0])


# --- what is found -------------------------------------------------------------------------------


def _kills(names: str) -> str:
    """Return an expression for a command that ends, or searches for, processes of these names."""
    words = rf"(?:.*\s)?[\"'^.*]*(?:{names})[\d.*$:']*(?:agent)?[\"']?(?!\S)"
    return rf"(?:\S*/)?(?:pkill|killall|grep|pgrep|pidof)(?!.*\s-[PFv])\s{words}"


_AGENT = r"(?:\S*/)?pod-agent(?:\s+run)?(?:\s+--(?!\S).*)?$"
"""`pod-agent` as the start of a node: its other verbs start none."""
_OF_RAY: Mapping[ScriptAction, str] = {
    "start": r"(?:\S*/)?ray\s+start(?!\S)",
    "stop": r"(?:\S*/)?ray\s+stop(?!\S)",
    "submit": r"(?:\S*/)?ray\s+job\s+submit(?!\S)",
    "kill": _kills(r"python|pod-agent|ray(?:let|::)?|gcs_server"),
    "agent": _AGENT,
}
_WITHOUT_RAY: Mapping[ScriptAction, str] = {
    "kill": _kills(r"python|pod-agent"),
    "agent": _AGENT,
}


class _ScriptReader:
    """Reads a command and its scripts, each script once."""

    def __init__(self, folder: Path, *, with_ray: bool) -> None:
        """Leave out the words of Ray where the agent starts none."""
        self._folder = folder
        self._with_ray = with_ray
        self._actions = _OF_RAY if with_ray else _WITHOUT_RAY
        self._seen: set[str] = set()

    def in_command(self, command: Sequence[str]) -> Iterator[ScriptLine]:
        """Yield the lines of a command and of its scripts."""
        yield from self._in_shell(_inline_text(command) or shlex.join(command), COMMAND, 2)
        for word in command:  # also behind a launcher
            if word is command[0] or word.endswith(_SCRIPTS):
                yield from self._in_file(word, 1)

    def _in_file(self, path: str, levels: int) -> Iterator[ScriptLine]:
        """Yield the lines of a script; it may lead to scripts of so many more levels."""
        file = self._folder / path
        if path in self._seen or len(self._seen) >= _MOST_SCRIPTS or not _is_script(file):
            return
        self._seen.add(path)
        text = file.read_text(encoding="utf-8", errors="replace")
        if path.endswith(".py") or _OF_PYTHON.match(text):
            yield from self._in_python(text, path)
        else:
            yield from self._in_shell(text, path, levels)

    def _in_shell(self, text: str, path: str, levels: int) -> Iterator[ScriptLine]:
        last = 0
        for command in _commands(text):
            action = self._action(command)
            if action and command.number != last:
                last = command.number
                yield ScriptLine(path, last, _shown(command.line), action, command.is_sure)

            for called in _called_scripts(command.text, path) if levels else ():
                for line in self._in_file(called, levels - 1):
                    yield replace(line, is_sure=line.is_sure and command.is_sure)

    def _action(self, command: _Command) -> ScriptAction | None:
        """Return what a command does to the agent or its Ray; None if it does nothing to them."""
        if command.line.rstrip().endswith(IGNORE):
            return None
        for action, expression in self._actions.items():
            if re.match(expression, command.text):
                is_only_search = action == "kill" and "kill" not in command.line
                return None if is_only_search else action
        return None

    def _in_python(self, text: str, path: str) -> Iterator[ScriptLine]:
        """Yield calls of `ray.init`, and those that run a command which does such a thing."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return
        reached = _reached_calls(tree)
        lines = text.splitlines()
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda node: node.lineno):
            init, is_literal = _init_action(call) if self._with_ray else (None, False)
            commands = _commands(_shell_text(call))
            action = init or next(filter(None, map(self._action, commands)), None)
            if action and not lines[(call.end_lineno or call.lineno) - 1].endswith(IGNORE):
                is_sure = id(call) in reached and (is_literal or init is None)
                line = _shown(lines[call.lineno - 1])
                yield ScriptLine(path, call.lineno, line, action, is_sure)


def _shown(line: str) -> str:
    return line.strip().partition("\n")[0][:_SHOWN_LINE]


# --- Python --------------------------------------------------------------------------------------

_RUNS = {
    *("system", "popen", "run", "call", "check_call", "check_output", "Popen", "getoutput"),
    *("getstatusoutput", "exec_command", "execute"),
}


def _reached_calls(tree: ast.Module) -> set[int]:
    """Return the ids of calls that run for certain: statements of the file, or of its `main`."""
    statements = list(tree.body)
    for statement in tree.body:
        is_main = isinstance(statement, ast.FunctionDef) and statement.name == "main"
        is_program = isinstance(statement, ast.If) and "__main__" in ast.dump(statement.test)
        if is_main or is_program:
            statements += statement.body  # type: ignore[attr-defined]  # both have one
    return {
        id(statement.value)
        for statement in statements
        if isinstance(statement, ast.Expr | ast.Assign)
    }


def _init_action(call: ast.Call) -> tuple[ScriptAction | None, bool]:
    """Return what is wrong with a `ray.init(…)`, and whether the file alone shows it."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "init":
        return None, False
    if getattr(function.value, "id", "") != "ray":
        return None, False
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    address = call.args[0] if call.args else given.get("address")
    if isinstance(address, ast.Constant) and address.value not in {None, "", "auto"}:
        return "address", True
    counts = [given[name] for name in ("num_gpus", "num_cpus") if name in given]
    numbers = [count for count in counts if getattr(count, "value", 0) is not None]  # not None
    return ("size" if numbers else None), any(isinstance(one, ast.Constant) for one in numbers)


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


# --- files ---------------------------------------------------------------------------------------

_SHELLS = re.compile(r"(?:ba|da|z|k)?sh")
_CALL = re.compile(
    r"""(?:(?:source|\.|(?:\S*/)?(?:(?:ba|da|z|k)?sh|python[\d.]*))\s+(?:-\S+\s+)*)?"""
    r"""["']?(\S+\.(?:py|sh|bash))["']?(?!\S)"""
)
"""A script that a command sources, or starts by its path or by a shell or Python."""
_OF_PYTHON = re.compile(r"#!.*python")
_OF_ITS_FOLDER = re.compile(r"^\$[^/]*/")
"""A variable or command at the start of a path, usually the folder of the script itself."""


def _inline_text(command: Sequence[str]) -> str:
    """Return the text of `bash -c '…'`, or ''."""
    flags = list(takewhile(lambda word: word.startswith("-"), command[1:]))
    is_shell = _SHELLS.fullmatch(PurePath(command[0]).name) if command else None
    has_text = is_shell and flags and flags[-1].endswith("c") and len(command) > len(flags) + 1
    return command[len(flags) + 1] if has_text else ""


def _called_scripts(command: str, path: str) -> Iterator[str]:
    """Yield where the script may be that a command of another script starts or sources."""
    call = _CALL.match(command)
    if call is None:
        return
    beside = _OF_ITS_FOLDER.sub("", call[1])
    if beside == call[1]:
        yield beside  # where the job runs comes first
    yield str(PurePath(path).parent / beside)


def _is_script(path: Path) -> bool:
    """Return whether a path is a file of a script: by its name, or its first two bytes."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return False
        with path.open("rb") as file:
            return file.read(2) == b"#!" or path.name.endswith(_SCRIPTS)
    except (OSError, ValueError):
        return False
