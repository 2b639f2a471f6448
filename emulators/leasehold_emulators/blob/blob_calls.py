"""Requests for blobs: content as a whole, in blocks, or appended; ranges, metadata, properties and leases."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from leasehold_emulators.blob import conditions, leasing
from leasehold_emulators.blob.call import XML, Call, Reply, date
from leasehold_emulators.blob.lease import Lease, after_write, check_read, check_write
from leasehold_emulators.blob.refused import Refused
from leasehold_emulators.blob.store import Blob, Store

RANGE = re.compile(r"bytes=(\d+)-(\d*)")
APPEND_BYTES_MAX = 100 << 20
PROPERTIES = (
    "Content-Type",
    "Content-Encoding",
    "Content-Language",
    "Content-Disposition",
    "Cache-Control",
    "Content-MD5",
)


def answer(store: Store, call: Call, now: float) -> Reply:
    """Raises Refused, NotModified."""
    if "snapshot" in call.query or "versionid" in call.query or call.kind not in CALLS:
        raise Refused(
            "NotImplemented", f"{call.method} {call.comp} of a blob is not supported, nor are snapshots and versions."
        )
    return CALLS[call.kind](store, call, now)


# --- writes of content --------------------------------------------------------------------------------------------------


def _put(store: Store, call: Call, now: float) -> Reply:
    if "x-ms-copy-source" in call.headers:
        return _copy(store, call, now)
    kind = call.headers.get("x-ms-blob-type", "")
    if kind not in ("BlockBlob", "AppendBlob"):
        code = "NotImplemented" if kind == "PageBlob" else "MissingRequiredHeader"
        raise Refused(code, f"x-ms-blob-type {kind!r}: only block blobs and append blobs are supported.")
    if kind == "AppendBlob" and call.body:
        raise Refused("InvalidHeaderValue", "An append blob is created without content.")
    digest = _checked_md5(call)
    before = _writable(store, call, now)
    new = _fresh(store, call, now, kind, before)
    if kind == "BlockBlob":
        new = replace(new, size=len(call.body), headers={"Content-MD5": digest} | new.headers)
    new = store.put_blob(new)
    if kind == "AppendBlob":
        store.delete_content(new)
        return _written(new)
    store.write(new, call.body)
    return _written(new, {"Content-MD5": digest})


def _copy(store: Store, call: Call, now: float) -> Reply:
    """Copy a blob of this account, at once."""
    path = unquote(urlsplit(call.headers["x-ms-copy-source"]).path)
    account, _, rest = path.lstrip("/").partition("/")
    container, _, name = rest.partition("/")
    source = store.blob(container, name) if account == call.account else None
    if source is None:
        raise Refused("BlobNotFound", f"The source {path} is not a blob of this account.")
    content = store.read(source, 0, source.size)
    new = _fresh(store, call, now, source.kind, _writable(store, call, now))
    new = replace(new, size=len(content), headers=source.headers, metadata=call.metadata or source.metadata)
    new = store.put_blob(new)
    store.write(new, content)
    reply = _written(new, {"x-ms-copy-id": "00000000-0000-0000-0000-000000000000", "x-ms-copy-status": "success"})
    reply.status = 202
    return reply


def _fresh(store: Store, call: Call, now: float, kind: str, before: Blob | None) -> Blob:
    """A new blob that replaces the present one, if any, and keeps that one's lease if it is held."""
    return Blob(
        container=call.container,
        name=call.blob,
        kind=kind,
        etag=store.next_etag(now),
        created=before.created if before and before.etag else now,
        modified=now,
        headers={"Content-Type": "application/octet-stream"} | _properties(call),
        metadata=call.metadata,
        lease=after_write(before.lease, now) if before else Lease(),
        id=before.id if before else None,
    )


def _writable(store: Store, call: Call, now: float) -> Blob | None:
    """The present blob, committed or not, or None. Raises Refused if it must not be replaced."""
    before = store.blob(call.container, call.blob, with_uncommitted=True)
    committed = before if before and before.etag else None
    conditions.check(
        call,
        committed.etag if committed else None,
        committed.modified if committed else 0.0,
        is_read=False,
        exists_code="BlobAlreadyExists",
    )
    check_write(before.lease if before else Lease(), call.headers.get("x-ms-lease-id"), now)
    return before


def _block(store: Store, call: Call, now: float) -> Reply:
    digest = _checked_md5(call)
    block = call.query.get("blockid", "")
    if not block:
        raise Refused("InvalidQueryParameterValue", "blockid")
    blob = store.blob(call.container, call.blob, with_uncommitted=True)
    if blob is None:
        uncommitted = Blob(container=call.container, name=call.blob, kind="BlockBlob", created=now, modified=now)
        blob = store.put_blob(uncommitted, is_committed=False)
    check_write(blob.lease, call.headers.get("x-ms-lease-id"), now)
    if blob.kind != "BlockBlob":
        raise Refused("InvalidBlobType")
    if any(len(each.id) != len(block) for each in store.blocks(blob, committed=False)):
        raise Refused("InvalidBlobOrBlock", "All block ids of a blob have one length.")
    store.stage(blob, block, call.body)
    return Reply(status=201, headers={"Content-MD5": digest, "x-ms-request-server-encrypted": "true"})


def _commit(store: Store, call: Call, now: float) -> Reply:
    before = _writable(store, call, now)
    if before and before.kind != "BlockBlob":
        raise Refused("InvalidBlobType")
    wanted = _block_list(call.body)
    new = store.put_blob(_fresh(store, call, now, "BlockBlob", before))
    placed = store.commit_blocks(new, wanted)
    if placed is None:
        raise Refused("InvalidBlockList")
    new = store.put_blob(replace(new, size=placed[0]))
    return _written(new)


def _block_list(body: bytes) -> list[tuple[str, str]]:
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        raise Refused("InvalidXmlDocument") from None
    return [(child.tag, (child.text or "").strip()) for child in root]


def _blocks(store: Store, call: Call, now: float) -> Reply:
    blob = store.blob(call.container, call.blob, with_uncommitted=True)
    if blob is None:
        raise Refused("BlobNotFound")
    kind = call.query.get("blocklisttype", "committed").lower()
    inside = ""
    for element, committed in (("CommittedBlocks", True), ("UncommittedBlocks", False)):
        if kind in ("all", element.removesuffix("Blocks").lower()):
            found = store.blocks(blob, committed=committed)
            listed = "".join(f"<Block><Name>{each.id}</Name><Size>{each.size}</Size></Block>" for each in found)
            inside += f"<{element}>{listed}</{element}>"
    headers = {"Content-Type": "application/xml", "x-ms-blob-content-length": str(blob.size)}
    if blob.etag:
        headers |= _stamp(blob)
    return Reply(headers=headers, body=f"{XML}<BlockList>{inside}</BlockList>".encode())


def _append(store: Store, call: Call, now: float) -> Reply:
    digest = _checked_md5(call)
    blob = _existing(store, call, now, is_read=False)
    if blob.kind != "AppendBlob":
        raise Refused("InvalidBlobType")
    if len(call.body) > APPEND_BYTES_MAX:
        raise Refused("RequestBodyTooLarge")
    at, most = call.number("x-ms-blob-condition-appendpos"), call.number("x-ms-blob-condition-maxsize")
    if at is not None and at != blob.size:
        raise Refused("AppendPositionConditionNotMet")
    if most is not None and blob.size + len(call.body) > most:
        raise Refused("MaxBlobSizeConditionNotMet")
    store.append(blob, call.body)
    new = store.put_blob(
        replace(_touched(store, blob, now), size=blob.size + len(call.body), blocks=blob.blocks + 1),
    )
    more = {"x-ms-blob-append-offset": str(blob.size), "x-ms-blob-committed-block-count": str(new.blocks)}
    return _written(new, {"Content-MD5": digest, **more})


def _touched(store: Store, blob: Blob, now: float) -> Blob:
    """The blob as every write leaves it."""
    return replace(blob, etag=store.next_etag(now), modified=now, lease=after_write(blob.lease, now))


def _checked_md5(call: Call) -> str:
    digest = base64.b64encode(hashlib.md5(call.body, usedforsecurity=False).digest()).decode()
    if call.headers.get("content-md5", digest) != digest:
        raise Refused("Md5Mismatch")
    return digest


# --- reads --------------------------------------------------------------------------------------------------------------


def _head(store: Store, call: Call, now: float) -> Reply:
    blob = _existing(store, call, now, is_read=True)
    return Reply(headers=_described(blob, now) | {"Content-Length": str(blob.size)})


def _get(store: Store, call: Call, now: float) -> Reply:
    blob = _existing(store, call, now, is_read=True)
    headers = _described(blob, now)
    wanted = RANGE.fullmatch(call.headers.get("x-ms-range") or call.headers.get("range") or "")
    if wanted is None:
        return Reply(headers=headers, body=store.read(blob, 0, blob.size))
    start, last = int(wanted[1]), int(wanted[2]) if wanted[2] else blob.size - 1
    if start >= blob.size or last < start:
        raise Refused("InvalidRange", headers={"Content-Range": f"bytes */{blob.size}"})
    end = min(last + 1, blob.size)
    body = store.read(blob, start, end)
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{blob.size}"
    if digest := headers.pop("Content-MD5", None):
        headers["x-ms-blob-content-md5"] = digest
    if call.headers.get("x-ms-range-get-content-md5", "").lower() == "true":
        headers["Content-MD5"] = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    return Reply(status=206, headers=headers, body=body)


def _described(blob: Blob, now: float) -> dict[str, str]:
    headers = _stamp(blob) | {name: value for name, value in blob.headers.items() if value}
    headers |= {f"x-ms-meta-{name}": value for name, value in blob.metadata.items()}
    headers |= {"x-ms-blob-type": blob.kind, "x-ms-creation-time": date(blob.created), "Accept-Ranges": "bytes"}
    if blob.kind == "AppendBlob":
        headers["x-ms-blob-committed-block-count"] = str(blob.blocks)
    return headers | leasing.lease_headers(blob.lease, now) | {"x-ms-server-encrypted": "true"}


# --- other requests for a blob -------------------------------------------------------------------------------------------


def _delete(store: Store, call: Call, now: float) -> Reply:
    store.delete_blob(_existing(store, call, now, is_read=False))
    return Reply(status=202, headers={"x-ms-delete-type-permanent": "true"})


def _set_metadata(store: Store, call: Call, now: float) -> Reply:
    blob = _existing(store, call, now, is_read=False)
    new = store.put_blob(replace(_touched(store, blob, now), metadata=call.metadata))
    return Reply(headers=_stamp(new) | {"x-ms-request-server-encrypted": "true"})


def _set_properties(store: Store, call: Call, now: float) -> Reply:
    blob = _existing(store, call, now, is_read=False)
    new = store.put_blob(replace(_touched(store, blob, now), headers=_properties(call)))
    return Reply(headers=_stamp(new))


def _lease(store: Store, call: Call, now: float) -> Reply:
    blob = store.blob(call.container, call.blob)
    if blob is None:
        raise Refused("BlobNotFound")
    conditions.check(call, blob.etag, blob.modified, is_read=False)
    lease, reply = leasing.act(blob.lease, call, now)
    store.put_blob(replace(blob, lease=lease))
    reply.headers |= _stamp(blob)
    return reply


def _existing(store: Store, call: Call, now: float, *, is_read: bool) -> Blob:
    """Raises Refused, NotModified."""
    blob = store.blob(call.container, call.blob)
    if blob is None:
        raise Refused("BlobNotFound")
    conditions.check(call, blob.etag, blob.modified, is_read=is_read)
    check = check_read if is_read else check_write
    check(blob.lease, call.headers.get("x-ms-lease-id"), now)
    return blob


def _properties(call: Call) -> dict[str, str]:
    """The headers of the content, as the client sets them."""
    given = {name: call.headers.get(f"x-ms-blob-{name.lower()}") for name in PROPERTIES}
    plain = {"Content-Type": call.headers.get("content-type")} if call.kind == "blob.put" else {}
    return {name: value for name, value in (plain | {k: v for k, v in given.items() if v is not None}).items() if value}


def _stamp(blob: Blob) -> dict[str, str]:
    return {"ETag": blob.etag, "Last-Modified": date(blob.modified)}


def _written(blob: Blob, more: dict[str, str] | None = None) -> Reply:
    return Reply(status=201, headers=_stamp(blob) | {"x-ms-request-server-encrypted": "true"} | (more or {}))


CALLS: dict[str, Callable[[Store, Call, float], Reply]] = {
    "blob.put": _put,
    "blob.block": _block,
    "blob.commit": _commit,
    "blob.blocks": _blocks,
    "blob.append": _append,
    "blob.get": _get,
    "blob.head": _head,
    "blob.delete": _delete,
    "blob.metadata": _set_metadata,
    "blob.properties": _set_properties,
    "blob.lease": _lease,
}
