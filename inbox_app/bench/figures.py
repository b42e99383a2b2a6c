"""One measured figure, and how runs become one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """``value`` is the median of ``runs`` measurements that lay between ``min`` and ``max``."""

    name: str
    value: float
    unit: str
    runs: int
    min: float
    max: float
    database: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def figure(name: str, values: Sequence[float], unit: str, *, database: str) -> Figure:
    return Figure(
        name, round(statistics.median(values), 3), unit, len(values), round(min(values), 3), round(max(values), 3), database
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie, e.g. 0.95."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
