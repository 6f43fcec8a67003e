"""Train a model by torch.compile for a few steps, and write when the first one is done."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Compile and train; print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--begun", type=Path, required=True)
    parser.add_argument("--first-step", type=Path, required=True)
    options = parser.parse_args()
    note(options.begun)
    torch: Any = importlib.import_module("torch")
    functional = torch.nn.functional
    torch.manual_seed(0)
    activations = (functional.gelu, functional.silu, torch.tanh, functional.softplus)

    class Layer(torch.nn.Module):  # type: ignore[misc]
        """A block whose width no other has: each is compiled by itself."""

        def __init__(self, number: int, width: int) -> None:
            super().__init__()
            inner = 2 * width + 8 * number
            self.norm = torch.nn.LayerNorm(width)
            self.mix = torch.nn.Linear(width, inner)
            self.out = torch.nn.Linear(inner, width)
            self.act = activations[number % len(activations)]

        def forward(self, x: Any) -> Any:  # noqa: ANN401 - a tensor
            hidden = self.act(self.mix(self.norm(x)))
            weights = torch.softmax(hidden * 0.5, dim=-1)
            return x + self.out(hidden * weights) * torch.sigmoid(x)

    model = torch.nn.Sequential(*(Layer(number, options.width) for number in range(options.layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model)
    data = torch.randn(64, options.width)
    for step in range(1, options.steps + 1):
        loss = (compiled(data) - data.roll(1, 0)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            note(options.first_step)
        print(f"step {step}/{options.steps} loss {float(loss.detach()):.6f}", flush=True)


def note(file: Path) -> None:
    """Write the time into a file."""
    file.write_text(f"{time.time():.3f}\n")


if __name__ == "__main__":
    main()
