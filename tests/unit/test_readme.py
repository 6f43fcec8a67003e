"""README: its generated parts are up to date, and its commands exist."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from agent.settings.load import markdown_table
from agent.settings.model import FIELD_OF

REPO = Path(__file__).parents[2]
README = REPO / "README.md"
UPDATE = os.environ.get("POD_AGENT_UPDATE_README") == "1"


def section(name: str) -> str:
    """Return a generated part of the README."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", README.read_text(), re.DOTALL)
    assert found, f"README has no section {name}"
    return found[1]


def test_the_table_of_variables_is_the_settings_own() -> None:
    """The table equals what the settings say of themselves."""
    table = markdown_table() + "\n"
    if UPDATE:
        text = README.read_text().replace(
            f"<!-- env -->\n{section('env')}<!-- /env -->", f"<!-- env -->\n{table}<!-- /env -->"
        )
        README.write_text(text)
    assert section("env") == table, "POD_AGENT_UPDATE_README=1 writes it anew"


@pytest.mark.parametrize("name", ["transcript", "plan", "bench", "versions"])
def test_what_is_shown_is_shown(name: str) -> None:
    """Transcript, plan, figures and what was seen of versions are there."""
    assert len(section(name).splitlines()) > 3


def test_every_variable_that_the_readme_names_exists() -> None:
    """No AGENT_* name in the README is unknown to the settings; one is set for the job."""
    names = set(re.findall(r"\bAGENT_[A-Z_]+[A-Z]\b", README.read_text())) - {"AGENT_ATTEMPT"}
    assert names <= {*FIELD_OF}, names - {*FIELD_OF}


def test_every_file_that_the_readme_names_exists() -> None:
    """Scripts named in the README are there and executable."""
    for path in set(re.findall(r"scripts/\w+", README.read_text())):
        assert os.access(REPO / path, os.X_OK), path


def test_no_address_of_a_package_index() -> None:
    """The pins name packages and versions, and no place to fetch them from."""
    for path in (*REPO.glob("requirements/*"), REPO / "pyproject.toml"):
        assert "://" not in path.read_text(), path
