"""Ids and bodies of ours <-> documents of the container. Pure.

A lease of a pipeline that reads a Cosmos container is .NET's lease document (`leases.dotnet`). Everything else (hosts, `info`,
leases of other feeds) is a document of our own: the id behind `leasehold:`, with `:` for `/` and `~` for `%`, which Cosmos DB's
ids bear, and the body as one text, so that numbers come back exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from leases.document import encode_lease, lease_id, lease_prefix, unreadable
from leases.dotnet import DOCUMENT, decode, document_id, stays
from leases.errors import InvalidDocument
from leases.lease import Lease
from leases.store import Stored

Document = Mapping[str, object]

OWN = "leasehold:"
"""No id of .NET's begins so, nor does what KEDA looks for: those have the account's name and a dot there."""
PARTITION_KEY = "partitionKey"
_TO_DOCUMENT = str.maketrans("/%", ":~")
_FROM_DOCUMENT = str.maketrans(":~", "/%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Where a pipeline's leases are: what their ids begin with, and the mode that they were made for."""

    pipeline: str
    prefix: str
    mode: str


def own_id(id: str) -> str:
    return OWN + id.translate(_TO_DOCUMENT)


def info_document_id(family: Family) -> str:
    """Of a pipeline's `info`: it goes with its leases, which another name of the pipeline would find as well."""
    return f"{OWN}{family.prefix}:info"


def own_stored(document: Document, name: str | None = None) -> Stored:
    """name: what its id stands for, where that does not say so itself."""
    body = document.get("body")
    if name is None:
        name = str(document["id"]).removeprefix(OWN).translate(_FROM_DOCUMENT)
    return Stored(name, body if isinstance(body, str) else "", etag_of(document))


def etag_of(document: Document) -> str:
    return str(document.get("_etag", ""))


def lease_of(id: str, pipelines: Iterable[str]) -> tuple[str, str] | None:
    """Pipeline and partition of a lease that is kept in a document of .NET's; None for every other id."""
    for pipeline in pipelines:
        if id.startswith(lease_prefix(pipeline)):
            partition = unquote(id.removeprefix(lease_prefix(pipeline)))
            return (pipeline, partition) if partition and lease_id(pipeline, partition) == id else None
    return None


def lease_stored(family: Family, documents: list[Document]) -> Stored:
    """A lease, of the documents that bear its id: of more than one, or one that is no lease, why it cannot be read."""
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
    """Whether it does not come from a document that was read."""
    return DOCUMENT not in lease.unknown


def over_unreadable(family: Family, document: Document, former: Document) -> Document:
    """The document of a lease made anew, with what may stay of the former one: all but what was wrong with it."""
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
