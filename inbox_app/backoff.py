"""When to try again: pure, and without Django."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Policy:
    """Exponential backoff: ``base * 2^(attempt-1)`` seconds, at most ``cap``, each ± ``jitter`` (a share)."""

    base: float = 2.0
    cap: float = 60.0
    jitter: float = 0.2


LOCAL = Policy()
_EXPONENT_CAP = 30  # beyond it 2^n is larger than any cap, and later would not fit a float


def delay(attempt: int, policy: Policy = LOCAL, *, rng: random.Random) -> timedelta:
    """How long to wait after the ``attempt``-th try (1, 2, 3 …). Those that fail together do not return together."""
    exponent = min(max(attempt - 1, 0), _EXPONENT_CAP)
    seconds = min(policy.cap, policy.base * 2**exponent)
    return timedelta(seconds=seconds * rng.uniform(1 - policy.jitter, 1 + policy.jitter))
