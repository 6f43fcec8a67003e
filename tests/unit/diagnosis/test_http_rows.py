"""A server's answer with an error is named by its host, its status and its path."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log

FRAMES = 'Traceback (most recent call last):\n  File "/w/ask.py", line 3, in ask\n    f()\n'


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "requests.exceptions.HTTPError: 413 Client Error: Too Large for url: http://a.b:80/x?y",
            "a server (a.b:80/x) answered 413 (Too Large)",
        ),
        (
            "httpx.HTTPStatusError: Client error '404 Not Found' for url 'https://a.b/v1/models'",
            "a server (a.b/v1/models) answered 404 (Not Found)",
        ),
        (
            "aiohttp.client_exceptions.ClientResponseError: 500, message='Broken', url='http://a.b'",
            "a server (a.b) answered 500 (Broken)",
        ),
        ("urllib.error.HTTPError: HTTP Error 403: Forbidden", "a server answered 403 (Forbidden)"),
    ],
)
def test_the_answer_of_a_server_is_named(line: str, cause: str) -> None:
    """Each client prints it in another form."""
    assert diagnose_logs([Log("", "job.log", FRAMES + line)]).cause == cause


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (
            "returned no rewards for 10 s: 500 boom: used up; is it up, at an address?",
            "returned no rewards for 10 s: 500 boom: used up",
        ),
        ("refuses to score: 401 wrong token", "refuses to score: 401 wrong token"),
    ],
)
def test_why_a_bundled_program_gets_no_rewards_is_named(words: str, cause: str) -> None:
    """What the server answered is the cause, not that it may be unreachable."""
    line = f"pod_agent_rehearsal.RewardError: http://10.0.0.4:5000/score {words}"
    answer = diagnose_logs([Log("", "job.log", FRAMES + line)])
    assert answer.cause == f"the reward server at 10.0.0.4:5000/score {cause}"
    assert ("--reward-seconds" in answer.what_to_do) == ("no rewards" in cause)


def test_another_error_counts_before_a_server_s_answer() -> None:
    """A server that answers with an error is rarely the first cause."""
    answer = "urllib.error.HTTPError: HTTP Error 500: Internal Server Error"
    text = f"{FRAMES}{answer}\n{FRAMES}ZeroDivisionError: division by zero"
    assert diagnose_logs([Log("", "job.log", text)]).line.startswith("ZeroDivisionError")


def test_a_server_that_nothing_listens_for_is_named_by_its_address() -> None:
    """What the server is, the error does not say: no inference server is blamed for its port."""
    line = (
        "(RolloutWorker pid=7) requests.exceptions.ConnectionError: HTTPConnectionPool("
        "host='10.8.0.13', port=5000): Max retries exceeded with url: /v1/envs/ (Caused by "
        "NewConnectionError('x: [Errno 111] Connection refused'))"
    )
    answer = diagnose_logs([Log("", "job.log", line)])
    assert answer.cause == "no server listens at 10.8.0.13:5000 (for /v1/envs/)"


def test_a_proxy_may_have_answered_in_place_of_a_server() -> None:
    """A proxy of the environment answers 503 for hosts inside of the cluster."""
    line = "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: http://a:80/x"
    answer = diagnose_logs([Log("", "job.log", FRAMES + line)])
    assert "NO_PROXY" in answer.what_to_do


@pytest.mark.parametrize(
    ("inner", "cause"),
    [
        ("httpx.LocalProtocolError: Illegal header value b'Bearer '", "a header's value"),
        ("httpx.UnsupportedProtocol: Request URL is missing an 'http://' protocol", "begin with"),
        ("httpx.ConnectError: [Errno -2] Name or service not known", "has no address"),
        ("httpx.RemoteProtocolError: Server disconnected without a response.", "closed the"),
        ("httpx.ConnectError: All connection attempts failed", "no server answers"),
        ("httpx.ConnectError: _ssl.c:989: an error", "came about, or it broke"),
    ],
)
def test_a_connection_error_is_named_by_what_it_was_raised_from(inner: str, cause: str) -> None:
    """The message of the client of OpenAI is the same for each reason."""
    text = (
        f"{FRAMES}{inner}\n\nThe above exception was the direct cause of the following exception:"
        f"\n\n{FRAMES}openai.APIConnectionError: Connection error."
    )
    assert cause in diagnose_logs([Log("", "job.log", text)]).cause


def asked(error: str, *frames: str) -> Diagnosis:
    """Return the diagnosis of a request that failed under some frames."""
    stack = "".join(f'  File "{frame}\n    f()\n' for frame in frames)
    text = f"Traceback (most recent call last):\n{stack}{error}"
    return diagnose_logs([Log("", "job.log", text)])


REWARD = '/w/reward.py", line 9, in compute_score'
LIBRARY = "/opt/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("error", "cause", "remedy"),
    [
        (
            (
                "requests.exceptions.HTTPError: 422 Client Error: Unprocessable Entity for url: "
                "http://a.b:90/get_reward"
            ),
            "the reward's server (a.b:90/get_reward) answered 422 (Unprocessable Entity)",
            "does not take",
        ),
        (
            (
                "requests.exceptions.ConnectionError: HTTPConnectionPool(host='a.b', port=9): "
                "Max retries exceeded with url: /score (Caused by NewConnectionError('[Errno 111] "
                "Connection refused'))"
            ),
            "no server listens at a.b:9 (the reward's server) (for /score)",
            "Start it before the job",
        ),
        (
            "httpx.ConnectTimeout",
            "a server that the reward asks cannot be reached, or fails",
            "reward-server.log",
        ),
    ],
)
def test_what_came_of_a_request_decides_the_remedy(error: str, cause: str, remedy: str) -> None:
    """A server that refuses a request is another trouble than one that is not there."""
    answer = asked(error, REWARD, f'{LIBRARY}/httpx/_api.py", line 9, in post')
    assert (answer.key, answer.cause) == ("reward server", cause)
    assert remedy in answer.what_to_do


def test_the_innermost_frames_show_who_asked() -> None:
    """A reward that fetches a model from the hub asks the hub, not its server."""
    hub = [f'{LIBRARY}/huggingface_hub/file_download.py", line {n}, in get' for n in range(4)]
    client = f'{LIBRARY}/httpx/_api.py", line 9, in get'
    assert asked("httpx.ConnectTimeout", REWARD, *hub, client).key == "hub not reached"
    assert asked("httpx.ConnectTimeout", REWARD, client).key == "reward server"
    upload = f'{LIBRARY}/huggingface_hub/_commit_api.py", line 9, in _upload_lfs_files'
    assert asked("httpx.WriteTimeout", upload, client).key == "upload not complete"


def test_another_program_at_an_engine_s_address_is_no_closed_port() -> None:
    """Its 404 shows that it answers."""
    error = (
        "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: "
        "http://10.0.0.2:8000/init_communicator/"
    )
    answer = asked(error, '/w/trl/extras/vllm_client.py", line 9, in init_communicator')
    assert answer.key == "rollout server"
    assert "version" in answer.what_to_do
    assert "port" not in answer.what_to_do
