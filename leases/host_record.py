"""The document that every host keeps of itself: host <-> JSON text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from leases.balance import Peer
from leases.document import NAME_BYTES_MAX, Fields, to_json
from leases.expiry import Mark

HOSTS_PREFIX = "_hosts/"
"""No pipeline name begins with an underscore, so listing hosts never lists a pipeline's documents."""
VERSION = 1
SESSIONS = 1
"""The version of the sessions that a host understands; hosts without sessions lack the field."""
PIPELINES_MAX = 1024

_FIELDS = frozenset(
    (
        *("version", "host", "incarnation", "tick", "pipelines", "leasesMax", "draining"),
        *("leaseDurationS", "startedAt", "activity", "contestedBy", "sessions"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host process, according to its document."""

    name: str
    incarnation: str
    tick: int = 0
    pipelines: tuple[str, ...] = ()
    leases_max: int | None = None
    draining: bool = False
    lease_duration_s: float = 0.0
    started_at: str = ""
    contested_by: str | None = None
    has_session: bool = False
    activity: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    unknown: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def mark(self) -> Mark:
        return self.incarnation, self.tick

    def peer(self, *, is_new: bool) -> Peer:
        return Peer(
            name=self.name,
            pipelines=frozenset(self.pipelines),
            leases_max=self.leases_max,
            draining=self.draining,
            is_new=is_new,
        )


def host_id(name: str) -> str:
    return HOSTS_PREFIX + name


def encode_host(host: HostRecord) -> str:
    body: dict[str, object] = {
        **host.unknown,
        "version": VERSION,
        "host": host.name,
        "incarnation": host.incarnation,
        "tick": host.tick,
        "pipelines": list(host.pipelines),
        "leasesMax": host.leases_max,
        "draining": host.draining,
        "leaseDurationS": host.lease_duration_s,
        "startedAt": host.started_at,
        "contestedBy": host.contested_by,
        **({"sessions": SESSIONS} if host.has_session else {}),
        "activity": dict(host.activity),
    }
    return to_json(body)


def decode_host(id: str, body: str) -> HostRecord:
    """Raises InvalidDocument."""
    fields = Fields.parse(id, body)
    fields.version(VERSION)
    host = HostRecord(
        name=fields.text("host", NAME_BYTES_MAX),
        incarnation=fields.text("incarnation", NAME_BYTES_MAX),
        tick=fields.integer("tick"),
        pipelines=fields.texts("pipelines", NAME_BYTES_MAX, PIPELINES_MAX),
        leases_max=fields.optional_integer("leasesMax"),
        draining=fields.boolean("draining"),
        lease_duration_s=fields.number("leaseDurationS"),
        started_at=fields.text("startedAt", NAME_BYTES_MAX),
        contested_by=fields.optional_text("contestedBy", NAME_BYTES_MAX),
        has_session=fields.has("sessions") and fields.integer("sessions") > 0,
        activity=fields.mapping("activity"),
        unknown=fields.unknown(_FIELDS),
    )
    if id != host_id(host.name):
        fields.refuse("host", f"is {host.name!r}, which belongs under another id")
    return host
