"""The description of the agent's port: it is complete, and what is answered fits it."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import (  # type: ignore[import-untyped]  # it has no types
    Draft202012Validator,
    ValidationError,
)
from msgspec import to_builtins

from agent.port import access as control_access
from agent.port.access import UNGUARDED_PATHS
from agent.port.glance import judged
from agent.port.protocol import VERSION
from support.head_status import SERVED, status_after
from support.heads import TERM
from support.schemas import validator_of
from support.worlds import SECRET
from tools.http import __main__ as written
from tools.http.description import (
    HEAD,
    OPEN,
    PATHS,
    TOKEN,
    Described,
    description,
    statuses,
)
from tools.http.fuzz import Head, described

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "0123456789abcdef"
SECONDS = 20.0


@pytest.fixture(autouse=True)
def _many_wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare all of them: these tests send one after the other to the same port."""
    monkeypatch.setattr(control_access, "MOST_GUESSES", 10_000)


def test_the_pages_are_not_stale(capsys: pytest.CaptureFixture[str]) -> None:
    """What is committed is what `./scripts/http` writes."""
    assert (written.main(["--check"]), capsys.readouterr().out) == (0, "")


def test_a_stale_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--check writes nothing; without it the pages are written."""
    folder = tmp_path / "docs" / "reference"
    folder.mkdir(parents=True)
    (folder / "http.md").write_text("<!-- paths -->\nold\n<!-- /paths -->\n")
    monkeypatch.setattr(written, "ROOT", tmp_path)
    assert written.main(["--check"]) == 1
    assert "docs/reference/http.md is stale: run ./scripts/http" in capsys.readouterr().out
    assert not (folder / "openapi.json").exists()
    assert written.main([]) == 0
    assert "`POST /report`" in (folder / "http.md").read_text()
    assert written.main(["--check"]) == 0


@pytest.fixture(scope="module")
def heads() -> Iterator[dict[str | None, int]]:
    """Ports of a head with a token and of one without."""
    with Head(SECRET).serve() as guarded, Head(None, KEY).serve() as bare:
        yield {SECRET: guarded, None: bare}


def test_every_path_is_described() -> None:
    """A path that is added is missed here."""
    served = {(route.method.lower(), route.path) for route in Head(None).site.routes()}
    assert served == {(row.method, row.path) for row in PATHS}
    assert {row.path for row in PATHS if row.access == OPEN} >= {*UNGUARDED_PATHS}


GOOD = {
    "/login": f"token={SECRET}",
    "/report": json.dumps({"id": "agent1", "phase": "joining Ray", "protocol": VERSION}),
    "/stop": "{}",
}
ROWS = [row for row in PATHS if row.path != "/events"]  # a stream does not end


def ask(port: int, row: Described, path: str, credential: str) -> tuple[int, str, bytes]:
    """Send a good request; return status, type and body of the answer."""
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    if row.takes is not None:
        headers["Content-Type"] = row.takes[0]
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request(row.method.upper(), path, GOOD.get(row.path), headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get_content_type(), answer.read()


@pytest.mark.parametrize("credential", [SECRET, KEY, ""])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.path)
def test_an_answer_fits_its_description(
    heads: dict[str | None, int], row: Described, credential: str
) -> None:
    """Status, type and every field, with and without a credential, and what opens the path."""
    full = description("0")["paths"][row.path][row.method]["responses"]
    path = row.path.replace("{node}", "head").replace("{name}", "job")
    for token, port in heads.items():
        for query in ("", "?after=7&run=run-1", "?after=x"):
            status_code, kind, body = ask(port, row, path + query, credential)
            what = (token, query, status_code, body[:200])
            assert status_code in statuses(row), what
            content = full[str(status_code)].get("content", {kind: {}})
            assert [*content] == [kind], what
            if kind == "application/json":
                validator_of(content[kind]["schema"]).validate(json.loads(body))
            needs = {OPEN: "", TOKEN: token or ""}.get(row.access, token or KEY)
            if needs and credential != needs:
                assert status_code == 401, what
            elif row.access != OPEN:
                assert status_code != 401, what


def test_a_status_of_a_run_fits_the_description() -> None:
    """As the head's decisions make it; a field that is new or missing does not fit."""
    fits = validator_of(HEAD)
    for history in ([], SERVED, [*SERVED, (5.0, TERM)]):
        made = json.loads(json.dumps(to_builtins(judged(status_after(history)))))
        fits.validate(made)
        with pytest.raises(ValidationError):
            fits.validate({**made, "new": 1})
        for name in made:
            with pytest.raises(ValidationError):
                fits.validate({key: value for key, value in made.items() if key != name})


def test_the_fuzzer_has_every_field_of_a_report() -> None:
    """From the types: with all that is nested in a report."""
    found: dict[str, Any] = described()
    assert {"Report", "Hello", "Facts", "WorkerStats"} <= {*found["components"]["schemas"]}
    body = found["paths"]["/report"]["post"]["requestBody"]["content"]["application/json"]
    Draft202012Validator.check_schema(body["schema"])
