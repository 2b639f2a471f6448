"""Turns a partition's events into delivered output.

A feed yields pages of events; pages gather into batches; a transform turns each batch into output; a sink takes the output
together with the position it stands for. Nothing here knows of leases or of the service: a caller hands in what it was
promised (an epoch, a position, a sink state) and learns what has become safe.
"""

if __name__ != "leasehold.pipeline":  # a checkout would load its modules twice
    raise ImportError(f"{__name__} has another name: import leasehold.pipeline", name=__name__)
