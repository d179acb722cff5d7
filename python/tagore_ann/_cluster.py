"""A Ray cluster: the connection, and room on its nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._errors import Error, refused

PROCESS = 256 << 20
"""Bytes of memory of a worker's process beside those of its task."""


class Cluster:
    """A connected cluster: the module ``ray``, and the resources of nodes that run tasks."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.nodes: list[dict[str, float]] = [node for node in nodes if node.get("CPU", 0) >= 1]
        if not self.nodes:
            raise refused("address", "a cluster without CPUs", "nodes that run tasks")

    def threads(self) -> int:
        """CPUs that each node has, at most 8."""
        return int(min(8, *(node["CPU"] for node in self.nodes)))

    def memory(self) -> int:
        """Bytes of memory that each node has for one task."""
        return int(min(node.get("memory", 0) for node in self.nodes)) - PROCESS

    def has_gpu(self) -> bool:
        """Whether a node has a GPU."""
        return any(node.get("GPU", 0) >= 1 for node in self.nodes)

    def check(self, task: str, needed: dict[str, float]) -> None:
        """Checks that a node has room for a task: Ray would wait for one."""

        def has_room(node: dict[str, float]) -> bool:
            return all(node.get(name, 0) >= least for name, least in needed.items())

        if not any(map(has_room, self.nodes)):
            most = ", ".join(f"{max(node.get(name, 0) for node in self.nodes):.0f} {name}" for name in needed)
            least = ", ".join(f"{least:.0f} {name}" for name, least in needed.items())
            expected = f"{least} for {task}: add a node, or lower host_memory, cluster_size or threads"
            raise refused("address", f"nodes with at most {most}", expected)


@contextmanager
def connected(address: str | None) -> Iterator[Cluster]:
    """Ray, connected to a cluster. A connection that is made here ends here."""
    try:
        import ray
    except ImportError:
        raise Error("ray: found no such package, expected `pip install ray`") from None
    if ray.is_initialized():
        if address not in (None, "auto"):
            raise refused("address", f"{address} while Ray is connected", "None, or ray.shutdown() before")
        yield Cluster(ray)
        return
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    # Ray ends the program after some kinds of failure.
    except (Exception, SystemExit) as error:
        found = type(error).__name__
    else:
        try:
            yield Cluster(ray)
        finally:
            ray.shutdown()
        return
    raise refused("address", f"{address} ({found})", "a running Ray cluster, such as auto or 10.0.0.1:6379")


def _knock(address: str | None) -> None:
    """Connects to a given host and port: Ray itself tries for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()
