"""The price of a node, and the cost of nodes by it: nothing else multiplies prices."""

from __future__ import annotations

from agent.base.value import Value

BY_USER = "AGENT_PRICE_PER_HOUR"
BY_RUNPOD = "RunPod's price of the head's pod"


class NodePrice(Value):
    """What one node costs, and who says so."""

    per_hour: float  # dollars
    source: str = BY_USER

    def cost(self, hours: float, nodes: int) -> float:
        """Return the dollars of so many nodes for so many hours."""
        return self.per_hour * hours * nodes
