"""A lease whose position Kafka no longer has. Pure."""

from __future__ import annotations

from leasehold.pipeline.connectors.held import Held
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.markers import lease_of
from leasehold.pipeline.sink import Claim, reset_command, to_write_again


def known(generation: int) -> str:
    """The sink state of a lease whose position of that generation was committed."""
    return f"known:{generation}"


def check_kept(claim: Claim, held: Held | None, where: str) -> None:
    """Raises SinkRejected if the lease had a position that Kafka no longer has."""
    if claim.state != known(claim.generation) or (held is not None and held.generation == claim.generation):
        return
    same = (
        f"If all hosts were stopped in order, continue where the lease is: {reset_command(claim, claim.continuation)}. "
        if claim.continuation is not None
        else ""
    )
    raise SinkRejected(
        f"{where} no longer has the position of lease '{lease_of(claim.pipeline, claim.partition)}'. Either the topic was"
        " deleted or restored, or no host ran for longer than the brokers keep offsets (`offsets.retention.minutes`, by default"
        f" 7 days). {same}Otherwise some output may be in the topic already, and you can {to_write_again(claim)}"
    )
