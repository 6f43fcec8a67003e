"""Entry point of scripts/versions, in .venv."""

from __future__ import annotations

import sys

from tools.versions.cli import main

if __name__ == "__main__":
    sys.exit(main())
