"""Entry point of scripts/gpu: `pack` in .venv, `run` in the machine's Python."""

from __future__ import annotations

import sys

from tools.gpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
