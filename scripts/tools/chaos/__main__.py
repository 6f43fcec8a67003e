"""Entry point of scripts/chaos, in .venv."""

from __future__ import annotations

import sys

from tools.chaos.cli import main

if __name__ == "__main__":
    sys.exit(main())
