"""A stand-in for vLLM, whose engines need GPUs: it answers without a model.

It has the names that OpenRLHF's engines call, and accepts any arguments. Its answers have one token
each, alternating between the right one for small_model's data and a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__version__ = "0.29.0"
RIGHT, WRONG = 7, 3
"""Tokens of small_model's tokenizer, in which a digit is its own number."""


class SamplingParams:
    """Sampling options, stored as given."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - whatever OpenRLHF gives
        self.max_tokens = None
        self.logprobs = None
        vars(self).update(given)


class AsyncEngineArgs:
    """Engine options, stored as given."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - whatever OpenRLHF gives
        self.given = given


@dataclass
class Completion:
    """One answer."""

    token_ids: list[int]
    finish_reason: str = "stop"
    logprobs: None = None


@dataclass
class RequestOutput:
    """The answers to a request."""

    outputs: list[Completion]


@dataclass
class Requests:
    """The requests in progress: none, since an answer takes no time here."""

    def get_num_unfinished_requests(self) -> int:
        """Count them."""
        return 0


@dataclass
class AsyncLLMEngine:
    """An engine: asleep or awake, and answering."""

    asleep: bool = False
    output_processor: Requests = field(default_factory=Requests)
    answers: cycle[int] = field(default_factory=lambda: cycle((RIGHT, WRONG)))

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs) -> AsyncLLMEngine:
        """Make an engine, and print its options."""
        shown_names = ("model", "tensor_parallel_size", "max_model_len", "enable_sleep_mode")
        words = ", ".join(f"{name}={args.given.get(name)}" for name in shown_names)
        print(f"stand-in for vLLM's engine: {words}", flush=True)
        return cls()

    async def is_sleeping(self) -> bool:
        """Return whether it sleeps."""
        return self.asleep

    async def sleep(self, level: int = 1) -> None:
        """Free the GPU's memory."""
        self.asleep = level > 0

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Take the memory again."""
        self.asleep = tags == []

    async def generate(
        self, _prompt: object, _params: SamplingParams, request_id: str
    ) -> AsyncIterator[RequestOutput]:
        """Answer, as a stream of one."""
        if self.asleep:
            raise RuntimeError(f"request {request_id} came to an engine that sleeps")
        yield RequestOutput([Completion([next(self.answers)])])
