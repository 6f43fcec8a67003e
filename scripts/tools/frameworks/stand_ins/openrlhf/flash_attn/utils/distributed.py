"""The part of flash-attn's collectives that OpenRLHF imports."""

from flash_attn.bert_padding import needs_a_gpu  # type: ignore[import-not-found] # it lies beside

all_gather = needs_a_gpu
