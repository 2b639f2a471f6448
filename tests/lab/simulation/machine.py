"""A simulated host's machine: a clock that runs at a rate of its own, and a log that goes into the trace."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lab.simulation.group import HostClock
from lab.simulation.process import current, incarnation


class MachineClock(HostClock):
    def __init__(self, rate: float, ahead_s: float) -> None:
        super().__init__()
        self._rate = rate
        self._loop: Any = asyncio.get_running_loop()
        self.ahead_s = ahead_s

    def monotonic(self) -> float:
        now: float = self._loop._now
        return now * self._rate + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)


FLAW = re.compile(r"\b(?:Assertion|Attribute|Index|Key|Name|Type|UnboundLocal)Error\b")
"""What no weather brings about: a host that survives it, as it is to, must not hide it."""


class TraceLog:
    """What a host says goes into the trace. violated: told of flaws in the code itself."""

    def __init__(
        self,
        tell: Callable[[str, Callable[[], str]], None],
        violated: Callable[[str, str], None],
        partition: str = "",
        epoch: object = "",
    ) -> None:
        self._tell = tell
        self._violated = violated
        self._partition = partition
        self._epoch = epoch

    def bind(self, **values: Any) -> TraceLog:
        partition, epoch = values.get("partition", self._partition), values.get("epoch", self._epoch)
        return TraceLog(self._tell, self._violated, partition, epoch)

    def _said(self, event: str, **values: Any) -> None:
        process = current()
        if process is None or not process.is_dead:
            self._tell(incarnation(), partial(_told, f"{self._partition}/{self._epoch} {event}", values))
            if FLAW.search(error := str(values.get("error", ""))):
                self._violated("host", f"{incarnation()}: {event}: {error}")

    debug = info = warning = error = _said


def _told(event: str, values: Mapping[str, object]) -> str:
    return f"{event} {' '.join(f'{name}={value}' for name, value in values.items())}"
