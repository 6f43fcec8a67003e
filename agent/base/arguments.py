"""A parser of a command line whose errors begin with what is wrong."""

from __future__ import annotations

import argparse
from typing import NoReturn


class VerbParser(argparse.ArgumentParser):
    """A parser whose errors are one line, which names the help in place of the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2, the message, and where to read on."""
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"{self.prog}: {message}{end} `{self.prog} --help` lists what it takes\n")
