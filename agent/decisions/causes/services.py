"""Rows for what a job talks to: reward servers, retrievers, engines, W&B."""

from __future__ import annotations

from agent.decisions.causes.row import NET, Cause, Weight, Words

_FAILED = (
    r"Max retries exceeded|Connection refused|Connect call failed|Cannot connect to host|timed out"
    r"|Timeout|Connection (?:error|reset|aborted)|RemoteDisconnected|Server [Ee]rror|All connection"
    r"|ConnectError|ConnectionError|disconnected|Name or service not known|unreachable|JSONDecode"
    r"|Server disconnected|50\d"
)
_REWARD = r"(?i)reward|remote_rm|\brm_url|judge|verifier|genrm|sandbox"
_SEARCH = r"(?i)retriev|search_r1|_batch_search|search_url|search_tool|/search\b"
_ENGINE_URL = (
    r"/(?:generate|init_communicator|init_weights_update_group|update_named_param|update_weights"
    r"\w*|reset_prefix_cache|close_communicator|health\w*|get_model_info|flush_cache|wake_up|sleep"
    r"|pause_generation|continue_generation|release_memory_occupation|get_world_size|v1/completions"
    r"|v1/chat/completions|server_info|get_server_info|abort_request|collective_rpc"
    r"|batch_update_named_params|add_worker|list_workers|update_params)\b"
)
_ENGINE = r"(?i)vllm_client|vllm_serve|sglang|rollout_server|inference_engine|http_server_engine|\brollout"
_OTHER_HOST = r"huggingface|wandb|modelscope|hf-mirror|pypi|github|openai\.com|swanlab|mlflow"

SERVICES: tuple[Cause, ...] = (
    Cause(
        "W&B key",
        ("wandb_key",),
        "W&B has no key, or one that is wrong",
        "Set WANDB_API_KEY on every pod, or WANDB_MODE=offline",
        (
            Words(
                "api_key not configured (no-tty)",
                "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_key])",
            ),
            Words(
                "API key must ",
                "wandb.errors.AuthenticationError: API key must have 40+ characters, has 19.",
                only=r"(?i)API key must (?:have|be) \d+|wandb",
            ),
            Words(
                "No API key configured",
                "wandb.errors.UsageError: No API key configured. Use `wandb login` to log in.",
            ),
            Words(
                "API key verification failed",
                "wandb.errors.AuthenticationError: API key verification failed. Make sure your API key is valid.",
            ),
            Words(
                "wandb.errors.…AuthenticationError",
                "wandb.errors.errors.AuthenticationError: The API key is invalid",
            ),
            Words("Invalid API key", "wandb: ERROR Invalid API key", only="(?i)wandb"),
            Words(
                "wandb: ERROR It appears that you do not have permission",
                "wandb: ERROR It appears that you do not have permission to access the requested resource.",
            ),
            Words(
                "permission to access the requested resource",
                "wandb.errors.CommError: It appears that you do not have permission to access the requested resource. Please reach out to the project owner",
            ),
            Words(
                "401",
                "wandb: ERROR Error while calling W&B API: user is not logged in (<Response [401]>)",
                only=r"(?i)(?:wandb|W&B|upsert).*\b401\b",
            ),
            Words(
                "403",
                "wandb.errors.CommError: Error uploading run: returned error 403: permission denied",
                only=r"(?i)(?:wandb|W&B|uploading run|upsert).*\b403\b",
            ),
            Words("user is not logged in", "wandb: ERROR user is not logged in"),
            Words(
                "wandb login",
                "ValueError: W&B is not logged in: run `wandb login`",
                only=r"(?:Error|ERROR).*wandb login",
                unless="relogin",
            ),
        ),
        ("unslothai/unsloth#1914", "wandb/examples#186", "hiyouga/EasyR1#69"),
    ),
    Cause(
        "W&B not reached",
        ("wandb_network",),
        "W&B cannot be reached",
        "Open the way to api.wandb.ai (HTTPS_PROXY), or set WANDB_MODE=offline",
        (
            Words(
                "Run initialization has timed out after",
                "wandb.errors.CommError: Run initialization has timed out after 90.0 sec.",
            ),
            Words(
                "Error communicating with wandb process",
                "wandb.errors.CommError: Error communicating with wandb process, exiting...",
            ),
            Words(
                "host='api.wandb.ai'",
                "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.wandb.ai', port=443): Max retries exceeded with url: /graphql",
            ),
            Words(
                "Timed out waiting for wandb service",
                "wandb.sdk.service.ServiceStartTimeoutError: Timed out waiting for wandb service to start after 30.0 seconds.",
            ),
            Words(
                "ServiceStartTimeoutError", "wandb.sdk.service.service.ServiceStartTimeoutError: x"
            ),
            Words(
                "ServiceStartProcessError",
                "wandb.sdk.service.ServiceStartProcessError: The wandb service process exited with 1.",
            ),
            Words(
                "ServicePollForTokenError",
                "wandb.sdk.lib.service.service_process.ServicePollForTokenError: Failed to read port info after 30.0 seconds.",
            ),
            Words(
                "failed to upsert bucket",
                "wandb.errors.CommError: failed to upsert bucket: context deadline exceeded",
                unless="40[13]",
            ),
            Words(
                "lookup api.wandb.ai",
                'Post "https://api.wandb.ai/graphql": dial tcp: lookup api.wandb.ai: no such host',
            ),
            Words(
                "dial tcp",
                'Post "https://api.wandb.ai/graphql": dial tcp 1.2.3.4:443: i/o timeout',
                only=r"wandb",
            ),
            Words(
                "wandb.errors.CommError",
                "wandb.errors.CommError: Network error",
                only=r"(?i)network|timed? ?out|communicat|connect|50\d",
            ),
            Words(
                "wandb.errors.errors.CommError",
                "wandb.errors.errors.CommError: Error uploading run: server responded 502",
                only=r"(?i)network|timed? ?out|communicat|connect|50\d",
            ),
            Words(
                "wandb: ERROR Error while calling W&B API",
                "wandb: ERROR Error while calling W&B API: context deadline exceeded",
                unless="40[134]|permission",
            ),
            Words(
                "rror",
                "requests.exceptions.ConnectionError: ('Connection aborted.', x)",
                near=r"File \"[^\"\n]{0,200}wandb/(?:sdk|apis|util|init)",
                error=True,
                only=NET,
            ),
            Words("MailboxClosedError", "wandb.sdk.mailbox.mailbox.MailboxClosedError"),
        ),
        ("momentum-robotics-lab/deformgs#7", "Wuziyi616/EventCLIP#8"),
    ),
    Cause(
        "W&B in trouble",
        ("wandb_network",),
        "W&B cannot be reached",
        "Open the way to api.wandb.ai (HTTPS_PROXY), or set WANDB_MODE=offline",
        (
            Words(
                "wandb: Network error (",
                "wandb: Network error (ConnectTimeout), entering retry loop.",
                mild=True,
            ),
            Words("retry loop", "wandb: W&B API in retry loop", only="wandb", mild=True),
        ),
        ("momentum-robotics-lab/deformgs#7",),
        Weight.LAST,
        is_live=False,
    ),
    Cause(
        "reward server",
        ("reward_server",),
        "the reward server cannot be reached from where the job asks it, or it fails",
        "Give the job {reward_url}, not 127.0.0.1; reward-server.log says whether it ended",
        (
            Words("reward_model_group is required", "ValueError: reward_model_group is required"),
            Words(
                "times, returning None",
                "Exception: Request error for 5 times, returning None. Please check the API server.",
                only="Request error",
            ),
            Words(
                "url: /",
                "HTTPConnectionPool(host='127.0.0.1', port=5000): Max retries exceeded with url: /get_reward (Caused by NewConnectionError('Failed to establish a new connection: [Errno 111] Connection refused'))",
                only=r"(?i)url: \S*(?:reward|/rm\b|judge|verif|score|grade)",
            ),
            Words(
                "get_reward",
                "500 Server Error: INTERNAL SERVER ERROR for url: http://10.0.0.4:5000/get_reward",
                only=rf"(?:rror|xception|refused).*|{_FAILED}",
            ),
            Words(
                "rror",
                "requests.exceptions.ConnectionError: HTTPConnectionPool(host='10.2.0.9', port=18901): Max retries exceeded with url: /v1/models",
                near=_REWARD,
                error=True,
                only=NET,
                unless=_OTHER_HOST,
            ),
            Words(
                "imeout",
                "httpx.ReadTimeout",
                near=_REWARD,
                error=True,
                only=NET,
                unless=_OTHER_HOST,
            ),
            Words(
                "rror",
                "RuntimeError: reward server request failed after 5 retries: connection refused",
                only=r"(?i)(?:reward|judge|verifier)\W?(?:model\W?|function\W?)?(?:server|service|api|endpoint|request|url).{0,120}(?:fail|error|refused|unreach|timed? ?out|not (?:reach|avail|respond|ready))",
            ),
            Words(
                "ontent",
                "aiohttp.client_exceptions.ContentTypeError: 500, message='Attempt to decode JSON with unexpected mimetype: text/html', url='http://10.0.0.4:5000/get_reward'",
                only="(?i)contenttypeerror.*(?:reward|rm)",
            ),
        ),
        (
            "xtong-zhang/Chain-of-Focus#11",
            "THUDM/slime#1582",
            "TideDra/lmm-r1#30",
            "OpenRLHF: openrlhf/utils/remote_rm_utils.py",
        ),
        Weight.WEAK,
    ),
    Cause(
        "retriever",
        ("retriever",),
        "the retriever cannot be reached from where the job asks it, or it fails",
        "Look at the retriever's log, and give the job an address that every node reaches",
        (
            Words(
                "/retrieve",
                "requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=8000): Max retries exceeded with url: /retrieve (Caused by NewConnectionError",
                only=_FAILED,
            ),
            Words(
                "url: /search",
                "HTTPConnectionPool(host='127.0.0.1', port=8000): Max retries exceeded with url: /search",
                only=_FAILED,
            ),
            Words(
                "rror",
                "requests.exceptions.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
                near=_SEARCH,
                error=True,
                only=rf"{NET}|JSONDecodeError|KeyError: 'result'",
                unless=_OTHER_HOST,
            ),
            Words(
                "imeout",
                "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=8000): Read timed out.",
                near=_SEARCH,
                error=True,
                only=NET,
                unless=_OTHER_HOST,
            ),
            Words(
                "etriev",
                "RuntimeError: Retrieval service request failed after 10 attempts",
                error=True,
                only=r"(?i)retriev\w*.{0,120}(?:fail|refused|unreach|timed? ?out|not (?:reach|avail|respond|ready))",
            ),
        ),
        ("PeterGriffinJin/Search-R1#43", "PeterGriffinJin/Search-R1#54"),
        Weight.WEAK,
    ),
    Cause(
        "rollout server",
        ("rollout_server",),
        "the inference server that the trainer asks cannot be reached, or it fails",
        "Look at the server's own log for its cause, and at its address and port from the trainer's "
        "node; a slow first request needs a longer timeout",
        (
            Words(
                "server can't be reached at",
                "ConnectionError: The vLLM server can't be reached at http://10.0.0.2:8000 after 240.0 seconds.",
            ),
            Words(
                "HTTP",
                "requests.exceptions.ConnectionError: HTTPConnectionPool(host='0.0.0.0', port=8000): Max retries exceeded with url: /update_named_param/",
                error=True,
                only=rf"(?:{_FAILED}).*{_ENGINE_URL}|{_ENGINE_URL}.*(?:{_FAILED})",
                unless=_OTHER_HOST,
            ),
            Words(
                "rror",
                "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host 10.0.0.2:30000 ssl:default [Connect call failed",
                near=_ENGINE,
                error=True,
                only=NET,
                unless=_OTHER_HOST,
            ),
            Words(
                "imeout",
                "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='10.0.0.2', port=30000): Read timed out.",
                near=_ENGINE,
                error=True,
                only=NET,
                unless=_OTHER_HOST,
            ),
            Words(
                "HTTPConnectionPool(",
                "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='0.0.0.0', port=8000): Read timed out. (read timeout=240.0)",
                only=r"port=(?:8000|30000)\): Read timed out",
            ),
            Words(
                "rror",
                "TimeoutError: Server did not become healthy within 600 seconds",
                only=r"(?i)(?:vllm|sglang|inference|rollout|engine|generation)?\W?server.{0,80}(?:did not (?:become|start)|failed to start|not (?:healthy|ready)|process (?:died|terminated|exited)|is (?:dead|down)|terminated unexpectedly|exited unexpectedly)",
                unless="(?i)reward|dashboard|wandb|socket|gcs|raylet",
            ),
            Words(
                "for url: http",
                "requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: http://0.0.0.0:8000/generate/",
                only=rf"\b[45]\d\d (?:Server|Client) Error.*{_ENGINE_URL}",
            ),
        ),
        ("huggingface/trl#3214", "huggingface/trl#3622", "trl: trl/extras/vllm_client.py"),
        Weight.WEAK,
    ),
    Cause(
        "proxy",
        (),
        "a proxy stands between, also where none should",
        "Name the nodes' network in no_proxy, or unset the proxy for the job",
        (
            Words(
                "ProxyError",
                "requests.exceptions.ProxyError: HTTPSConnectionPool(host='10.0.0.4', port=8265)",
            ),
            Words("Proxy CONNECT", "Proxy CONNECT aborted"),
            Words("HTTP proxy", "HTTP proxy returned response code 503", only="50[234]"),
        ),
        ("ray-project/ray#37757",),
        Weight.WEAK,
        is_live=False,
    ),
)
