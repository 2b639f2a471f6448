"""Turns a partition's events into delivered output.

A feed yields pages of events; pages are gathered into batches; a transform turns each batch into output; a sink takes the output
together with its position. Nothing here knows about leases or the service: a caller passes an epoch, a position and a sink
state, and learns what has become safe.
"""

if __name__ != "leasehold.pipeline":  # a checkout would load its modules twice
    raise ImportError(f"{__name__} has another name: import leasehold.pipeline", name=__name__)
