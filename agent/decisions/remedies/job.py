"""Causes in the job: services, accounts, downloads, what its Python lacks."""

from __future__ import annotations

from agent.decisions.remedies.row import Remedy

JOB: tuple[Remedy, ...] = (
    Remedy(
        "reward server",
        r"Max retries exceeded with url: \S*reward\S* .{0,200}Connection refused"
        r"|Request error for \d+ times, returning None|reward_model_group is required",
        "the reward server cannot be reached from where the job asks it",
        "Give the job {{reward_url}}, not 127.0.0.1; reward-server.log says whether it died",
        signs=(
            "Max retries exceeded with url: ",
            "times, returning None",
            "reward_model_group is required",
        ),
    ),
    Remedy(
        "W&B key",
        r"api_key not configured \(no-tty\)|API key must (?:have|be) 40",
        "W&B has no key, or one of a wrong shape",
        "Set WANDB_API_KEY on every pod, or WANDB_MODE=offline",
        signs=(
            "api_key not configured (no-tty)",
            "API key must ",
        ),
    ),
    Remedy(
        "gated model",
        r"Cannot access gated repo|GatedRepoError|You are trying to access a gated repo",
        "the model or data set is gated, and this account has no access yet",
        "Ask for access on its page, and set HF_TOKEN on every pod",
        signs=(
            "Cannot access gated repo",
            "trying to access a gated repo",
        ),
    ),
    Remedy(
        "no such model",
        r"Repository Not Found for url|RepositoryNotFoundError|is not a valid model identifier",
        "the model or data set is not there, or is private",
        "Correct AGENT_MODEL or the data's name, or set HF_TOKEN on every pod",
        signs=(
            "Repository Not Found for url: ",
            "is not a valid model identifier",
        ),
    ),
    Remedy(
        "port taken",
        r"[Aa]ddress already in use",
        "somebody listens already on a port that the job or a service wants",
        "End it (`ss -ltnp` names it), or choose another port",
    ),
    Remedy(
        "missing module",
        r"^(?:\([^)]*\) )?(?:E\s+)?ModuleNotFoundError: No module named '(?P<name>[^']+)'",
        "the job's Python has no module {name!r}",
        "Install it in the image, or bring it by AGENT_PREPARE_EACH or AGENT_RUNTIME_ENV (pip)",
    ),
)
