"""How to reach an event hub: a namespace and its hub, and a connection string or an identity. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

from leasehold.common.azure import DEFAULT, Identity
from leasehold.pipeline.endpoint import Endpoint

Transport = Literal["amqp", "websockets"]
_HOST = re.compile(r"[A-Za-z0-9._-]+(?::[0-9]{1,5})?", re.ASCII)
_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}", re.ASCII)
_GROUP = re.compile(r"\$Default|[A-Za-z0-9][A-Za-z0-9._-]{0,49}", re.ASCII | re.IGNORECASE)
_LOOKS = "Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=...;SharedAccessKey=..."


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHubAccount:
    """The address of a hub, and the way to it.

    host          the namespace's, with a port if it is not the usual one
    identity      the client id to use. Without it and a connection string, azure-identity finds the credentials
    ca_file       authorities to trust, instead of the usual ones
    is_emulator   the namespace has no TLS, according to the connection string
    entry         the host to connect to instead of the namespace, with a port if it is not the usual one
    proxy         an HTTP proxy, with its credentials
    """

    host: str
    hub: str
    connection_string: str | None = field(default=None, repr=False)
    identity: Identity | None = None
    transport: Transport = "amqp"
    ca_file: str | None = None
    is_emulator: bool = False
    entry: str | None = None
    proxy: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """A name for people, which also tells hubs apart. It holds no secret."""
        return f"{self.host}/{self.hub}"

    @property
    def endpoint(self) -> Endpoint:
        server, _, port = self.host.partition(":")
        return Endpoint(system="eventhubs", name=self.hub, server=server, port=int(port) if port else None)

    @property
    def custom_endpoint(self) -> str | None:
        """The address to connect to: `entry`, or the namespace if the transport would ignore its port. None: the SDK's own."""
        if self.entry is not None:
            return f"sb://{self.entry}"
        has_port = ":" in self.host
        return f"sb://{self.host}" if has_port and (self.transport == "websockets" or not self.is_emulator) else None

    @property
    def http_proxy(self) -> dict[str, str | int] | None:
        """The proxy in the form that the SDK takes."""
        if self.proxy is None:
            return None
        parts = urlsplit(self.proxy)
        assert parts.port is not None, "account_of has checked it"
        found: dict[str, str | int] = {"proxy_hostname": f"http://{parts.hostname}", "proxy_port": parts.port}
        who: dict[str, str | int] = {
            "username": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
        }
        return found | who if parts.username else found


def account_of(
    *,
    connection_string: str | None = None,
    namespace: str | None = None,
    event_hub: str | None = None,
    identity: Identity | None = None,
    transport: Transport = "amqp",
    ca_file: str | None = None,
    endpoint: str | None = None,
    proxy: str | None = None,
) -> EventHubAccount:
    """identity: DEFAULT, or a client id. endpoint: the host to connect to instead of the namespace, such as a gateway's. proxy:
    an HTTP proxy, like http://USER:PASSWORD@HOST:PORT, for the transport `websockets`.

    Raises ValueError, without the values: they may be secrets.
    """
    is_emulator = False
    if connection_string is not None:
        if namespace is not None or identity is not None:
            raise ValueError(
                "has `connection_string`, which contains address and credentials: remove `namespace` and `identity`"
            )
        namespace, entity, is_emulator = _parts(connection_string)
        event_hub = _one_hub(entity, event_hub)
    elif identity is None:
        raise ValueError("needs `connection_string`, or `namespace` and `identity`")
    if namespace is None or not _is_host(namespace):
        raise ValueError("`namespace` must be a name like NAMESPACE.servicebus.windows.net, without sb:// before it")
    if event_hub is None or not _HUB.fullmatch(event_hub):
        raise ValueError("needs the hub's name: `event_hub`, or EntityPath=... in `connection_string`")
    if endpoint is not None and not _is_host(endpoint):
        raise ValueError(
            "`endpoint` must be a host like GATEWAY.example.com or GATEWAY.example.com:5671, without sb:// before it"
        )
    if proxy is not None:
        _check_proxy(proxy, transport)
    return EventHubAccount(
        host=namespace,
        hub=event_hub,
        connection_string=connection_string,
        identity=None if identity == DEFAULT else identity,
        transport=transport,
        ca_file=ca_file,
        is_emulator=is_emulator,
        entry=endpoint,
        proxy=proxy,
    )


def is_consumer_group(name: str) -> bool:
    """Whether a consumer group can have this name."""
    return _GROUP.fullmatch(name) is not None


def _parts(connection_string: str) -> tuple[str, str | None, bool]:
    """Host, EntityPath, and whether it is an emulator's."""
    pairs = (part.partition("=") for part in connection_string.strip().split(";") if part.strip())
    found = {name.strip().lower(): value.strip() for name, _, value in pairs}
    try:
        host = urlsplit(found["endpoint"]).netloc
    except (KeyError, ValueError):
        host = ""
    if not _is_host(host):
        raise ValueError(f"`connection_string` must look like {_LOOKS}")
    has_key = bool(found.get("sharedaccesskeyname")) and bool(found.get("sharedaccesskey"))
    if has_key == bool(found.get("sharedaccesssignature")):
        raise ValueError(
            "`connection_string` must hold SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature"
        )
    return host, found.get("entitypath") or None, found.get("usedevelopmentemulator", "").lower() == "true"


def _one_hub(entity: str | None, event_hub: str | None) -> str | None:
    if entity is not None and event_hub is not None and entity.lower() != event_hub.lower():
        raise ValueError("`event_hub` and EntityPath=... in `connection_string` name two hubs: keep one of them")
    return event_hub or entity


def _check_proxy(proxy: str, transport: Transport) -> None:
    try:
        parts = urlsplit(proxy)
        is_one = parts.scheme == "http" and bool(parts.hostname) and bool(parts.port) and parts.path in ("", "/")
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError("`proxy` must be an address like http://PROXY:3128 or http://USER:PASSWORD@PROXY:3128")
    if transport != "websockets":
        raise ValueError("`proxy` is for HTTP, which only `transport: websockets` speaks: set that, or remove `proxy`")


def _is_host(text: str) -> bool:
    if not _HOST.fullmatch(text):
        return False
    port = text.rpartition(":")[2] if ":" in text else "1"
    return 0 < int(port) < 65_536
