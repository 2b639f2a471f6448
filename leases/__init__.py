"""Who may work on which partition.

A lease is the right of one owner to process one partition until it expires. Leases live as documents in a container that
knows compare-and-swap on an ETag; hosts share nothing else. This package imports the standard library alone; vendor SDKs
stay in `leases.stores`.

What it does not guarantee: that an owner which lost its lease has stopped. A process can be stopped in the middle of a
call and wake later. That is why every tenure of a lease has an `epoch`, which travels to the sink, and the sink refuses
older ones.
"""
