"""The installed framework refuses a command before the job is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.asked_frameworks import OPENRLHF, install_openrlhf
from support.lab_frameworks import NEEDED, PLACE
from support.scenario import ends, last_line

if TYPE_CHECKING:
    from support.scenario import Cluster

MOST_SECONDS = 20.0
"""The worker never comes; AGENT_WAIT_WORKERS would last for minutes."""
COMMAND = ("python3", "-m", "openrlhf.cli.train_ppo_ray")


@pytest.mark.pods(1)
def test_a_typo_ends_the_run_before_the_job_is_submitted(cluster: Cluster) -> None:
    """78 with the framework's words and the flag; without the typo the head waits for workers."""
    install_openrlhf(cluster.pods[0].tmp / "frameworks", OPENRLHF)
    cluster.env |= {**NEEDED, "PYTHONPATH": PLACE, "EXPECTED_WORKERS": "1"}
    head = cluster.agent(0, *COMMAND, "--train.bach_size", "8")
    assert ends([head], MOST_SECONDS) == [78]
    assert (
        "refused: openrlhf refuses --train.bach_size in the command after --: unrecognized "
        "arguments: --train.bach_size 8 (exit code 78). Did you mean --train.batch_size? "
        "Correct it there"
    ) in last_line(head)
    assert head.stdout() == ""

    cluster.env |= {"AGENT_WAIT_WORKERS": "8s", "AGENT_RERUN": "1"}
    right = cluster.agent(0, *COMMAND, "--train.batch_size", "8")
    assert ends([right], MOST_SECONDS + 20) == [69]
    assert "refuses" not in right.stderr()
