"""An HTTP endpoint as a sink: entries are POSTed as JSON."""

from pipeline.connectors.http.sink import HttpDestination, http_sink
from pipeline.connectors.http.wire import checked_url

__all__ = ["HttpDestination", "checked_url", "http_sink"]
