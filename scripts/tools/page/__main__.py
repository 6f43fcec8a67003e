"""Entry point of scripts/page, in .venv."""

from __future__ import annotations

import sys

from tools.page.cli import main

if __name__ == "__main__":
    sys.exit(main())
