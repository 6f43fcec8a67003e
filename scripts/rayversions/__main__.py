"""Entry point of scripts/versions, in .venv."""

from __future__ import annotations

import sys

from rayversions.cli import main

if __name__ == "__main__":
    sys.exit(main())
