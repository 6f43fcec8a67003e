"""README and docs: generated parts are up to date, and links, names and scripts exist."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from agent.settings.jobs import BY_NAME
from agent.settings.model import KNOWN_NAMES
from agent.settings.model import VARIABLES as SETTINGS
from support.golden import assert_golden
from support.sources import BUNDLED, DOCS, FOLDERS, README, ROOT, name_of
from tools.architecture.__main__ import main
from tools.architecture.imports import FolderMap, read_folders
from tools.architecture.picture import draw

if TYPE_CHECKING:
    from pathlib import Path

WORDS_PER_MINUTE = 160  # of technical text
VARIABLES = ROOT / "docs/reference/env.md"
SET_FOR_THE_JOB = {"AGENT_ATTEMPT", "AGENT_PROGRESS_FILE"}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"`([\w.]+)`\s+(?:in|of)\s+\[[^\]]*\]\(([^)\s]+)\)")


def test_the_picture_and_the_table_are_not_stale(capsys: pytest.CaptureFixture[str]) -> None:
    """What is committed is what `./scripts/architecture` draws."""
    stale = main(["--check"])
    assert (stale, capsys.readouterr().out) == (0, "")


def test_a_stale_file_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--check says which file to draw anew, and draws nothing."""
    path = ROOT / "docs" / "architecture.svg"
    before = path.read_bytes()
    monkeypatch.setattr("tools.architecture.__main__.wanted", lambda _: {path: "<svg/>"})
    assert main(["--check"]) == 1
    assert "docs/architecture.svg is stale: run ./scripts/architecture" in capsys.readouterr().out
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def folder_map() -> FolderMap:
    """Return the folders of `agent/` with their imports."""
    return read_folders(ROOT)


def test_the_picture_has_every_folder_in_its_order(folder_map: FolderMap) -> None:
    """The order of the architecture test; separate programs are outside of it."""
    assert folder_map.folders == (*FOLDERS, BUNDLED, "__main__")
    assert folder_map.apart == (BUNDLED,)
    assert all(folder_map.purposes[folder] for folder in folder_map.folders)


def test_the_picture_is_text_for_light_and_dark(folder_map: FolderMap) -> None:
    """It is well-formed, its words are text, and it follows the reader's color scheme."""
    text = draw(folder_map)
    words = [e.text for e in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314 - our own
    assert set(FOLDERS) <= set(words)
    assert "@media (prefers-color-scheme: dark)" in text
    assert "dot back" not in text


def test_an_import_that_goes_the_wrong_way_stands_out() -> None:
    """A forbidden import is drawn in red, and does not break the drawing."""
    folder_map = FolderMap(
        ("low", "high"), (), {"low": "<a> & b", "high": ""}, {("low", "high"): 3}
    )
    text = draw(folder_map)
    ET.fromstring(text)  # noqa: S314 - our own
    assert "dot back" in text


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    """Every file and heading that a document links to exists."""
    broken = []
    for link in LINK.findall(path.read_text()):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file) if file else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert broken == []


def test_every_page_is_linked() -> None:
    """A reader of the README reaches every page, over others if need be."""
    reached, waiting = set(), [README]
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        for link in LINK.findall(path.read_text()):
            target = (path.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists():
                waiting.append(target)
    assert [name_of(path) for path in DOCS if path.resolve() not in reached] == []


def test_the_readme_is_short() -> None:
    """It is read in ten minutes; everything else is in docs/."""
    words = re.findall(r"[A-Za-z]{2,}", README.read_text())
    assert len(words) <= 10 * WORDS_PER_MINUTE


def test_the_table_of_variables_is_generated() -> None:
    """docs/reference/env.md has the table of the settings."""
    text = VARIABLES.read_text()
    found = re.search(r"<!-- env -->\n(.*?)<!-- /env -->", text, re.DOTALL)
    assert found
    rows = ["| variable | meaning | default |", "| --- | --- | --- |"]
    for name, about in SETTINGS.items():
        extra = " (or `RAY_AUTH_TOKEN_PATH`)" if name == "RAY_AUTH_TOKEN" else ""
        rows.append(f"| `{name}`{extra} | {about.meaning} | {about.default_text} |")
    table = "\n".join(rows) + "\n"
    assert_golden(VARIABLES, text.replace(found[1], table))


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_variables_and_scripts_exist(path: Path) -> None:
    """Every AGENT_* name is a setting, and every script is executable."""
    text = path.read_text()
    names = set(re.findall(r"\bAGENT_[A-Z_]+[A-Z]\b", text)) - SET_FOR_THE_JOB
    assert names <= {*KNOWN_NAMES}, names - {*KNOWN_NAMES}
    assert [name for name in scripts_of(text) if not os.access(ROOT / name, os.X_OK)] == []


def scripts_of(text: str) -> set[str]:
    """Return the scripts of ours that a page names: they have neither folders nor endings."""
    return set(re.findall(r"(?<![\w/])(?:\./)?(scripts/\w+)(?![\w/-]|\.\w)", text))


def test_a_script_of_another_project_is_none_of_ours() -> None:
    """Its name has a dash, a folder or an ending; a sentence may end behind one of ours."""
    theirs = (
        "`bash scripts/run-qwen3-4B.sh`, `scripts/models/a.sh`, `slime/scripts/run` scripts/a.py"
    )
    assert scripts_of(theirs) == set()
    assert scripts_of("`./scripts/demo --pods 3`; see scripts/bench.") == {
        "scripts/demo",
        "scripts/bench",
    }


@pytest.mark.parametrize(
    ("page", "part"),
    [
        ("README.md", "transcript"),
        ("docs/evidence/bench.md", "bench"),
        ("docs/evidence/versions.md", "versions"),
        ("docs/evidence/frameworks.md", "frameworks"),
    ],
)
def test_results_are_shown(page: str, part: str) -> None:
    """Transcript and measurements, which scripts write, are there."""
    found = re.search(
        rf"<!-- {part} -->\n(.*?)<!-- /{part} -->", (ROOT / page).read_text(), re.DOTALL
    )
    assert found
    assert len(found[1].splitlines()) > 3


def test_no_address_of_a_package_index() -> None:
    """The pins name packages and versions, and no place to fetch them from."""
    for path in (*ROOT.glob("requirements/*"), ROOT / "pyproject.toml"):
        assert "://" not in path.read_text(), path


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_names_are_where_a_document_says(path: Path) -> None:
    """A name that a document places in a linked file is there; a file of agent/ defines it."""
    elsewhere = []
    for name, link in NAMED.findall(path.read_text()):
        word = re.escape(name)
        place = rf"\b{word}\b"
        if "agent/" in link and link.endswith(".py"):
            place = rf"^ *(?:async )?(?:def|class) {word}\b|^ *(?:self\.)?{word}\b.*[=:]"
        if not re.search(place, (path.parent / link).read_text(), re.MULTILINE):
            elsewhere.append(f"{name} in {link}")
    assert elsewhere == []


def test_the_way_from_a_script_names_what_is() -> None:
    """Every variable and recipe in a script's messages exists."""
    text = (ROOT / "docs/migrate.md").read_text(encoding="utf-8")
    assert set(re.findall(r"AGENT_[A-Z_]+", text)) <= set(KNOWN_NAMES)
    assert set(re.findall(r"AGENT_JOB=([\w-]+)", text)) <= set(BY_NAME)
