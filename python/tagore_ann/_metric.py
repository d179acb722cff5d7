"""Names of metrics, and the distances of each."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from ._errors import refused

Metric = Literal["l2", "sqeuclidean", "euclidean", "ip", "inner_product", "cosine", "hamming"]
"""A metric, by the name of its distances.

``l2`` and ``sqeuclidean`` are the squared Euclidean distance, ``euclidean`` is its root, ``ip``
and ``inner_product`` minus the inner product, ``cosine`` 1 - cos, and ``hamming`` the number of
different bits of rows of uint8 with eight bits each.
"""

_NATIVE: dict[str, Literal["l2", "ip", "cosine", "hamming"]] = {
    "l2": "l2", "sqeuclidean": "l2", "euclidean": "l2", "ip": "ip", "inner_product": "ip", "cosine": "cosine",
    "hamming": "hamming",
}  # fmt: skip

T = TypeVar("T")


class Measure(NamedTuple):
    """A metric of the library, and whether distances are roots of its own."""

    name: Literal["l2", "ip", "cosine", "hamming"]
    is_root: bool = False

    @property
    def of_bits(self) -> bool:
        """Whether rows are bits, eight to a byte."""
        return self.name == "hamming"

    def distances(self, distances: T) -> T:
        """Distances of the library as those of the metric."""
        return np.sqrt(distances) if self.is_root else distances  # type: ignore[call-overload]

    def radius(self, radius: Any) -> Any:
        """A radius as that of the library, which refuses what is no number."""
        is_number = isinstance(radius, (int, float, np.integer, np.floating)) and not isinstance(radius, bool)
        return math.copysign(radius * radius, radius) if self.is_root and is_number else radius


def measure(metric: Any, output: str = "numpy") -> Measure:
    """The metric of a name.

    Raises:
        ArgumentError: if there is none of this name, or results on a device would need roots.
    """
    name = metric.lower() if isinstance(metric, str) else ""
    if name not in _NATIVE:
        names = [f'"{known}"' for known in _NATIVE]
        raise refused("metric", repr(metric), f"{', '.join(names[:-1])} or {names[-1]}")
    if name == "euclidean" and output == "device":
        raise refused("metric", '"euclidean" with output="device"', '"l2", of squared distances')
    return Measure(_NATIVE[name], name == "euclidean")
