"""NATS JetStream for Leasehold: a feed and a sink, exactly once, and a lease store.

A stream holds the partitions as subjects `{subject}.0`, `{subject}.1`, ... and, on a subject for each lease, where that lease
stands. A batch and its position are one atomic publication, and the position's subject is written by compare-and-swap.
Needs nats-server 2.12 or later.
"""

from leasehold.pipeline.connectors.nats.feed import JetStreamFeed
from leasehold.pipeline.connectors.nats.sink import JetStreamSink

__all__ = ["JetStreamFeed", "JetStreamSink"]
