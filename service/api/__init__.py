"""The HTTP face of a running host: what it knows of the whole group, and what operators may do to it (docs/rest.md).

    app = create_app(view, access, log=log)            # of a process with a host; leasehold.service.api.server serves it

Its parts:

    app        puts it together
    middleware around everything: who may come in, how much, for how long; headers and the log of what operators did
    health     this host: probes and metrics          queries    the group, out of the lease store
    events     the group as it changes                operations what operators do to leases and pipelines
    transfer   export and import                      problems   every error, as problem+json
    connections   how many, and how long one waits for a client that says nothing
    roles, limits, cross_origin, json_bodies, etags, audit    what these stand on
"""

from leasehold.service.api.app import create_app
from leasehold.service.api.middleware import OPEN

__all__ = ["OPEN", "create_app"]
