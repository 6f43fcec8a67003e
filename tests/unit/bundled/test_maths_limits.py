"""Grading bears whatever a policy may write, and values are equal in all their forms."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.bundled.maths import equal, grade, is_open

NASTY = [
    "1e999999999",
    "9" * 990 + "e9",
    "9" * 900 + "e400",
    "9" * 10_000_000,
    r"\boxed{" + "9" * 10_000_000 + "}",
    "<answer>" + "9" * 10_000_000 + "</answer>",
    "<answer>" * 1_000_000,
    "answer " * 1_000_000,
    "answer" + " " * 900 + "x",
    r"\boxed{" + "{" * 1_000_000,
    r"\boxed{" * 1_000_000,
    "{" * 1_000_000,
    "(" * 999,
    "(" * 498 + "1,2" + ")" * 498,
    "(," * 400,
    r"\frac{" * 160,
    r"\frac{\frac" * 80 + "1",
    r"\text{" * 150,
    r"\sqrt(" * 140,
    "^ {" * 300,
    "1 " * 1_000_000,
    "1" + " " * 998,
    "1." * 490,
    "1," * 490,
    "1,000" * 190,
    "1-" * 490 + " cm",
    "5 " + "abc " * 240 + "9",
    ",".join(f"{{1,{number}}}" for number in range(100)),
    "".join(chr(number) for number in range(0x20, 0x400)),
    "\ud800\x00\u0660\u00b2",
]


@pytest.mark.timeout(60)  # an expression that backtracks takes hours
@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_nothing_blows_up(text: str) -> None:
    """Every text is graded, as an answer and as a label."""
    for label in (text, text + "7", "7"):
        grade(text, None, label)
        equal(text, label)
        is_open(text, label)


PIECES = (
    *(r"\boxed{", "}", r"\frac", "{1}", "12", r"\text{", " cm", "<answer>", "</answer>", "####"),
    *(",", "(", ")", r"\{", r"\}", "%", "/", "e9", r"\times10^", "-", "x=", " ", ". "),
)
TEXTS = st.one_of(
    st.text(),
    st.text(alphabet="0123456789.,/%eE+-*^(){}[]<>$= xy\\"),
    st.lists(st.sampled_from(PIECES)).map("".join),
)


@given(TEXTS, TEXTS)
@settings(max_examples=400, deadline=None)
def test_nothing_raises(text: str, label: str) -> None:
    """Any text gets a grade of 0 or 1 against any label."""
    assert grade(text, None, label).reward in (0.0, 1.0)
    assert equal(text, label) == equal(label, text)
    is_open(text, label)


@given(TEXTS)
@settings(deadline=None)
def test_equality_is_reflexive(text: str) -> None:
    """Every answer equals itself, but for one that says nothing."""
    assert equal(text, text) is bool(text.strip())


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**6))
def test_fractions_in_all_forms_are_equal(above: int, below: int) -> None:
    """A ratio is one value, reduced or not, on one line or in LaTeX."""
    value = Fraction(above, below)
    forms = [
        f"{above}/{below}",
        rf"\frac{{{above}}}{{{below}}}",
        rf"$\dfrac{{{value.numerator}}}{{{value.denominator}}}$",
    ]
    assert all(equal(one, other) for one in forms for other in forms)
    assert not equal(forms[0], str(value + 1))


@given(st.integers(-(10**9), 10**9), st.integers(0, 6))
def test_decimals_in_all_forms_are_equal(digits: int, places: int) -> None:
    """A decimal is one value, with thousands marks, as a fraction or a power of ten."""
    value = Fraction(digits, 10**places)
    whole, rest = divmod(abs(digits), 10**places)
    sign = "-" if digits < 0 else ""
    tail = f".{rest:0{places}d}" if places else ""
    forms = [
        f"{sign}{whole}{tail}",
        f"{sign}{whole:,}{tail}",
        f"{digits}e-{places}",
        rf"{digits}\times10^{{-{places}}}",
        f"{value.numerator}/{value.denominator}",
        rf"{sign}{whole}{tail}\text{{ dollars}}",
    ]
    assert [form for form in forms if not equal(form, forms[0])] == []
