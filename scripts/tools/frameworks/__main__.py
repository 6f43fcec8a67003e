"""Entry point of scripts/frameworks, in .venv."""

from __future__ import annotations

import sys

from tools.frameworks.cli import main

if __name__ == "__main__":
    sys.exit(main())
