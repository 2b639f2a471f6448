"""Leases: which host may process which partition.

A lease entitles one owner to process one partition while the owner's host is trusted. Leases are documents in a container
that supports compare-and-swap on an ETag. Hosts share nothing else. Apart from `leasehold.common`, this package imports only
the standard library; vendor SDKs stay in `leasehold.leases.stores`.

A lease does not guarantee that an owner that lost it has stopped: a process can be suspended in the middle of a call
and wake later. Therefore every tenure has an `epoch`, which is passed to the sink, and the sink refuses older epochs.
"""

if __name__ != "leasehold.leases":  # a checkout would load its modules twice
    raise ImportError(f"{__name__} has another name: import leasehold.leases", name=__name__)
