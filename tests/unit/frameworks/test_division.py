"""How many nodes generate before anything was measured: by model, answers and GPUs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from agent.frameworks import framework_named
from agent.frameworks.division import division_for, generating_time, propose
from agent.frameworks.recipe import ModelShape


def model(name: str) -> ModelShape:
    """Return the shape of a model with that name."""
    shape = ModelShape.from_name(name)
    assert shape is not None
    return shape


@pytest.mark.parametrize(
    ("name", "longest", "part"),
    [
        ("Qwen2.5-7B", 1024, "1/4"),
        ("Qwen2.5-7B", 4096, "1/2"),
        ("Qwen2.5-7B", 32768, "3/4"),  # as AReaL's authors divide it
        ("Qwen3-32B", 4096, "1/3"),
        ("Qwen3-32B", 32768, "3/4"),
        ("Qwen3-30B-A3B", 1024, "2/3"),
        ("DeepSeek-V3-671B-A37B", 8192, "3/4"),
    ],
)
def test_long_answers_and_experts_need_more_engines(name: str, longest: int, part: str) -> None:
    """Experts are read whole, and few are trained; the cache of long answers is read each time."""
    proposed = propose(model(name), longest, 1)
    assert proposed.part == Fraction(part)
    assert f"{part}: for " in proposed.why
    assert f"texts of up to {longest} tokens" in proposed.why


def test_in_turns_both_sides_count() -> None:
    """A side that takes four times as long gets twice the nodes, not four times as many."""
    shape = model("Qwen3-4B")
    assert generating_time(shape, 16384, 1, 80) == pytest.approx(4.0, abs=0.1)
    assert propose(shape, 16384, 1).part == Fraction(3, 4)
    assert propose(shape, 16384, 1, in_turns=True).part == Fraction(2, 3)


def test_gpus_of_more_memory_generate_faster() -> None:
    """They hold more answers at a time, and read faster than they multiply."""
    shape = model("Qwen2.5-7B")
    times = [generating_time(shape, 32768, 1, memory) for memory in (40, 80, 140)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("part", "nodes", "engines"),
    [("1/2", 2, 1), ("1/2", 3, 1), ("2/3", 3, 2), ("3/4", 2, 1), ("3/4", 3, 2), ("1/4", 2, 1)],
)
def test_each_side_has_a_node(part: str, nodes: int, engines: int) -> None:
    """Parts are rounded down, as those of groups."""
    proposed = propose(None, 1024, 1)
    assert proposed.part == Fraction(1, 2)
    assert proposed.why.startswith("half")
    assert proposed.__class__(Fraction(part), "").of(nodes) == engines


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "1/2"),
        (["--train-async"], "2/3"),
        (["--rollout-max-response-len", "32768"], "3/4"),
        (["--rollout-max-response-len=1024"], "1/3"),
        (["--rollout-max-response-len", "long"], "1/2"),
    ],
)
def test_slimes_words_say_how_much_it_generates(words: list[str], part: str) -> None:
    """Without `--train-async` trainer and engines take turns."""
    division = division_for(framework_named("slime"), words, "org/Qwen2.5-7B", None)
    assert division.part == Fraction(part)


def test_without_a_size_in_its_name_half_of_the_nodes_generate() -> None:
    """As for a framework whose recipes bring no group that generates."""
    for framework, name in (("slime", "/v/my model"), ("verl", "Qwen2.5-72B")):
        division = division_for(framework_named(framework), [], name, None)
        assert division.part == Fraction(1, 2)
