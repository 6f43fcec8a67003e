"""A model of Ray for placements: requests reserve resources on modelled nodes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tools.frameworks.inside.stub_modules import StubModule, StubResult
from tools.frameworks.placement import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tools.frameworks.placement import Group


class PlacedGroup(StubResult):
    """The result of `placement_group`."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.id = self
        self.bundle_count = len(group.where)

    def __bool__(self) -> bool:
        return True


class Got(StubResult):
    """The result of `ray.get`: an address and a port where a pair is expected."""

    def __iter__(self) -> Iterator[StubResult]:
        return iter((StubResult(), StubResult()))


class Where(StubResult):
    """A scheduling strategy: a bundle of a group."""

    def __init__(
        self,
        placement_group: PlacedGroup | None = None,
        placement_group_bundle_index: int = -1,
        **_other: object,
    ) -> None:
        self.group = placement_group
        self.index = placement_group_bundle_index


class Remote:
    """The result of `ray.remote` for a class or function: it places and runs nothing."""

    def __init__(self, ray: ModelledRay, what: Callable[..., Any], options: dict[str, Any]) -> None:
        self.ray = ray
        self.what = what
        self.asked = options
        self.__name__ = getattr(what, "__name__", str(what))

    def options(self, **more: object) -> Remote:
        """Change the requested resources."""
        return Remote(self.ray, self.what, {**self.asked, **more})

    def remote(self, *_args: object, **_kwargs: object) -> StubResult:
        """Start it: find its place."""
        self.ray.start(self.__name__, self.asked)
        return StubResult()


class ModelledRay(StubModule):
    """The module `ray` and its submodules; `cluster` is replaced for each command."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.cluster = Cluster((), roomy=True)
        util: Any = StubModule("ray.util")
        util.placement_group_table = self.table
        groups: Any = StubModule("ray.util.placement_group")
        groups.placement_group = self.placement_group
        groups.PlacementGroup = PlacedGroup
        strategies: Any = StubModule("ray.util.scheduling_strategies")
        strategies.PlacementGroupSchedulingStrategy = Where
        private: Any = StubModule("ray._private")
        private.state = StubModule("ray._private.state")
        private.state.available_resources_per_node = self.available
        private.state.state = StubModule("ray._private.state.state")
        private.state.state.placement_group_table = self.table
        self.util = util
        self._private = private
        self.state = private.state  # Ray's alias, which verl 0.5 uses
        self.below = {m.__name__: m for m in (util, groups, strategies, private)}

    def install(self) -> None:
        """Install itself as `ray` for later imports."""
        sys.modules["ray"] = self
        sys.modules.update(self.below)

    def remote(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - a decorator of anything
        """Model `@ray.remote` and `@ray.remote(num_gpus=1)`."""
        if args:
            return Remote(self, args[0], options)
        return lambda what: Remote(self, what, options)

    def get(self, _what: object) -> StubResult:
        """Model `ray.get`: everything placed is ready."""
        return Got()

    def nodes(self) -> list[dict[str, str]]:
        """Model `ray.nodes`."""
        numbers = range(len(self.cluster.nodes))
        return [{"NodeID": f"node-{i}", "NodeManagerAddress": f"10.0.0.{i + 1}"} for i in numbers]

    def available(self) -> dict[str, dict[str, float]]:
        """Model the table of each node's available resources."""
        nodes = self.cluster.nodes
        return {f"node-{i}": {"GPU": n.gpus, "CPU": n.cpus} for i, n in enumerate(nodes)}

    def placement_group(
        self, bundles: list[dict[str, float]], strategy: str = "PACK", **_other: object
    ) -> PlacedGroup:
        """Model `placement_group`."""
        return PlacedGroup(self.cluster.group(bundles, strategy))

    def table(self, placed: PlacedGroup) -> dict[str, dict[int, str]]:
        """Model the table of a group's bundles."""
        return {"bundles_to_node_id": {i: f"node-{n}" for i, n in enumerate(placed.group.where)}}

    def start(self, name: str, options: Mapping[str, Any]) -> None:
        """Place one actor."""
        wanted = {
            "GPU": float(options.get("num_gpus") or 0),
            "CPU": float(options.get("num_cpus") or 0),
        }
        where = options.get("scheduling_strategy")
        if isinstance(where, Where) and where.group is not None:
            self.cluster.inside(where.group.group, max(where.index, 0), wanted, name)
        elif options.get("num_cpus") is None and not wanted["GPU"]:
            self.cluster.start_small(name)
        else:
            self.cluster.place(wanted, name)
