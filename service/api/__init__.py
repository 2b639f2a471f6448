"""The HTTP API of a running host: what it knows of the whole group, and operators' actions (docs/rest.md).

    app = create_app(view, access, log=log)            # of a process with a host; leasehold.service.api.server serves it

Its parts:

    app        assembles the routes; probes, /metrics, the dashboard and /docs
    middleware around everything: access, limits, headers and the log of operators' actions (auth, audit)
    queries    the group, as read from the lease store    operations operators' actions on leases and pipelines
    events     the group as it changes                    transfer   export and import
    tap        samples of one partition                   samples, rendering, masking: how a tap makes them
    schemas    all answers, as models                     problems   every error, as problem+json
    server     serves the app, with bounded connections   metrics    this host's metrics for Prometheus
"""

from leasehold.service.api.app import create_app
from leasehold.service.api.middleware import OPEN

__all__ = ["OPEN", "create_app"]
