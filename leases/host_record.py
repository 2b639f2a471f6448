"""The document by which a host shows that it lives: host <-> JSON text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from leasehold.leases.balance import Peer
from leasehold.leases.document import NAME_BYTES_MAX, Fields, to_json
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.expiry import Mark
from leasehold.leases.timing import BEAT, DURATION_S_MAX, LASTS_S

HOSTS_PREFIX = "_hosts/"
"""No pipeline name begins with an underscore, so listing hosts never lists a pipeline's documents."""
BELL_ID = "_hosts.bell"
LOOK_PREFIX = "_hosts"
"""Lists the hosts, and the bell."""
VERSION = 1
HOST_BYTES_MAX = 4096
"""The largest size of a document, unless the pipelines' names alone need more: every look of every host reads all documents."""
PIPELINES_MAX = 1024
FIT, SICK, RENOUNCED, BLIND, UNKNOWN = "fsrb-"
"""The fitness of a host for one of its pipelines.

- fit: it has delivered recently, or a probe has shown that it can.
- sick: it cannot, and still has its leases.
- renounced: it cannot, and sends nothing, so others may take its leases.
- blind: it cannot read the leases, and keeps its own.
- unknown: none of these.
"""

Tenant = tuple[str, str]
"""(host, incarnation): the owner of leases, and of one document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host process, according to its document.

    - term: the present one; 0 if the host has none.
    - lasts_s: how long the host may be silent.
    - fitness: one character (FIT, SICK, ...) for each of `pipelines`; may be empty if all are unknown.
    - ring: grows when the host has changed who has which lease.

    waits, activity: what the host reports about its work, for people; no decision about leases uses it.
    """

    name: str
    incarnation: str
    tick: int = 0
    term: int = 0
    lasts_s: float = LASTS_S
    ring: int = 0
    pipelines: tuple[str, ...] = ()
    fitness: str = ""
    leases_max: int | None = None
    draining: bool = False
    started_at: str = ""
    waits: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    activity: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def mark(self) -> Mark:
        return self.incarnation, self.tick

    @property
    def beat_s(self) -> float:
        return BEAT * self.lasts_s

    @property
    def tenant(self) -> Tenant:
        return self.name, self.incarnation

    def which_are(self, *fitness: str) -> frozenset[str]:
        """The pipelines for which the host's fitness is one of these."""
        return frozenset(name for name, each in zip(self.pipelines, self.fitness, strict=False) if each in fitness)

    def peer(self, *, is_new: bool) -> Peer:
        """The host as plans see it."""
        return Peer(
            name=self.name,
            pipelines=frozenset(self.pipelines) - self.which_are(SICK, RENOUNCED),
            leases_max=self.leases_max,
            draining=self.draining,
            is_blind=bool(self.which_are(BLIND)),
            is_new=is_new,
            lasts_s=self.lasts_s,
        )


def host_id(name: str) -> str:
    return HOSTS_PREFIX + name


def encode_host(host: HostRecord) -> str:
    return to_json(
        {
            "version": VERSION,
            "host": host.name,
            "incarnation": host.incarnation,
            "tick": host.tick,
            "term": host.term,
            "lastsS": host.lasts_s,
            "ring": host.ring,
            "pipelines": list(host.pipelines),
            "leasesMax": host.leases_max,
            "draining": host.draining,
            "startedAt": host.started_at,
            **({"fitness": host.fitness} if host.fitness else {}),
            **({"waits": dict(host.waits)} if host.waits else {}),
            **({"activity": dict(host.activity)} if host.activity else {}),
        }
    )


def decode_host(id: str, body: str) -> HostRecord:
    """Raises InvalidDocument."""
    fields = Fields.parse(id, body)
    fields.version(VERSION)
    host = HostRecord(
        name=fields.text("host", NAME_BYTES_MAX),
        incarnation=fields.text("incarnation", NAME_BYTES_MAX),
        tick=fields.integer("tick"),
        term=fields.integer("term"),
        lasts_s=fields.number("lastsS"),
        ring=fields.integer("ring"),
        pipelines=fields.texts("pipelines", NAME_BYTES_MAX, PIPELINES_MAX),
        fitness=fields.text("fitness", PIPELINES_MAX) if fields.has("fitness") else "",
        leases_max=fields.optional_integer("leasesMax"),
        draining=fields.boolean("draining"),
        started_at=fields.text("startedAt", NAME_BYTES_MAX),
        waits=fields.mapping("waits") if fields.has("waits") else MappingProxyType({}),
        activity=fields.mapping("activity") if fields.has("activity") else MappingProxyType({}),
    )
    if not 0 < host.lasts_s <= DURATION_S_MAX:
        fields.refuse("lastsS", f"must be above 0, and at most {DURATION_S_MAX:g}")
    if id != host_id(host.name):
        fields.refuse("host", f"is {host.name!r}, which belongs under another id")
    return host


def found_host(id: str, body: str) -> HostRecord | None:
    """None if the document is unreadable."""
    try:
        return decode_host(id, body)
    except InvalidDocument:
        return None
