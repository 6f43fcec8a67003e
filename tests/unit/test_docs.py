"""The documents say what is: drawn parts are drawn anew, links lead somewhere, names exist."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from agent.settings.jobs import BY_NAME
from agent.settings.model import KNOWN_NAMES
from import_map.__main__ import main, wanted
from import_map.imports import House, read_house
from import_map.picture import draw
from unit.test_architecture import BUNDLED, FOLDERS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCS = sorted((ROOT / "docs").glob("*.md"))
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
    monkeypatch.setattr("import_map.__main__.wanted", lambda _: {path: "<svg/>"})
    assert main(["--check"]) == 1
    assert "docs/architecture.svg is stale: run ./scripts/architecture" in capsys.readouterr().out
    assert path.read_bytes() == before


def test_the_picture_has_every_folder_in_its_order() -> None:
    """The order is that of the test which guards it; the programs apart stand outside of it."""
    house = read_house(ROOT)
    assert house.rooms == (*FOLDERS, BUNDLED, "cli")
    assert house.apart == (BUNDLED,)
    assert all(house.purposes[room] for room in house.rooms)
    assert wanted(ROOT) == wanted(ROOT)


def test_the_picture_is_text_for_light_and_dark() -> None:
    """It is well-formed, its words are words, and it heeds the reader's colours."""
    text = draw(read_house(ROOT))
    words = [e.text for e in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314 - our own
    assert set(FOLDERS) <= set(words)
    assert "@media (prefers-color-scheme: dark)" in text
    assert "dot back" not in text


def test_an_import_that_goes_the_wrong_way_stands_out() -> None:
    """What the order forbids is drawn in red, and does not break the drawing."""
    house = House(("low", "high"), (), {"low": "<a> & b", "high": ""}, {("low", "high"): 3})
    text = draw(house)
    ET.fromstring(text)  # noqa: S314 - our own
    assert "dot back" in text


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Every file that a document links to is there."""
    links = [link for link in LINK.findall(path.read_text()) if "://" not in link]
    assert [link for link in links if not (path.parent / link.partition("#")[0]).exists()] == []


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_names_are_where_a_document_says(path: Path) -> None:
    """A name that is said to be in a linked file is found there."""
    named = NAMED.findall(path.read_text())
    assert [
        f"{name} in {link}"
        for name, link in named
        if not re.search(rf"\b{re.escape(name)}\b", (path.parent / link).read_text())
    ] == []


def test_the_way_from_a_script_names_what_is() -> None:
    """Every variable and every recipe that it sends its readers to is known."""
    text = (ROOT / "docs/from-your-script.md").read_text(encoding="utf-8")
    assert set(re.findall(r"AGENT_[A-Z_]+", text)) <= set(KNOWN_NAMES)
    assert set(re.findall(r"AGENT_JOB=([\w-]+)", text)) <= set(BY_NAME)
