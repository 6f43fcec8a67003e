"""Entry point of scripts/faults, in .venv."""

from __future__ import annotations

import sys

from tools.faults.cli import main

if __name__ == "__main__":
    sys.exit(main())
