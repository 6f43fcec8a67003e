"""The part of vLLM's inputs that OpenRLHF imports."""

from typing import TypedDict


class TokensPrompt(TypedDict, total=False):
    """A prompt in tokens."""

    prompt_token_ids: list[int]
    multi_modal_data: dict[str, object]
