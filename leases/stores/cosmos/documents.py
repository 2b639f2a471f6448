"""Our ids and bodies <-> documents of the container. Pure.

A lease of a pipeline that reads a Cosmos container is .NET's lease document (`leasehold.leases.dotnet`). Everything else (hosts,
`info`, leases of other feeds) is a document of our own. Its id has the prefix `leasehold:`, with `:` for `/` and `~`
for `%`, which Cosmos DB's ids permit. Its body is one text, so that numbers stay exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from leasehold.leases.document import encode_lease, lease_id, lease_prefix, unreadable
from leasehold.leases.dotnet import DOCUMENT, decode, document_id, stays
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.lease import Lease
from leasehold.leases.store import Stored

Document = Mapping[str, object]

OWN = "leasehold:"
"""No id of .NET begins with this, nor do the ids that KEDA searches for: those begin with the account's name and a
dot.
"""
PARTITION_KEY = "partitionKey"
_TO_DOCUMENT = str.maketrans("/%", ":~")
_FROM_DOCUMENT = str.maketrans(":~", "/%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The documents of a pipeline's leases: the prefix of their ids, and the mode that they were made for."""

    pipeline: str
    prefix: str
    mode: str


def own_id(id: str) -> str:
    return OWN + id.translate(_TO_DOCUMENT)


def info_document_id(family: Family) -> str:
    """The id of a pipeline's `info`. It contains the leases' prefix, so that the pipeline finds it under another
    name, too.
    """
    return f"{OWN}{family.prefix}:info"


def own_stored(document: Document, name: str | None = None) -> Stored:
    """name: the id that it represents, if the document's own id does not show it."""
    body = document.get("body")
    if name is None:
        name = str(document["id"]).removeprefix(OWN).translate(_FROM_DOCUMENT)
    return Stored(name, body if isinstance(body, str) else "", etag_of(document))


def etag_of(document: Document) -> str:
    return str(document.get("_etag", ""))


def lease_of(id: str, pipelines: Iterable[str]) -> tuple[str, str] | None:
    """Pipeline and partition of a lease that is stored in .NET's format; None for every other id."""
    for pipeline in pipelines:
        if id.startswith(lease_prefix(pipeline)):
            partition = unquote(id.removeprefix(lease_prefix(pipeline)))
            return (pipeline, partition) if partition and lease_id(pipeline, partition) == id else None
    return None


def lease_stored(family: Family, documents: list[Document]) -> Stored:
    """A lease, from the documents that have its id; if there are several, or one is not a lease, the reason it is
    unreadable.
    """
    first = documents[0]
    token = str(first["id"]).removeprefix(document_id(family.prefix, ""))
    name = lease_id(family.pipeline, token)
    try:
        if len(documents) > 1:
            raise InvalidDocument(_doubled(documents))
        if lease_of(name, (family.pipeline,)) is None:
            raise InvalidDocument(f"document '{first['id']}' has a lease token that is too long: delete it")
        body = _body(family, first)
    except InvalidDocument as error:
        body = unreadable(str(error))
    return Stored(name, body, etag_of(first))


def is_made_anew(lease: Lease) -> bool:
    """Whether the lease does not come from a document that was read."""
    return DOCUMENT not in lease.unknown


def over_unreadable(family: Family, document: Document, former: Document) -> Document:
    """A new lease's document, with the former one's fields except the invalid ones."""
    bounds, others = stays(former)
    within = {**bounds, **document}
    whole = {**others, **within}
    try:
        _body(family, whole)
    except InvalidDocument:
        return within
    return whole


def _body(family: Family, document: Document) -> str:
    """Raises InvalidDocument."""
    return encode_lease(decode(document, pipeline=family.pipeline, prefix=family.prefix, mode=family.mode))


def _doubled(documents: list[Document]) -> str:
    keys = ", ".join(repr(document.get(PARTITION_KEY)) for document in documents)
    return (
        f"{len(documents)} documents have the id '{documents[0]['id']}', with the {PARTITION_KEY} {keys}: find out which one"
        " holds the right position, and delete the others"
    )


def leases_stored(family: Family, documents: Iterable[Document]) -> list[Stored]:
    by_id: dict[object, list[Document]] = {}
    for document in documents:
        by_id.setdefault(document["id"], []).append(document)
    return [lease_stored(family, group) for group in by_id.values()]
