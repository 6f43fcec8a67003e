"""A stand-in for vLLM, whose engines want GPUs: one that answers without a model.

It has what OpenRLHF's engines call, by vLLM's names, and takes what they are given as it comes. Its
answers are one token each, in turns the one that small_model's data call right and a wrong one.
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
    """How to sample: kept as given."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - whatever OpenRLHF gives
        self.max_tokens = None
        self.logprobs = None
        vars(self).update(given)


class AsyncEngineArgs:
    """What an engine is made of: kept as given."""

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
    """What a request came to."""

    outputs: list[Completion]


@dataclass
class Requests:
    """Those that are under way: an answer takes no time here."""

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
        """Make an engine, and say of what."""
        told = ("model", "tensor_parallel_size", "max_model_len", "enable_sleep_mode")
        words = ", ".join(f"{name}={args.given.get(name)}" for name in told)
        print(f"stand-in for vLLM's engine: {words}", flush=True)
        return cls()

    async def is_sleeping(self) -> bool:
        """Say whether it sleeps."""
        return self.asleep

    async def sleep(self, level: int = 1) -> None:
        """Give the GPU's memory back."""
        self.asleep = level > 0

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Take it again."""
        self.asleep = tags == []

    async def generate(
        self, _prompt: object, _params: SamplingParams, request_id: str
    ) -> AsyncIterator[RequestOutput]:
        """Answer, as a stream of one."""
        if self.asleep:
            raise RuntimeError(f"request {request_id} came to an engine that sleeps")
        yield RequestOutput([Completion([next(self.answers)])])
