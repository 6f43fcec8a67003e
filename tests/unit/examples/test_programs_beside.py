"""The services files on the page about programs beside the job, and of groups, are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.job.addresses import address_problems
from agent.job.services_file import parse
from agent.plan.plan_services import all_services, service_problems, with_places
from agent.platforms.resolve import resolve
from agent.settings import load
from support.worlds import MACHINE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/programs-beside-the-job.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
SERVICES = ("groups", "areal", "skyrl", "trl-generation")
EXAMPLES += [(ROOT / f"examples/services/{name}.toml").read_text() for name in SERVICES]
COMMANDS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_each_example_is_a_services_file(text: str) -> None:
    """Every table and key; each address that a service or a command names; each port."""
    environ = {"AGENT_SERVICES": "s.toml", "EXPECTED_WORKERS": "4"}
    if "ask." in text:
        environ["AGENT_REWARD"] = "judge"
    loaded = load(environ, ["true"])
    file, problems = parse(text, "s.toml", loaded.settings)
    topology = resolve(environ, loaded.settings, MACHINE)
    file = with_places(file, topology, loaded.settings)
    services = all_services(loaded.settings, ("true",), file)
    problems += service_problems(loaded.settings, ("true",), topology, file)
    problems += address_problems(loaded.settings, (), services, file, environ)
    assert problems == []


def test_the_commands_name_services_of_the_page() -> None:
    """`{address:NAME}` or `{addresses:NAME}` in a command is a service of an example."""
    names = set(re.findall(r"\{address(?:es)?:([a-z-]+)", " ".join(COMMANDS)))
    assert names == {"generation", "engine", "rollout"}
    assert names <= set(re.findall(r"\[services\.([a-z-]+)\]", PAGE))
