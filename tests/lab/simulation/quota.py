"""What a lease store has to give: so many request units a second, and 429 with a retry-after for hosts that ask for more.

A listing pays for each of its pages, and one that is refused has paid for the pages before the refused one. So refusals cost
the units that others wait for, and a group that repeats its listings quickly keeps its container throttled for ever.
"""

from __future__ import annotations

from lab.simulation.weather import Fate, Request

REFUSED_S = 0.01
"""How long a refusal takes on its way."""


class Quota:
    """A bucket of request units, `burst_s` seconds of them at most, but at least a listing, and as many of debt.

    A point read or a write costs 1 unit, a listing `list_pages`; a refused listing has cost half of that. From `closes` to
    `opens` (times of the loop) everybody is refused, and from then on whoever finds too little. succeeded: when listings did;
    listed_at: when each host last listed, or read what changed.
    """

    def __init__(
        self, units_s: float, *, list_pages: int = 2, closes: float = 0.0, opens: float = 0.0, burst_s: float = 4.0
    ) -> None:
        self.succeeded: list[float] = []
        self.listed_at: dict[str, float] = {}
        self.refused = 0
        self._units_s = units_s
        self._list_pages = list_pages
        self._closes, self._opens = closes, opens
        self._burst = max(burst_s * units_s, list_pages)
        self._left, self._seen_at = 0.0, opens

    def fate(self, request: Request, now: float) -> Fate | None:
        """Of a request that is refused; None for one that has its units."""
        if now < self._closes:
            return None
        if now > self._seen_at:
            self._left = min(self._burst, self._left + (now - self._seen_at) * self._units_s)
            self._seen_at = now
        is_listing = request.operation == "list"
        cost = float(self._list_pages if is_listing else 1)
        if now >= self._opens and self._left >= cost:
            self._left -= cost
            if is_listing:
                self.succeeded.append(now)
            if is_listing or request.operation == "changes":
                self.listed_at[request.host] = now
            return None
        self.refused += 1
        self._left = max(-self._burst, self._left - is_listing * cost / 2)
        room_s = (cost - self._left) / self._units_s
        return Fate(REFUSED_S, "refused", retry_after_s=max(0.0, self._opens - now) + room_s)
