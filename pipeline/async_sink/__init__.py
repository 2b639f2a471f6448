"""Sinks whose requests may be slow, throttled or partly refused, after Flink's Async Sink (FLIP-171)."""

from leasehold.pipeline.async_sink.json_rows import json_bytes, json_row
from leasehold.pipeline.async_sink.rate_limiter import RateLimiting
from leasehold.pipeline.async_sink.request_entry import Convert, Converted, Destination, Entry, Failed, refused
from leasehold.pipeline.async_sink.writer import AsyncSink
from leasehold.pipeline.limits import AsyncLimits as Limits

__all__ = [
    "AsyncSink",
    "Convert",
    "Converted",
    "Destination",
    "Entry",
    "Failed",
    "Limits",
    "RateLimiting",
    "json_bytes",
    "json_row",
    "refused",
]
