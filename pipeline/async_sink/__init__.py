"""Sinks whose requests may be slow, throttled or partly refused, after Flink's Async Sink (FLIP-171)."""

from pipeline.async_sink.element_converter import json_bytes, json_row
from pipeline.async_sink.request_entry import Convert, Converted, Destination, Entry, Failed, refused
from pipeline.async_sink.sink import AsyncSink
from pipeline.limits import AsyncLimits as Limits

__all__ = [
    "AsyncSink",
    "Convert",
    "Converted",
    "Destination",
    "Entry",
    "Failed",
    "Limits",
    "json_bytes",
    "json_row",
    "refused",
]
