"""Stand-ins for heavy modules that a parser's file imports but does not use for parsing."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from typing_extensions import Self

STUB_VERSION = "99.0"


class Shape(type):
    """A stub: a class, so that it can be inherited from, called, subscripted, iterated."""

    def __getattr__(cls, name: str) -> Any:  # noqa: ANN401 - it stands for anything
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
        """Act as a decorator or any other callable."""
        if cls is not Anything:
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]  # used as a decorator: return the decorated object unchanged
        return StubResult()

    def __getitem__(cls, _item: object) -> Any:  # noqa: ANN401 - the same
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __bool__(cls) -> bool:
        return True


class StubResult:
    """The result of a stub's call: false, empty, zero, and valid for any operation."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it stands for anything
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
        """Return another such result."""
        return Anything(*args, **kwargs)

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        return 0

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


class Anything(metaclass=Shape):
    """The stub itself."""


class StubModule(ModuleType):
    """A module with every attribute."""

    __version__ = STUB_VERSION
    __path__: list[str] = []  # noqa: RUF012 - the import system reads it to find children

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it stands for anything
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stub for the modules of a closed list only."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a stub's spec for a listed module and its children."""
        if fullname.split(".", maxsplit=1)[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Create the module."""
        return StubModule(spec.name)

    def exec_module(self, _module: ModuleType) -> None:
        """Run nothing."""


def install(names: Collection[str]) -> None:
    """Replace these modules by stubs, whether they are installed or not."""
    sys.meta_path.insert(0, Finder(names))
