"""HTTP endpoints: as a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from leasehold.service.config.section import Buffering
from leasehold.service.config.types import NONE, Certificates, Headers, Text, Url

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.timing import Timing
    from leasehold.pipeline.sink import Sink

NO_HEADERS: Any = {}


class HttpSink(Buffering):
    """An HTTP service that takes rows as JSON by POST, at least once."""

    type: Literal["http"] = Field(
        default="http", description="An HTTP endpoint that takes JSON by POST; every row at least once."
    )
    url: Url = Field(description="The endpoint's URL, like https://example.com/events. Its query is kept secret.")
    headers: Headers = Field(
        default=NO_HEADERS, description="Headers of every request, like `Authorization`. Their values are kept secret."
    )
    format: Literal["json", "lines"] = Field(
        default="json", description="A request's body: a JSON array, or one JSON value per line."
    )
    content: Literal["row", "body"] = Field(
        default="row", description="An entry: all columns as a JSON object, or the JSON in the column `body` as it is."
    )
    results: Literal["whole", "items"] = Field(
        default="whole",
        description="How to read a 2xx response. `whole`: all entries were accepted. `items`: the body has a status"
        " for each entry.",
    )
    key_field: Text | None = Field(
        default=None,
        description="With `content: row`, the name of an extra field that holds the entry's idempotency key. By"
        " default there is none.",
    )
    order_by: Text | None = Field(
        default=None,
        description="Rows with the same value in this column are sent in order. By default, order is not kept.",
    )
    ca_file: Certificates = Field(default=NONE, description="Certificates (PEM) to trust instead of the system's.")

    @model_validator(mode="after")
    def _has_one_content(self) -> HttpSink:
        if self.key_field is not None and self.content == "body":
            raise ValueError("`key_field` requires `content: row`, because bodies are sent unchanged: remove it")
        return self

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.http import http_sink

        return http_sink(
            self.url.get_secret_value(),
            headers={name: value.get_secret_value() for name, value in self.headers.items()},
            format=self.format,
            content=self.content,
            results=self.results,
            key_field=self.key_field,
            order_by=self.order_by,
            ca_file=self.ca_file,
            limits=self.limits,
        )

    def check_output(self, table: pa.Table) -> None:
        from leasehold.pipeline.async_sink.json_rows import check_rows, json_row

        check_rows(table, json_row(self.content, key_field=self.key_field, order_by=self.order_by), "the endpoint")
