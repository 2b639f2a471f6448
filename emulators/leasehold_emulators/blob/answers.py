"""Answers to requests for the account and its containers; blobs have their own module."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from xml.sax.saxutils import escape, quoteattr

from leasehold_emulators.blob import blob_calls, conditions, leasing
from leasehold_emulators.blob.call import XML, Call, Reply, date
from leasehold_emulators.blob.lease import check_read, check_write
from leasehold_emulators.blob.refused import Refused
from leasehold_emulators.blob.store import Blob, Container, Store

NAME = re.compile(r"\$root|\$logs|[a-z0-9](?:[a-z0-9]|-(?!-)){1,61}[a-z0-9]")
RESULTS_MAX = 5000


def answer(store: Store, call: Call, now: float) -> Reply:
    """Raises Refused, NotModified. What it changes is committed by the caller's transaction."""
    if call.blob:
        if store.container(call.container) is None:
            raise Refused("ContainerNotFound")
        return blob_calls.answer(store, call, now)
    if call.container:
        if call.kind not in CONTAINER_CALLS:
            raise Refused("NotImplemented", f"{call.method} {call.comp} of a container is not supported.")
        return CONTAINER_CALLS[call.kind](store, call, now)
    if call.comp == "list":
        return _containers(store, call)
    if call.query.get("restype") == "account":
        return Reply(headers={"x-ms-sku-name": "Standard_RAGRS", "x-ms-account-kind": "StorageV2"})
    if call.query.get("restype") == "service" and call.method == "GET":
        return _xml("<StorageServiceProperties><Logging><Version>1.0</Version></Logging></StorageServiceProperties>")
    raise Refused("NotImplemented", f"{call.method} {call.comp} of an account is not supported.")


def _xml(content: str) -> Reply:
    return Reply(headers={"Content-Type": "application/xml"}, body=(XML + content).encode())


def _containers(store: Store, call: Call) -> Reply:
    limit = _limit(call)
    found = store.containers(call.query.get("prefix", ""), call.query.get("marker", ""), limit + 1)
    shown = "".join(
        _container_element(each, with_metadata="metadata" in call.query.get("include", "")) for each in found[:limit]
    )
    marker = found[limit].name if len(found) > limit else ""
    inside = f"{_echo(call)}<Containers>{shown}</Containers><NextMarker>{escape(marker)}</NextMarker>"
    return _xml(f"<EnumerationResults ServiceEndpoint={quoteattr(call.endpoint)}>{inside}</EnumerationResults>")


def _container_element(container: Container, *, with_metadata: bool) -> str:
    properties = f"<Last-Modified>{date(container.modified)}</Last-Modified><Etag>{escape(container.etag)}</Etag>"
    state = "<LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>"
    metadata = _metadata_element(container.metadata) if with_metadata else ""
    return f"<Container><Name>{container.name}</Name><Properties>{properties}{state}</Properties>{metadata}</Container>"


def _metadata_element(metadata: dict[str, str]) -> str:
    return f"<Metadata>{''.join(f'<{name}>{escape(value)}</{name}>' for name, value in metadata.items())}</Metadata>"


def _echo(call: Call) -> str:
    given = {"Prefix": "prefix", "Marker": "marker", "MaxResults": "maxresults", "Delimiter": "delimiter"}
    return "".join(
        f"<{element}>{escape(call.query[name])}</{element}>" for element, name in given.items() if call.query.get(name)
    )


def _limit(call: Call) -> int:
    given = call.query.get("maxresults")
    if given is None:
        return RESULTS_MAX
    if not given.isdigit() or not int(given):
        raise Refused("InvalidQueryParameterValue", f"maxresults: {given}")
    return min(int(given), RESULTS_MAX)


# --- containers ---------------------------------------------------------------------------------------------------------


def _container(store: Store, call: Call) -> Container:
    if found := store.container(call.container):
        return found
    raise Refused("ContainerNotFound")


def _create(store: Store, call: Call, now: float) -> Reply:
    if not NAME.fullmatch(call.container):
        raise Refused("InvalidResourceName", f"Container {call.container!r}.")
    if store.container(call.container):
        raise Refused("ContainerAlreadyExists")
    made = Container(name=call.container, etag=store.next_etag(now), modified=now, metadata=call.metadata)
    store.put_container(made)
    return Reply(status=201, headers=_stamp(made))


def _read(store: Store, call: Call, now: float) -> Reply:
    found = _container(store, call)
    check_read(found.lease, call.headers.get("x-ms-lease-id"), now)
    metadata = {f"x-ms-meta-{name}": value for name, value in found.metadata.items()}
    more = {"x-ms-has-immutability-policy": "false", "x-ms-has-legal-hold": "false"}
    return Reply(headers=_stamp(found) | leasing.lease_headers(found.lease, now) | metadata | more)


def _acl(store: Store, call: Call, now: float) -> Reply:
    reply = _xml("<SignedIdentifiers />")
    reply.headers |= _stamp(_container(store, call))
    return reply


def _delete(store: Store, call: Call, now: float) -> Reply:
    found = _container(store, call)
    check_write(found.lease, call.headers.get("x-ms-lease-id"), now)
    conditions.check(call, found.etag, found.modified, is_read=False)
    store.delete_container(found.name)
    return Reply(status=202)


def _set_metadata(store: Store, call: Call, now: float) -> Reply:
    found = _container(store, call)
    check_read(found.lease, call.headers.get("x-ms-lease-id"), now)
    conditions.check(call, found.etag, found.modified, is_read=False)
    new = replace(found, metadata=call.metadata, etag=store.next_etag(now), modified=now)
    store.put_container(new)
    return Reply(headers=_stamp(new))


def _lease(store: Store, call: Call, now: float) -> Reply:
    found = _container(store, call)
    conditions.check(call, found.etag, found.modified, is_read=False)
    lease, reply = leasing.act(found.lease, call, now)
    store.put_container(replace(found, lease=lease))
    reply.headers |= _stamp(found)
    return reply


def _stamp(container: Container) -> dict[str, str]:
    return {"ETag": container.etag, "Last-Modified": date(container.modified)}


# --- the list of blobs --------------------------------------------------------------------------------------------------


def _blobs(store: Store, call: Call, now: float) -> Reply:
    _container(store, call)
    limit, include = _limit(call), call.query.get("include", "").split(",")
    shown, marker = _page(store, call, limit, with_uncommitted="uncommittedblobs" in include)
    elements = "".join(
        f"<BlobPrefix><Name>{escape(each)}</Name></BlobPrefix>"
        if isinstance(each, str)
        else _blob_element(each, now, with_metadata="metadata" in include)
        for each in shown
    )
    inside = f"{_echo(call)}<Blobs>{elements}</Blobs><NextMarker>{escape(marker)}</NextMarker>"
    place = f"ServiceEndpoint={quoteattr(call.endpoint)} ContainerName={quoteattr(call.container)}"
    return _xml(f"<EnumerationResults {place}>{inside}</EnumerationResults>")


def _page(store: Store, call: Call, limit: int, *, with_uncommitted: bool) -> tuple[list[Blob | str], str]:
    """The blobs and folders (prefixes that end with the delimiter) of one page, and the marker of the next page."""
    prefix, delimiter = call.query.get("prefix", ""), call.query.get("delimiter", "")
    shown: list[Blob | str] = []
    start: str | None = call.query.get("marker", "")
    while start is not None:
        begin, start = start, None
        for blob in store.blobs(call.container, prefix, begin, with_uncommitted=with_uncommitted):
            if len(shown) == limit:
                return shown, blob.name
            rest = blob.name[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest[: rest.index(delimiter) + len(delimiter)]
                shown.append(folder)
                start = folder + "\U0010ffff"  # after all names in the folder
                break
            shown.append(blob)
    return shown, ""


def _blob_element(blob: Blob, now: float, *, with_metadata: bool) -> str:
    values = {
        "Creation-Time": date(blob.created),
        "Last-Modified": date(blob.modified),
        "Etag": blob.etag.strip('"'),
        "Content-Length": str(blob.size),
        "Content-Type": blob.headers.get("Content-Type", ""),
        "Content-Encoding": blob.headers.get("Content-Encoding", ""),
        "Content-Language": blob.headers.get("Content-Language", ""),
        "Content-MD5": blob.headers.get("Content-MD5", ""),
        "Cache-Control": blob.headers.get("Cache-Control", ""),
        "Content-Disposition": blob.headers.get("Content-Disposition", ""),
        "BlobType": blob.kind,
        "LeaseStatus": leasing.status(blob.lease, now),
        "LeaseState": blob.lease.state(now),
        "ServerEncrypted": "true",
    }
    properties = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in values.items())
    metadata = _metadata_element(blob.metadata) if with_metadata else ""
    return f"<Blob><Name>{escape(blob.name)}</Name><Properties>{properties}</Properties>{metadata}</Blob>"


CONTAINER_CALLS: dict[str, Callable[[Store, Call, float], Reply]] = {
    "container.create": _create,
    "container.read": _read,
    "container.acl": _acl,
    "container.delete": _delete,
    "container.metadata": _set_metadata,
    "container.lease": _lease,
    "container.blobs": _blobs,
}
