r"""Bring the many ways to write an answer into one form, and read the numbers among them.

`\dfrac12`, `\frac{1}{2}`, `$0.5$`, `x = .50` and `0.5\text{ cm}` are all one number.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

LONGEST = 1_000
"""Characters of an answer; a longer one is only ever compared letter by letter."""

# 10 ** 400 is beyond every float, and still cheap to calculate with.
_LARGEST_EXPONENT = 400
_DEEPEST_FRACTION = 4


class Number(NamedTuple):
    """A number by value and as written: `50%` is worth 1/2 and reads 50."""

    value: Fraction
    written: Fraction
    percent: bool


class Reading(NamedTuple):
    r"""An answer in one form: `x = \frac12` is named x, its body is 1/2, and so is its number."""

    name: str
    body: str
    number: Number | None


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """Read an answer of at most LONGEST characters."""
    name, body = _without_name(_normal(text))
    return Reading(name, body, _number(body))


_SIGNS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{FRACTION SLASH}": "/",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{INFINITY}": r"\infty ",
        "\N{GREEK SMALL LETTER PI}": r"\pi ",
        "\N{DEGREE SIGN}": r"^\circ",
    }
)
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SHORT_UNITS = "mm|cm|dm|km|mg|kg|ml|cl|ft|hr|lb|oz|mi"
_NO_UNITS = "and|cos|cot|exp|from|inf|infty|log|max|min|mod|not|over|plus|sin|sqrt|tan|times"
_TEXT = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname) ?\{([^{}]*)\}"
_PART = r" ?(\{[^{}]*\}|[0-9a-z])"

_FRACTION = re.compile(rf"\\frac{_PART}{_PART}")
_MARKED_UNIT = re.compile(rf"(?<=[0-9}}%]) ?{_TEXT}(?:\^ ?\{{?[0-9]\}}?)?[ .]*$")
_UNIT = (
    rf"(?: ?(?:{_SHORT_UNITS})\b| (?!(?:{_NO_UNITS})\b)[a-z]{{3,}}\b)"
    rf"(?: (?!(?:{_NO_UNITS})\b)[a-z]{{2,}})*(?: ?\^ ?\{{?[23]\}}?)?"
)
_PLAIN_UNIT = re.compile(
    rf"([-+]?[0-9.][-+0-9.,/ *^{{}}()%]*?)"
    rf"(?: (?P<scale>{'|'.join(_SCALES)})\b(?:{_UNIT})?|{_UNIT})"
)
_ROWS_BEFORE_FRACTIONS: tuple[tuple[str, str], ...] = (
    (r"\\(?:[,;:> ]|q?quad(?![a-z]))|~", " "),
    (r"\s+", " "),
    (r"\\[()\[\]!]", ""),
    (r"\\(?:left|right|displaystyle|textstyle|big+[lr]?)(?![a-z])", ""),
    (r"\{,\}", ","),
    (r"\\?[$£€¥]", ""),
    (r" ?(?:\\%|\bper ?cent\b)", "%"),
    (r" ?\^ ?\{? ?\\circ ?\}?(?: ?[cf](?![a-z]))?", ""),
    (r" ?\\in(?![a-z]) ?", "="),
    (r"\\[dtc]frac", r"\\frac"),
    (r"(?<=[0-9]) ?\\frac", r" \\frac"),  # a mixed number, 1 1/2, is no 11/2
)
_ROWS_AFTER_FRACTIONS: tuple[tuple[str, str], ...] = (
    (_TEXT, r" \1 "),
    (r"\\cdot(?![a-z])|\\times(?![a-z])", "*"),
    (r"\*\*", "^"),
    (r" ?\* ?", "*"),
    (r"(?<=[0-9])\*(?=[a-z(\\])", ""),
    (r"\^ ?\{ ?([^{} ]) ?\}", r"^\1"),
    (r"\\?sqrt ?(?:\(([^()]*)\)|([0-9a-z]))", r"sqrt{\1\2}"),
    (r"\\", ""),
    (r" +", " "),
)
_BEFORE = tuple((re.compile(pattern), new) for pattern, new in _ROWS_BEFORE_FRACTIONS)
_AFTER = tuple((re.compile(pattern), new) for pattern, new in _ROWS_AFTER_FRACTIONS)


def _normal(text: str) -> str:
    text = text[:LONGEST].casefold().translate(_SIGNS)
    for pattern, new in _BEFORE:
        text = pattern.sub(new, text)
    text = _MARKED_UNIT.sub(_unit_or_scale, text)
    for _ in range(_DEEPEST_FRACTION):
        if r"\frac" not in text:
            break
        text = _FRACTION.sub(_slashed, text)
    for pattern, new in _AFTER:
        text = pattern.sub(new, text)
    if ", " in text:  # then a comma without its space is a thousands mark: (1,000, 2)
        text = re.sub(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", text)
    text = _without_unit(text.rstrip(" .,;:").lstrip(" :="))
    text = re.sub(r"(?<![0-9]) | (?![0-9])", "", text)
    single = re.fullmatch(r"\(([^(),;]+)\)|\{([^{},;]+)\}", text)
    return (single[1] or single[2]) if single else text


def _unit_or_scale(match: re.Match[str]) -> str:
    words = match[1].strip()
    return f" {words}" if words.split(" ")[0] in _SCALES else ""


def _without_unit(text: str) -> str:
    """Drop the words after a number: `42 apples`, `5 cm^2`; `5 million` becomes `5*10^6`."""
    match = _PLAIN_UNIT.fullmatch(text)
    if not match:
        return text
    scale = match["scale"]
    return f"{match[1]}*10^{_SCALES[scale]}" if scale else match[1]


def _slashed(match: re.Match[str]) -> str:
    """Write a fraction on one line, in parentheses where it needs them."""
    parts = [part.strip("{} ") for part in (match[1], match[2])]
    return "/".join(p if re.fullmatch(r"[0-9.,]+|[a-z]", p) else f"({p})" for p in parts)


_NAMED = re.compile(r"([a-z][a-z0-9_{}]{0,15}(?:\([a-z]\))?|\([a-z](?:,[a-z])+\))=([^=]+)")


def _without_name(text: str) -> tuple[str, str]:
    named = _NAMED.fullmatch(text)
    return (named[1], named[2]) if named else ("", text)


_MANTISSA = r"(?:[0-9]{1,3}(?:[, ][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_DECIMAL = re.compile(
    rf"([-+]?)(?:({_MANTISSA})(?:e([-+]?[0-9]+))?"
    rf"|(?:({_MANTISSA})\*)?10\^\{{?([-+]?[0-9]+)\}}?)"
)
_MIXED = re.compile(r"([-+]?)([0-9]+) ([0-9]+/[0-9]+)")


def _number(text: str) -> Number | None:
    percent = text.endswith("%")
    written = _ratio(text.removesuffix("%"))
    if written is None:
        return None
    return Number(written / 100 if percent else written, written, percent)


def _ratio(text: str) -> Fraction | None:
    mixed = _MIXED.fullmatch(text)
    if mixed:
        part = _ratio(mixed[3])
        whole = int(mixed[2])
        return None if part is None else (whole + part) * (-1 if mixed[1] == "-" else 1)
    above, slash, below = text.partition("/")
    numerator = _decimal(above)
    if not slash or numerator is None:
        return None if slash else numerator
    denominator = _decimal(below)
    return numerator / denominator if denominator else None


def _decimal(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text[1:-1] if text[:1] + text[-1:] == "()" else text)
    if not match:
        return None
    sign, plain, exponent, factor, power = match.groups()
    shift = exponent or power or "0"
    if len(shift) > 4 or abs(int(shift)) > _LARGEST_EXPONENT:
        return None
    digits = (plain or factor or "1").replace(",", "").replace(" ", "")
    value = Fraction(digits.rstrip(".")) * Fraction(10) ** int(shift)
    return -value if sign == "-" else value
