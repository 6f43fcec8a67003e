"""`scripts/test --all` runs every test: what it leaves out goes stale."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_all_runs_every_folder_of_tests() -> None:
    """The image's tests, too, with what they need."""
    script = (ROOT / "scripts" / "test").read_text()
    lines = script.partition("\n--all)\n")[2].partition(";;")[0].splitlines()
    run = {word for line in lines if " tests/" in line for word in line.split()}
    files = [file.relative_to(ROOT) for file in (ROOT / "tests").rglob("test_*.py")]
    folders = {"/".join(file.parts[:2]) for file in files}
    assert folders - run == set()
    assert "    ./scripts/setup --image" in lines
