"""What `$management` tells of a hub and its partitions, by a connection of its own for each question."""

from __future__ import annotations

from typing import Any

from pipeline.connectors.eventhubs.hooks import sdk
from pipeline.connectors.eventhubs.hub import Hub
from pipeline.connectors.eventhubs.refusals import link_ended
from pipeline.connectors.eventhubs.sender import closed, said_by
from pipeline.producer import PublishError, Reason
from pipeline.producer.errors import refused

KINDS = {True: "com.microsoft:eventhub", False: "com.microsoft:partition"}


async def asked_of(hub: Hub, partition: str | None = None) -> dict[bytes, Any]:
    """The answer as it came. Raises PublishError; nothing bounds the time."""
    place = f"'{hub.name}'" + ("" if partition is None else f", partition '{partition}'")
    auth = await hub.auth()
    client = sdk().AMQPClientAsync(auth=auth, **hub.options())
    try:
        await client.open_async()
        while not await client.client_ready_async():
            pass
        status, description, answer = await client.mgmt_request_async(
            sdk().Message(application_properties=await _question(hub, partition, auth)),
            operation="READ",
            operation_type=KINDS[partition is None],
            status_code_field=b"status-code",
            description_fields=b"status-description",
        )
    except Exception as error:
        if isinstance(error, TimeoutError):
            raise
        raise link_ended(place, *said_by(error), is_in_air=False) from error
    finally:
        await closed(client)
    if int(status) >= 400:
        raise _refusal(place, int(status), description)
    return dict(answer.value)


async def _question(hub: Hub, partition: str | None, auth: Any) -> dict[str, Any]:
    token = (await auth.get_token()).token
    question = {"name": hub.account.hub, "security_token": token}
    return question if partition is None else question | {"partition": partition}


def _refusal(place: str, status: int, description: Any) -> PublishError:
    said = description.decode() if isinstance(description, bytes) else str(description)
    reasons = {404: Reason.RESOURCE_NOT_FOUND, 503: Reason.SERVICE_BUSY}
    is_transient = status in (500, 503, 504)
    return refused(
        f"{place} told nothing of itself: {status}, {said}",
        reason=reasons.get(status, Reason.GENERAL_ERROR),
        is_transient=is_transient,
    )
