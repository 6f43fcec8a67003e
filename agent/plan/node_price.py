"""The price of a node, and what nodes cost by it."""

from __future__ import annotations

from agent.base.value import Value

MOST_OF_COST = 0.8  # of AGENT_MAX_COST: from this share on its end is announced
BY_USER = "AGENT_PRICE_PER_HOUR"
BY_RUNPOD = "RunPod's price of the head's pod"


class NodePrice(Value):
    """What one node costs, and where the price is from."""

    per_hour: float  # dollars
    source: str = BY_USER

    def cost(self, hours: float, nodes: int) -> float:
        """Return the dollars of so many nodes for so many hours."""
        return self.per_hour * hours * nodes

    def hours(self, dollars: float, nodes: int) -> float:
        """Return for how long these dollars pay so many nodes."""
        return dollars / (self.per_hour * nodes)
