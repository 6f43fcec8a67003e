"""One table of a TOML file: gives what its keys hold, and notes what cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.base.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Table:
    """One table of a file: gives what its keys hold, and notes what cannot be."""

    def __init__(
        self, data: Mapping[str, Any], label: str, prefix: str, problems: list[Problem]
    ) -> None:
        self.data = data
        self._label = label
        """The file, and the table that is named in it."""
        self._prefix = prefix
        """What its keys are part of, such as `ready.`."""
        self.problems = problems

    def wrong(self, key: str, got: object, expected: str) -> None:
        """Note what is wrong with a key."""
        shown = got if isinstance(got, str) else repr(got)
        where = f"{self._label} {self._prefix}{key}".rstrip(". ")
        self.problems.append(Problem(where, shown, expected))

    def nothing_else(self, known: Iterable[str]) -> None:
        """Note every key that nothing reads."""
        keys = tuple(known)
        for key in self.data:
            if key not in keys:
                self.wrong(key, "an unknown key", f"one of {', '.join(keys)}")

    def tables(self, key: str) -> dict[str, Table]:
        """Return the tables of which a table consists, each by its name."""
        found = self.data.get(key, {})
        if not isinstance(found, dict):
            self.wrong(key, found, f"tables such as [{key}.NAME]")
            return {}
        made = {}
        for name, table in found.items():
            label = f"{self._label} [{key}.{name}]"
            if isinstance(table, dict):
                made[name] = Table(table, label, "", self.problems)
            else:
                self.problems.append(Problem(label, repr(table), f"a table [{key}.{name}]"))
        return made

    def inner(self, key: str) -> Table:
        """Return a table of keys that belong together; an empty one where there is none."""
        found = self.data.get(key, {})
        if not isinstance(found, dict):
            self.wrong(key, found, f"keys such as {key}.within")
            found = {}
        return Table(found, self._label, f"{key}.", self.problems)

    def text(self, key: str, expected: str) -> str | None:
        """Return a text that says something."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            self.wrong(key, value, expected)
            return None
        return value

    def read(self, key: str, reader: Callable[[str], float], default: float) -> float:
        """Return what a reader makes of a text or a number."""
        value = self.data.get(key)
        if value is None:
            return default
        try:
            return reader("" if isinstance(value, bool) else str(value))
        except ValueError as error:
            self.wrong(key, value, str(error))
            return default

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            self.wrong(key, value, "true or false, without quotes")
            return default
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        """Return a whole number."""
        value = self.data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.wrong(key, value, f"a whole number from {low} to {high}")
            return default
        return value
