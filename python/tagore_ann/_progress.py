"""Progress of long calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ._errors import refused


class Update(NamedTuple):
    """Progress of one stage, and of the whole call."""

    stage: str
    """The stage, such as ``descent`` or ``prune``."""
    done: int
    """Units done in this stage."""
    total: int
    """Units of this stage."""
    fraction: float
    """Share of the whole call, 0 to 1, by estimated times."""


Progress = bool | Callable[[Update], object] | None
"""None or False: nothing. True: a bar of tqdm. A callable: called with each `Update`."""

_Native = Callable[[str, int, int, float], None]


@contextmanager
def reporting(progress: Progress) -> Iterator[_Native | None]:
    """The callback of the native module for ``progress``."""
    if progress is None or progress is False:
        yield None
    elif progress is True:
        with _bar() as bar:
            yield bar
    elif callable(progress):
        report = progress

        def call(stage: str, done: int, total: int, fraction: float) -> None:
            report(Update(stage, done, total, fraction))

        yield call
    else:
        raise refused("progress", repr(progress), "True, a callable or None")


@contextmanager
def _bar() -> Iterator[_Native]:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise refused("progress", "True without tqdm", "a callable, or `pip install tqdm`") from error
    bar: Any = tqdm(total=100, unit="%", bar_format="{desc:<12} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}")

    def call(stage: str, done: int, total: int, fraction: float) -> None:
        bar.set_description_str(stage, refresh=False)
        bar.update(max(0.0, 100 * fraction - bar.n))

    with bar:
        yield call
