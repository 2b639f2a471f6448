"""Rows as writes of single documents, and what the account's answers to them mean. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from leasehold.common.nesting import NestedTooDeeply, parsed_json
from leasehold.pipeline.async_sink import Converted, json_bytes
from leasehold.pipeline.async_sink.json_rows import Content, body_of, check_json_columns, row_bytes
from leasehold.pipeline.connectors.cosmos.change_feed_request import GONE, THROTTLED, TIMEOUT, FeedAnswer
from leasehold.pipeline.connectors.cosmos.key_paths import fields_of, value_at
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.values import is_text

Kind = Literal["upsert", "patch", "delete"]
Missing = Literal["stop", "skip"]
Verdict = Literal["taken", "retry", "refused"]
KINDS: Mapping[str | None, Kind] = {
    None: "upsert",
    "create": "upsert",
    "replace": "upsert",
    "upsert": "upsert",
    "patch": "patch",
    "delete": "delete",
}
"""By the value of an event's `operation`."""
_ID = re.compile(r"[^/\\?#\x00-\x1f\x7f]*[^/\\?#\x00-\x1f\x7f ]")
ID_BYTES_MAX = 1023
PATCHES_MAX = 10
"""The most patches that Cosmos DB takes in one request."""
RETRY_WITH, NO_CONTAINER = 449, 1003
NOT_DONE = (GONE, THROTTLED, RETRY_WITH)
"""Passing answers that say that the write was refused. After the others (408, 5xx, none), it may still take effect."""
OF_CONTENT = (400, 404, 409, 413)
"""Refusals of one document, while others can be written: a value, a patch of a missing document, a unique key, its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """key: the values of the partition key. document: of an upsert. patches: of a patch, in the service's form."""

    kind: Kind
    id: str
    key: tuple[str | int | float | bool, ...]
    document: Mapping[str, Any] = field(default_factory=dict)
    patches: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """How rows become writes.

    content: "row" for all columns but `operation`, "body" for the JSON object in the column `body`. operation: the column
    with the operation; without it rows are upserted. key_paths: of the container's partition key, like /account.
    """

    content: Content
    operation: str
    key_paths: Sequence[str]

    def check_columns(self, columns: pa.Schema, destination: str) -> None:
        """Raises SinkRejected if no row can become a document with an id and the partition key."""
        if self.content == "body":
            return
        document = pa.schema([field for field in columns if field.name != self.operation])
        check_json_columns(document, destination)
        subject = f"{destination} cannot take the output"
        if "id" in document.names and not _is_text(document.field("id").type):
            raise SinkRejected(
                f"{subject}: its column 'id' is {document.field('id').type}, and an `id` of Cosmos DB is a text: cast it to"
                " STRING in the transform"
            )
        for path in self.key_paths:
            first, *rest = fields_of(path)
            if first not in document.names and first != "id":
                raise SinkRejected(
                    f"{subject}: it has no column '{first}', and {path} is the container's partition key: select it in the"
                    " transform"
                )
            if first in document.names and not rest and pa.types.is_nested(document.field(first).type):
                raise SinkRejected(
                    f"{subject}: its column '{first}' is {document.field(first).type}, and {path}, the container's partition key,"
                    " is a text, a number or a boolean: choose one of its fields, or cast it in the transform"
                )

    def __call__(self, row: Mapping[str, Any], key: str) -> Converted | None:
        """None for a patch that changes nothing. Writes of one document keep their order. Raises ValueError."""
        word = row.get(self.operation)
        if word not in KINDS:
            raise ValueError(f"has '{word}' as `{self.operation}`: it may be {', '.join(str(k) for k in KINDS if k)}")
        document = self._document(row)
        write = self._write(KINDS[word], document, key)
        if write.kind == "patch" and not write.patches:
            return None
        size = len(json_bytes(document))
        return Converted(value=write, bytes=size, order=json.dumps([write.id, *write.key]))

    def _document(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if self.content == "row":
            rest = {name: value for name, value in row.items() if name != self.operation}
            found = parsed_json(row_bytes(rest), JSON_LEVELS_MAX)
        else:
            try:
                found = parsed_json(
                    body_of(row).decode(), JSON_LEVELS_MAX, _ONCE
                )  # as text: it would guess the encoding of bytes
            except NestedTooDeeply as error:
                raise ValueError(f"has a `body` that is {error}") from None
            except UnicodeDecodeError:
                raise ValueError("has a `body` that is not UTF-8") from None
            except json.JSONDecodeError as error:
                raise ValueError(f"has a `body` that is not JSON ({error})") from None
        if not isinstance(found, dict):
            raise ValueError("has a `body` that is not a JSON object")
        return found

    def _write(self, kind: Kind, document: dict[str, Any], key: str) -> Write:
        if kind == "upsert":
            # its key, so that a repeated row replaces itself; a slash is not allowed in an id
            document.setdefault("id", key.replace("/", ":"))
        name, values = _id(document), tuple(_value(document, path) for path in self.key_paths)
        if kind == "patch":
            return Write(kind=kind, id=name, key=values, patches=self._patches(document))
        return Write(kind=kind, id=name, key=values, document=document if kind == "upsert" else {})

    def _patches(self, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A column that is null is left alone; a field of a body that is null becomes null."""
        fixed = {"id", *(fields_of(path)[0] for path in self.key_paths)}
        patches = [
            {"op": "set", "path": "/" + name.replace("~", "~0").replace("/", "~1"), "value": value}
            for name, value in document.items()
            if name not in fixed and (value is not None or self.content == "body")
        ]
        if len(patches) > PATCHES_MAX:
            raise ValueError(f"would patch {len(patches)} fields, and Cosmos DB takes {PATCHES_MAX}: upsert it instead")
        return patches


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("has a `body` with an object that has a key twice")
    return found


_ONCE = json.JSONDecoder(object_pairs_hook=_unique)


def verdict(write: Write, answer: FeedAnswer, missing: Missing) -> Verdict:
    """missing: what to do about a patch of a document that does not exist."""
    if answer.status < 400:
        return "taken"
    if answer.status == 404 and answer.substatus != NO_CONTAINER:
        is_done = write.kind == "delete" or (write.kind == "patch" and missing == "skip")
        return "taken" if is_done else "refused"
    is_passing = answer.status in (TIMEOUT, GONE, THROTTLED, RETRY_WITH) or answer.status >= 500
    return "retry" if is_passing else "refused"


NEXT = {
    400: "correct the row",
    401: "check the key or the identity, and this machine's clock",
    403: "give the identity the role Cosmos DB Built-in Data Contributor, and let this machine pass the account's firewall",
    404: "a patch needs its document (or set `patch_missing: skip`), and everything its container",
    409: "another document has the values of a unique key",
    413: "Cosmos DB takes documents of 2 MB",
}


def _id(document: Mapping[str, Any]) -> str:
    """The document's id, if the service and azure-cosmos take it. `.` and `..` would be steps of a document's address."""
    name = document.get("id")
    if not isinstance(name, str) or not _ID.fullmatch(name) or name in (".", "..") or _bytes(name) > ID_BYTES_MAX:
        raise ValueError(
            "has no `id` that Cosmos DB takes: a text of at most 1,023 bytes without / \\ ? #, control characters and a space at"
            f" its end, and not . or .. (it is {_name_text(name)})"
        )
    return name


def _is_text(type: pa.DataType) -> bool:
    return is_text(type.value_type if pa.types.is_dictionary(type) else type)


def _bytes(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _name_text(name: object) -> str:
    return "missing" if name is None else f"{name!a:.80}"


def _value(document: Mapping[str, Any], path: str) -> str | int | float | bool:
    value = value_at(document, path)
    if not isinstance(value, str | int | float | bool):
        raise ValueError(f"has no text, number or boolean as {path}, the container's partition key")
    return value
