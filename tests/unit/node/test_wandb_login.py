"""W&B stays online where `wandb login` left credentials, whatever their file looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.node.read import has_login
from agent.plan.environment import for_node
from support.worlds import MACHINE, plan_of, settings_of

if TYPE_CHECKING:
    from pathlib import Path

LINE = "machine api.wandb.ai\n  login user\n  password 0123456789abcdef\n"
OTHER = "machine wandb.corp.lan login user password 0123456789abcdef\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LINE, True),
        (LINE.replace("\n", " "), True),
        (f"machine other login a password b\n\n{LINE}", True),
        (LINE.replace("api.wandb.ai", '"api.wandb.ai"'), True),
        ("broken { line\nmachine\n" + LINE, False),  # W&B ignores such a file, too
        (OTHER, False),
        ("default login a password b\n", False),
        ("machine api.wandb.ai login user\n", False),
        ("machine api.wandb.ai password", False),
        ("# machine api.wandb.ai\n", False),
        ("", False),
        ("\0\xff", False),
    ],
)
@pytest.mark.parametrize("file", [".netrc", "elsewhere"])
def test_netrc(
    tmp_path: Path,
    text: str,
    found: bool,  # noqa: FBT001 - a column
    file: str,
) -> None:
    """The machine of W&B's server with a password, in any file that W&B reads."""
    (tmp_path / file).write_text(text, encoding="latin-1")
    where = {"HOME": str(tmp_path)}
    if file == "elsewhere":
        where["NETRC"] = f"{tmp_path}/elsewhere"
        (tmp_path / ".netrc").write_text("machine api.wandb.ai login a password nobody-reads\n")
    assert has_login(where) is found


def test_what_cannot_be_read_is_no_login(tmp_path: Path) -> None:
    """A folder, a link to nothing, no home at all: no login, and no error."""
    (tmp_path / ".netrc").mkdir()
    assert not has_login({"HOME": str(tmp_path)})
    assert not has_login({"HOME": "/nowhere"})
    assert not has_login({"HOME": "a\0b"})
    assert not has_login({"HOME": str(tmp_path), "NETRC": "/proc/1/mem"})


def test_w_and_b_is_left_online() -> None:
    """With a login WANDB_MODE is not touched, and the plan says whose credentials it uses."""
    logged_in = replace(MACHINE, wandb_login=True)
    environ = for_node({}, settings_of({}), logged_in, "10.0.0.5", "10.0.0.5")
    assert "WANDB_MODE" not in environ
    mine = {"AGENT_JOB": "none"}
    assert any("wandb login" in note for note in plan_of(mine, logged_in).notes)
    assert any("stays offline" in note for note in plan_of(mine).notes)
    assert not any("W&B" in note for note in plan_of({}).notes), "the rehearsal has none"
    assert not any("W&B" in note for note in plan_of({"WANDB_API_KEY": "k" * 40}).notes)
