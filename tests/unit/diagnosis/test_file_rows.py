"""What is read as JSON and is none: the frames show who reads it."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log

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


def opened(file: str, function: str, message: str) -> Diagnosis:
    """Return the diagnosis of a call on a file that the system refused."""
    text = (
        f'Traceback (most recent call last):\n  File "/w/a.py", line 3, in main\n    f()\n'
        f'  File "{file}", line 30, in {function}\n    g()\n{message}'
    )
    return diagnose_logs([Log("", "job.log", text)])


@pytest.mark.parametrize(
    ("file", "function", "message", "key"),
    [
        ("/w/rules.py", "load", "[Errno 2] No such file or directory: '/w/a.ini'", "file missing"),
        ("/w/rules.py", "load", "[Errno 2] No such file or directory: '/tmp/x/a.ini'", ""),
        (
            "/usr/lib/python3.11/subprocess.py",
            "_execute_child",
            "[Errno 2] No such file or directory: 'ffmpeg'",
            "program missing",
        ),
    ],
)
def test_what_does_not_exist_is_a_file_or_a_program(
    file: str, function: str, message: str, key: str
) -> None:
    """The frames show what it was for; a temporary file may go by itself."""
    assert opened(file, function, f"FileNotFoundError: {message}").key == key


def test_what_the_system_refuses_is_named_by_its_number() -> None:
    """With the path, if the message has it."""
    answer = opened("/w/a.py", "save", "OSError: [Errno 36] File name too long: '/w/aaa'")
    assert answer.cause == "a path or a name in it is too long (/w/aaa)"
    answer = opened("/w/a.py", "save", "OSError: [Errno 14] Bad address")
    assert answer.cause.startswith("a read or write failed: the system")
    assert opened("/w/a.py", "save", "OSError: [Errno 77] Other").key == ""


@pytest.mark.parametrize(
    ("file", "function", "message"),
    [
        ("/usr/lib/python3.11/pty.py", "_read", "[Errno 5] Input/output error"),
        ("/x/site-packages/rich/console.py", "_write_buffer", "[Errno 5] Input/output error"),
        ("/usr/lib/python3.11/multiprocessing/connection.py", "_write", "[Errno 5] I/O error"),
        ("/w/a.py", "save", "[Errno 5] Input/output error: '/dev/tty'"),
        ("/w/a.py", "save", "[Errno 16] Device or resource busy: '/sys/fs/cgroup/x'"),
    ],
)
def test_a_terminal_a_pipe_or_a_device_is_no_file(file: str, function: str, message: str) -> None:
    """The system refuses calls on these with the same numbers."""
    assert opened(file, function, f"OSError: {message}").key == ""


def test_a_folder_that_is_to_be_replaced_is_the_one_that_is_not_empty() -> None:
    """The system names both."""
    message = "OSError: [Errno 39] Directory not empty: '/w/tmp1' -> '/w/last'"
    assert "is not empty (/w/last)" in opened("/w/a.py", "save", message).cause


def test_a_checkpoint_without_metadata_is_incomplete() -> None:
    """The assertion's code shows it."""
    text = (
        'Traceback (most recent call last):\n  File "/w/a.py", line 3, in main\n    f()\n'
        '  File "/x/torch/distributed/checkpoint/state_dict_loader.py", line 250, in local_step\n'
        "    assert metadata is not None\nAssertionError"
    )
    assert diagnose_logs([Log("", "job.log", text)]).key == "checkpoint incomplete"
    other = text.replace("metadata is not None", "len(parts) == 2")
    assert diagnose_logs([Log("", "job.log", other)]).key == ""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os.unlink(path)", "[Errno 2] No such file or directory: '/ckpt/1/a.bin'"),
        ("shutil.rmtree(path)", "[Errno 2] No such file or directory: '/ckpt/1'"),
        ("os.rename(a, b)", "[Errno 2] No such file or directory: '/ckpt/1' -> '/ckpt/2'"),
    ],
)
def test_what_another_rank_removed_is_no_missing_file(code: str, message: str) -> None:
    """Two of them clean up at the same time: which one is at fault, the log does not say."""
    text = (
        f'Traceback (most recent call last):\n  File "/w/a.py", line 3, in rotate\n    {code}\n'
        f"FileNotFoundError: {message}"
    )
    assert diagnose_logs([Log("", "job.log", text)]).key != "file missing"


def test_a_process_may_lack_its_program_or_its_folder() -> None:
    """A path may be either; a plain name is a program."""
    answer = opened(
        "/usr/lib/python3.11/subprocess.py",
        "_execute_child",
        "FileNotFoundError: [Errno 2] No such file or directory: '/w/run'",
    )
    assert answer.cause.startswith("the program or folder /w/run")


def raised(code: str, message: str, function: str = "main") -> Diagnosis:
    """Return the diagnosis of an exception that a line of the job raised."""
    text = (
        f'Traceback (most recent call last):\n  File "/w/a.py", line 3, in {function}\n'
        f"    {code}\n{message}"
    )
    return diagnose_logs([Log("", "job.log", text)])


@pytest.mark.parametrize(
    ("code", "path", "cause"),
    [
        (
            'with open(out, "w") as f:',
            "/w/out/a.json",
            "the folder of /w/out/a.json does not exist",
        ),
        ("frame.to_csv(out)", "/w/out/a.csv2", "the folder of /w/out/a.csv2 does not exist"),
        ("text = open(rules).read()", "rules.ini", "rules.ini does not exist in the job's working"),
        ("text = open(rules).read()", "/w/rules.ini", "/w/rules.ini does not exist on this node"),
    ],
)
def test_a_missing_file_is_to_be_read_or_its_folder_to_be_written(
    code: str, path: str, cause: str
) -> None:
    """The line of code shows which, and a relative path depends on the working folder."""
    message = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    assert raised(code, message).cause.startswith(cause)


def test_a_command_in_one_text_is_no_missing_program() -> None:
    """Without a shell the whole text is a program's name."""
    answer = raised(
        "raise child_exception_type(errno_num, err_msg, err_filename)",
        "FileNotFoundError: [Errno 2] No such file or directory: 'python serve.py --port 80'",
        "_execute_child",
    )
    assert "the whole text" in answer.cause
    assert "image" not in answer.remedy()


@pytest.mark.parametrize(
    ("code", "function", "key"),
    [
        ("self._semlock = _multiprocessing.SemLock(kind, value, maxvalue)", "__init__", ""),
        ("self.sock.setsockopt(a, b, 1)", "_connect", ""),
        ("f.write(data)", "_dump", "file refused"),
    ],
)
def test_a_call_without_a_path_is_one_on_a_file_only_by_its_code(
    code: str, function: str, key: str
) -> None:
    """A semaphore or a socket has no disk."""
    assert raised(code, "OSError: [Errno 38] Function not implemented", function).key == key
