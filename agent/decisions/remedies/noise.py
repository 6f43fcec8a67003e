"""Lines that alarm and mean nothing: they are never taken for a cause."""

from __future__ import annotations

from agent.decisions.remedies.row import Remedy

NOISE: tuple[Remedy, ...] = (
    Remedy(
        "metrics exporter",
        r"Failed to establish connection to the (?:event\+)?metrics exporter agent",
        "Ray could not start its metrics early enough, which nothing here needs",
        "Look past it",
        signs=("metrics exporter agent",),
    ),
    Remedy(
        "metrics not exported",
        r"Export metrics to agent failed",
        "Ray could not deliver its metrics, which nothing here needs",
        "Look past it",
        signs=("Export metrics to agent failed",),
    ),
    Remedy(
        "observability pubsub",
        r"Failed to connect to the observability pubsub at address",
        "gRPC asked a slow DNS for a name; the agent gives Ray numbers",
        "If boots are slow, mend the DNS of the pods",
        signs=("observability pubsub at address",),
    ),
)
