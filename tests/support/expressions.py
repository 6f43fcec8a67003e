"""The regular expressions of `agent/`, and texts that make a careless one slow.

A text repeats fragments of an expression's own literals: an expression that reads on from each of
them, in vain, takes the square of the text's length. Fragments come from the parsed expression.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from agent.diagnosis import rows
from agent.diagnosis.errors import roles
from agent.job.progress import all_formats
from support.sources import modules, nodes, trees

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator
    from types import ModuleType

_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


class Expression(NamedTuple):
    """An expression, and how the agent applies it to a text."""

    place: str
    pattern: re.Pattern[str]
    method: str  # match, fullmatch or search; finditer: through the whole text
    most: int | None = None  # characters of a text that it is applied to; None: all

    def apply(self, text: str) -> None:
        """Apply the expression to a text."""
        if self.method == "finditer":
            for _ in self.pattern.finditer(text):
                pass
        else:
            getattr(self.pattern, self.method)(text)


class Text(NamedTuple):
    """A beginning, and a part that is repeated behind it."""

    begin: str
    repeated: str

    def of(self, length: int) -> str:
        """Return the text in so many characters."""
        times = length // len(self.repeated) + 1
        return f"{self.begin}{self.repeated * times}"[:length]


# --- expressions ----------------------------------------------------------------------------------

_METHODS = {
    **{name: name for name in ("match", "fullmatch", "search")},
    **dict.fromkeys(("sub", "subn", "split", "findall", "finditer"), "finditer"),
}


def in_sources() -> tuple[list[Expression], set[str]]:
    """Return the expressions in the sources, and the files that also make some in functions."""
    found: dict[tuple[str, int, str], Expression] = {}
    others = set[str]()
    kept: dict[tuple[str, int], Expression] = {}
    for name, file in modules().items():
        if not _imports_re(trees()[file]):
            continue
        module = importlib.import_module(name)
        for attribute, value in vars(module).items():
            for known in _patterns(value):
                place = f"{file}: {attribute}"
                kept.setdefault(_key(known), Expression(place, known, "finditer"))
        for call in _calls(trees()[file]):
            place = f"{file}: {ast.unparse(call)}"
            pattern, method = _applied(call, module)
            if pattern is not None:
                found.setdefault((*_key(pattern), method), Expression(place, pattern, method))
            elif method:
                others.add(file)

    # One in a table may be applied in any way.
    applied = {(pattern, flags) for pattern, flags, _ in found}
    in_tables = [expression for key, expression in kept.items() if key not in applied]
    return [*found.values(), *in_tables], others


def of_lines() -> list[Expression]:
    """Return the expressions for lines with a step."""
    lines = dict.fromkeys(line for known in all_formats() for line in known.lines)
    return [
        Expression(
            f"a line with {line.sign!r}",
            re.compile(line.pattern, re.DOTALL),
            "match" if line.begins else "search",
        )
        for line in lines
    ]


def of_rows() -> list[Expression]:
    """Return the expressions in rows.toml."""
    fields = {
        "near": rows.MOST_AROUND,
        "caller": rows.MOST_AROUND,
        "only": rows.MOST_SEARCHED,
        "unless": rows.MOST_SEARCHED,
    }
    found: dict[str, Expression] = {}
    for row in rows.table().values():
        named = [("reads", row.reads, rows.MOST_READ), ("asks", row.asks, rows.MOST_ASKED)]
        named += [("a case", case.asks, rows.MOST_ASKED) for case in row.cases]
        for words in row.words:
            named += [(field, getattr(words, field), most) for field, most in fields.items()]
        for field, pattern, most in named:
            if pattern:
                place = f"rows.toml: {field} of {row.key!r}"
                how = "match" if field in {"asks", "a case"} else "search"
                expression = Expression(place, re.compile(pattern), how, most)
                found.setdefault(pattern, expression)
    for name in get_args(roles.RoleName):
        for how, compiled in roles.patterns(name).items():
            found[f"{name} {how}"] = Expression(f"rows.toml: role {name!r}", compiled, how)
    return [*found.values()]


def _imports_re(tree: ast.Module) -> bool:
    imports = (node for node in nodes(tree) if isinstance(node, ast.Import))
    return any(alias.name == "re" for node in imports for alias in node.names)


def _key(pattern: re.Pattern[str]) -> tuple[str, int]:
    return pattern.pattern, pattern.flags


def _patterns(value: object) -> Iterator[re.Pattern[str]]:
    """Yield the expressions that are a module's value, or in it."""
    if isinstance(value, re.Pattern):
        yield _of_text(value)
    elif isinstance(value, tuple | list | set | frozenset):
        for part in value:
            yield from _patterns(part)
    elif isinstance(value, dict):
        for item in value.items():
            yield from _patterns(item)


def _of_text(pattern: re.Pattern[Any]) -> re.Pattern[str]:
    """Return an expression for bytes as one for text."""
    if isinstance(pattern.pattern, str):
        return pattern
    return re.compile(pattern.pattern.decode("latin-1"), pattern.flags)


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls in functions: what stands outside them is kept by the module."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    for function in nodes(tree):
        if isinstance(function, functions):
            yield from (node for node in ast.walk(function) if isinstance(node, ast.Call))


def _applied(call: ast.Call, module: ModuleType) -> tuple[re.Pattern[str] | None, str]:
    """Return the expression of a call, and its method; no expression where it is not known."""
    if not isinstance(call.func, ast.Attribute):
        return None, ""
    method = _METHODS.get(call.func.attr, "")
    owner = _value(call.func.value, module)
    if isinstance(owner, re.Pattern):
        return _of_text(owner), method
    if owner is not re:
        return None, ""
    if call.func.attr == "compile":
        method = "finditer"
    values = [_value(argument, module) for argument in call.args]
    values += [_value(keyword.value, module) for keyword in call.keywords]
    pattern = values[0] if values else None
    if not isinstance(pattern, str) or not method:
        return None, method
    flags = [flag for flag in values if isinstance(flag, re.RegexFlag)]
    return re.compile(pattern, sum(flags)), method


def _value(node: ast.expr, module: ModuleType) -> object:
    """Return the value of a constant, a name or an attribute in a module; None if not known."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return getattr(module, node.id, None)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, module), node.attr, None)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        is_compiled = _value(node.func, module) is rows.compiled
        pattern = _value(node.args[0], module) if is_compiled else None
        return re.compile(pattern) if isinstance(pattern, str) else None
    return None


# --- texts ----------------------------------------------------------------------------------------

_IN_CATEGORY = {
    "CATEGORY_WORD": "a_0",
    "CATEGORY_DIGIT": "1",
    "CATEGORY_SPACE": " \t",
    "CATEGORY_NOT_WORD": "-",
}
_ANY = "xa-1 _.:/=(\"'\\"
_LONG = 8  # repetitions of a part that may be worth a text of its own


def texts(expression: Expression, chance: random.Random, pairs: int) -> list[Text]:
    """Return texts of an expression's own fragments, with so many random pairs of them."""
    tree = _parser.parse(expression.pattern.pattern, expression.pattern.flags)
    parts = [*_parts(tree, "")]
    single = list(dict.fromkeys(part for part in parts if isinstance(part, str)))
    pumped = [part for part in parts if isinstance(part, Text)]

    every = [Text("", part) for part in (*single, _example(tree))]
    every += [*pumped, *(Text("", text.begin + text.repeated) for text in pumped)]
    both = [Text("", a + b) for a, b in itertools.permutations(single, 2)]
    every += both if len(both) <= pairs else chance.sample(both, pairs)
    return [text for text in dict.fromkeys(every) if text.repeated]


def _parts(tree: Any, before: str) -> Iterator[str | Text]:  # noqa: ANN401 - of Python's own parser
    """Yield the literals, one sign of each kind of signs, and each part that may be repeated."""
    literal = ""
    for node, value in tree:
        kind = str(node)
        if kind == "LITERAL":
            literal += chr(value)
            before += chr(value)
            continue
        if literal:
            yield literal
            literal = ""
        if kind == "IN":
            yield from _members(value)
        elif kind == "ANY":
            yield "x"
        elif kind == "BRANCH":
            for branch in value[1]:
                yield from _parts(branch, before)
        elif kind.endswith("REPEAT"):
            _, most, body = value
            repeated = [_example(body)]
            if len(body) == 1 and str(body[0][0]) == "IN":
                repeated += _members(body[0][1])
            if most > _LONG:
                yield from (Text(before, part) for part in repeated)
            yield from _parts(body, before)
        else:
            for inner in _inner(kind, value):
                yield from _parts(inner, before)
        before += _example([(node, value)])
    if literal:
        yield literal


def _inner(kind: str, value: Any) -> list[Any]:  # noqa: ANN401 - of Python's own parser
    """Return the expression in a group."""
    if kind == "SUBPATTERN":
        return [value[3]]
    if kind in {"ASSERT", "ASSERT_NOT"}:
        return [value[1]]
    return [value] if kind == "ATOMIC_GROUP" else []


def _members(items: Iterable[Any]) -> list[str]:
    """Return one sign of each kind in a class of signs."""
    members = []
    is_negated = False
    for node, value in items:
        kind = str(node)
        is_negated = is_negated or kind == "NEGATE"
        if kind == "LITERAL":
            members.append(chr(value))
        elif kind == "RANGE":
            members.append(chr(value[0]))
        elif kind == "CATEGORY":
            members += _IN_CATEGORY.get(str(value), "x")
    if is_negated:
        return [sign for sign in _ANY if sign not in members][:4]
    return members


def _example(tree: Any) -> str:  # noqa: ANN401 - of Python's own parser
    """Return a short text that an expression matches, apart from what is ahead of and behind it."""
    text = ""
    for node, value in tree:
        kind = str(node)
        if kind == "LITERAL":
            text += chr(value)
        elif kind in {"ANY", "NOT_LITERAL"}:
            text += "x"
        elif kind == "IN":
            text += "".join(_members(value)[:1])
        elif kind == "BRANCH":
            text += _example(value[1][0])
        elif kind.endswith("REPEAT"):
            text += _example(value[2]) * min(value[0], 300)
        elif not kind.startswith("ASSERT"):
            text += "".join(map(_example, _inner(kind, value)))
    return text
