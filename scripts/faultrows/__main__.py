"""Entry point of scripts/faults, in .venv."""

from __future__ import annotations

import sys

from faultrows.cli import main

if __name__ == "__main__":
    sys.exit(main())
