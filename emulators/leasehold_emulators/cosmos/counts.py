"""Counts of requests, documents and bytes, by container and kind, and of what feeds have delivered."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from leasehold_emulators.cosmos.call import Call, Reply
from leasehold_emulators.cosmos.faults import container_of


@dataclass(slots=True)
class Count:
    requests: int = 0
    documents: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    statuses: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class Counts:
    """A request that a fault took is counted with the status that it got, 0 if the connection dropped."""

    _counts: dict[tuple[str, str], Count] = field(default_factory=lambda: defaultdict(Count))
    delivered: dict[str, Counter[tuple[str, int]]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, call: Call, reply: Reply, size: int) -> None:
        count = self._counts[container_of(call) or "", call.kind]
        count.requests += 1
        count.documents += reply.documents
        count.bytes_in += len(call.body)
        count.bytes_out += size
        count.statuses[reply.status] += 1
        if call.kind.startswith("feed.") and reply.status == 200:
            self._deliver(container_of(call) or "", reply)

    def _deliver(self, container: str, reply: Reply) -> None:
        for item in reply.content["Documents"]:
            lsn = item.get("_lsn") or item["metadata"]["lsn"]
            named = item.get("current") or item.get("metadata") or item
            self.delivered[container][named["id"], lsn] += 1

    def listed(self) -> list[dict[str, Any]]:
        return [
            {
                "container": container or None,
                "kind": kind,
                "requests": count.requests,
                "documents": count.documents,
                "bytes_in": count.bytes_in,
                "bytes_out": count.bytes_out,
                "statuses": {str(status): times for status, times in sorted(count.statuses.items())},
            }
            for (container, kind), count in sorted(self._counts.items())
        ]

    def clear(self) -> None:
        self._counts.clear()
        self.delivered.clear()
