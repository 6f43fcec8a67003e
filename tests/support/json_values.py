"""Arbitrary JSON, for tests of readers."""

from __future__ import annotations

from hypothesis import strategies as st

TEXT = st.text(max_size=50)
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
