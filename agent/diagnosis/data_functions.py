"""Rows about the columns of a data set: the frames show which failed lookup is one of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError, TracebackFrame

_KEY = re.compile(r"^(?:'(?P<name>[A-Za-z_][\w .-]{0,60})'|\"Column (?P<quoted>[\w.-]{1,60}) )")
_INNERMOST = 4  # frames that may look a column up
_FILES = re.compile(
    r"/(?:datasets|pandas|pyarrow)/"
    r"|/(?:\w{0,60}_)?(?:(?:datasets?|data)(?:_\w{1,60})?|(?:collat|preprocess)\w{0,60})"
    r"(?:/\w{1,60})?\.py$"
)
_FUNCTIONS = re.compile(
    r"\w*(?:collat|tokeniz|preprocess|_build_messages|process_data|data_process|apply_chat"
    r"|format_(?:prompt|example|data)|make_map_fn|process_fn)\w*"
)
_LIBRARIES = re.compile(r"/(?:datasets|pandas|pyarrow)/")
_SPLITS = re.compile(r"/datasets/dataset_dict\.py$")
_LITERAL = re.compile(r"[\[(][\"']([^\"'\n]{1,60})[\"'][\])]")
_ROW_LOOKUP = re.compile(
    r"\b(?:examples?|samples?|rows?|items?|features?|docs?|records?|entry|df|dataframe|row_dict"
    r"|data_item|non_tensor_batch|x)(?:\.non_tensor_batch)?(?:\[|\.pop\()"
)


def missing_column(error: ParsedError) -> Cause | None:
    """A key is looked up in a row of the data: the innermost frames show that it is one.

    A lookup in a function of the job may be one in another dictionary: a table of labels, or the
    answer of a judge. Its own line of code shows a row only by a usual name.
    """
    named = _KEY.match(error.message.strip())
    if error.name != "KeyError" or named is None or not error.frames:
        return None
    if not any(map(_is_of_data, error.frames[-_INNERMOST:])):
        return None
    name = named["name"] or named["quoted"]
    reader = next(
        (frame for frame in reversed(error.frames) if "-packages/" not in frame.file),
        error.frames[-1],
    )
    where = f"{reader.file}:{reader.line}"
    if _SPLITS.search(error.frames[-1].file):
        return Cause(
            "data column",
            f"the data set has no split {name}, read in {where}",
            "Print the data set: its splits may have other names, or a file was loaded as `train`",
        )
    if named["quoted"] or _is_column(error.frames[-1], name):
        return Cause(
            "data column",
            f"the data set lacks a column that the job names ({name}), read in {where}",
            "Compare the data's columns with the job's keys (prompt_key, input_key, label_key …)",
        )
    return Cause(
        "data column",
        f"a row of the data, or another dictionary, lacks the key {name}, read in {where}",
        "Look at that line: for a row compare the data's columns with the job's keys, else print "
        "what it looks up",
    )


def _is_column(frame: TracebackFrame, name: str) -> bool:
    """Return whether the lookup itself shows that it is one of a column."""
    literals = _LITERAL.findall(frame.code)
    if literals and name not in literals:
        return False  # LABELS[row["topic"]]: the topic is missing in the labels
    is_of_data = _FILES.search(frame.file) is not None or (
        _FUNCTIONS.fullmatch(frame.function.rpartition(".")[2]) is not None
    )
    looks_up_row = _ROW_LOOKUP.search(frame.code) is not None
    return _LIBRARIES.search(frame.file) is not None or (is_of_data and looks_up_row)


def _is_of_data(frame: TracebackFrame) -> bool:
    return (
        _FILES.search(frame.file) is not None
        or _FUNCTIONS.fullmatch(frame.function.rpartition(".")[2]) is not None
        or _ROW_LOOKUP.search(frame.code) is not None
    )
