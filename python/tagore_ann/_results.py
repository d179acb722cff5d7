"""Results of searches, and reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import Array


class Report(dict[str, Any]):
    """A report: a dict with the keys of docs/report.md, which a notebook shows as a page.

    Attributes:
        html: the page, self-contained.
    """

    def __init__(self, values: dict[str, Any], html: str) -> None:
        super().__init__(values)
        self.html = html

    def _repr_html_(self) -> str:
        page = self.html.replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{page}" width="100%" height="720" style="border:0"></iframe>'


class Found(tuple[Array, npt.NDArray[np.float32]]):
    """Results of a search: a pair of ids and distances.

    Attributes:
        computed: distances computed for all queries together; None for a single query and for
            results on a device.
        short: queries that found fewer than k rows; None for results on a device.
    """

    computed: int | None
    short: int | None

    @property
    def ids(self) -> Array:
        """Ids, shape (m, k), or (found,) for one query."""
        return self[0]

    @property
    def distances(self) -> npt.NDArray[np.float32]:
        """Distances in the same order."""
        return self[1]


def found(ids: Array, distances: npt.NDArray[np.float32], computed: int | None, short: int | None) -> Found:
    """A pair with its counts."""
    pair = Found((ids, distances))
    pair.computed = computed
    pair.short = short
    return pair
