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
    r"/(?:datasets|pandas|pyarrow)/|/(?:\w*_)?(?:datasets?|data|collat\w*|preprocess\w*)(?:_\w+)?"
    r"(?:/\w+)?\.py$"
)
_FUNCTIONS = re.compile(
    r"\w*(?:collat|tokeniz|preprocess|_build_messages|process_data|data_process|apply_chat"
    r"|format_(?:prompt|example|data)|make_map_fn|process_fn)\w*"
)
_ROW_LOOKUP = re.compile(
    r"\b(?:examples?|samples?|rows?|items?|features?|docs?|records?|entry|df|dataframe|row_dict"
    r"|data_item|non_tensor_batch|x)(?:\.non_tensor_batch)?(?:\[|\.pop\()"
)


def missing_column(error: ParsedError) -> Cause | None:
    """A key is looked up in a row of the data: the innermost frames show that it is one."""
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
    return Cause(
        "data column",
        f"the data set lacks a column that the job names ({name}), read in "
        f"{reader.file}:{reader.line}",
        "Compare the data's columns with the job's keys (prompt_key, input_key, label_key …)",
    )


def _is_of_data(frame: TracebackFrame) -> bool:
    return (
        _FILES.search(frame.file) is not None
        or _FUNCTIONS.fullmatch(frame.function.rpartition(".")[2]) is not None
        or _ROW_LOOKUP.search(frame.code) is not None
    )
