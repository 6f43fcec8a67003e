"""Slurm's lists of hosts: the whole grammar, against a generator and against Slurm itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import settings as search
from hypothesis import strategies as st

from agent.platforms.slurm import expand

if TYPE_CHECKING:
    from pathlib import Path

ROWS = {
    "gpu-0": "gpu-0",
    "gpu-[0,1]": "gpu-0 gpu-1",
    "a[01-03,07],b2": "a01 a02 a03 a07 b2",
    "r[1-2]n[01-03]": "r1n01 r1n02 r1n03 r2n01 r2n02 r2n03",
    "n[1-2]-ib": "n1-ib n2-ib",
    "n[9-11]": "n9 n10 n11",
    "n[09-11]": "n09 n10 n11",
    "a[008-1000]": " ".join(f"a{n:03d}" for n in range(8, 1001)),
    "a[1-010]": " ".join(f"a{n}" for n in range(1, 11)),
    "[1-2]": "1 2",
    "gpu-0.cluster.local,gpu_1": "gpu-0.cluster.local gpu_1",
    "b[2,1],a": "b2 b1 a",
    "n[5,5]": "n5 n5",
}


@pytest.mark.parametrize("text", ROWS)
def test_hosts(text: str) -> None:
    """A list is spelled out in its order, with its padding."""
    assert list(expand(text)) == ROWS[text].split()


BROKEN = {
    "": "'', which is no host name with ranges",
    "a,,b": "'', which is no host name with ranges",
    "a,": "'', which is no host name with ranges",
    "a[1-2": "'a[1-2', which is no host name with ranges",
    "a1-2]": "'a1-2]', which is no host name with ranges",
    "a[1[2]]": "'a[1[2]]', which is no host name with ranges",
    "a[]": "'a[]', which is no host name with ranges",
    "a[1-]": "'a[1-]', which is no host name with ranges",
    "a[1,x]": "'a[1,x]', which is no host name with ranges",
    "a[3-1]": "'a[3-1]', in which ranges run backwards",
    "b,a b": "'a b', which is no host name with ranges",
    "(null)": "'(null)', which is no host name with ranges",
    "a[0-999999999]": "'a[0-999999999]', which is no host name with ranges",
}


@pytest.mark.parametrize("text", BROKEN)
def test_an_invalid_list_is_refused(text: str) -> None:
    """The error names the invalid entry, and is raised before anything large is built."""
    with pytest.raises(ValueError, match=f"^{re.escape(BROKEN[text])}$"):
        expand(text)


NAME = st.text("abcxyz", min_size=1, max_size=4)
TAIL = st.one_of(st.just(""), st.just("-ib"), st.just(".lan"))


@st.composite
def brackets(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Draw a bracket and the numbers that it stands for."""
    texts: list[str] = []
    numbers: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        width = draw(st.integers(1, 3))
        low = draw(st.integers(0, 10**width - 1))
        high = low + draw(st.integers(0, 12))
        numbers += [f"{n:0{width}d}" for n in range(low, high + 1)]
        plain = high == low and draw(st.booleans())
        texts.append(f"{low:0{width}d}" if plain else f"{low:0{width}d}-{high:0{width}d}")
    return f"[{','.join(texts)}]", numbers


@st.composite
def nodelists(draw: st.DrawFn, tail: st.SearchStrategy[str] = TAIL) -> tuple[str, list[str]]:
    """Draw a list and the hosts that it stands for."""
    entries: list[str] = []
    hosts: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        text = ""
        words: list[list[str]] = []
        for _ in range(draw(st.integers(0, 2))):
            name = draw(NAME)
            bracket, numbers = draw(brackets())
            text += name + bracket
            words += [[name], numbers]
        end = draw(tail) if words else draw(NAME)
        entries.append(text + end)
        hosts += ["".join(parts) for parts in product(*words, [end])]
    return ",".join(entries), hosts


@given(nodelists())
def test_every_list_is_spelled_out(case: tuple[str, list[str]]) -> None:
    """Whatever was compressed comes back, all of it and in order."""
    text, hosts = case
    assert list(expand(text)) == hosts


@given(st.text("ab1,-[]0 ", max_size=12))
def test_any_text_gives_hosts_or_a_nodelist_error(text: str) -> None:
    """There is no other exception, and no host with a bracket or a comma in it."""
    try:
        hosts = expand(text)
    except ValueError:
        return
    assert 1 <= len(hosts) <= 1_000
    assert not any(set(host) & set("[], ") for host in hosts)


SCONTROL = shutil.which("scontrol")


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the least configuration with which scontrol starts; it names no cluster that is."""
    file = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    file.write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    return file


@pytest.mark.skipif(SCONTROL is None, reason="scontrol is not installed here (slurm-client)")
@search(max_examples=25)
@given(cases=st.lists(nodelists(tail=st.just("")), min_size=1, max_size=5))
def test_slurm_agrees(slurm_conf: Path, cases: list[tuple[str, list[str]]]) -> None:
    """`scontrol show hostnames` spells the same lists out in the same way.

    It knows no text after the last bracket, so none is drawn here.
    """
    text = ",".join(text for text, _ in cases)
    done = subprocess.run(
        [str(SCONTROL), "show", "hostnames", text],
        env={"SLURM_CONF": str(slurm_conf)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(expand(text)) == done.stdout.split()
