"""What is read as JSON and is none: the frames show who reads it."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Log, diagnose_logs

READ = """Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    main()
  File "{file}", line 30, in {function}
    read(text)
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
"""
SITE = "/usr/lib/python3/site-packages"


@pytest.mark.parametrize(
    ("file", "function", "cause"),
    [
        (f"{SITE}/requests/models.py", "json", "the answer of a server is no JSON"),
        (
            f"{SITE}/transformers/configuration_utils.py",
            "_dict_from_json_file",
            "a JSON file in the model's folder is empty or broken",
        ),
        ("/app/data.py", "load", "a text that is read as JSON is none"),
    ],
)
def test_who_reads_it_is_named(file: str, function: str, cause: str) -> None:
    """A server's answer, a file of the model, or a text of the job."""
    answer = diagnose_logs([Log("", "job.log", READ.format(file=file, function=function))])
    assert answer.cause.startswith(cause)
    assert "Expecting value: line 1 column 1 (char 0)" in answer.cause
