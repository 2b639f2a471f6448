"""`leasehold check --probe --service`: questions to the services that the settings name."""

from __future__ import annotations

import asyncio
import platform
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from leasehold.common.clock import BootClock
from leasehold.common.distribution import NAME
from leasehold.leases.errors import StoreAmbiguous, StoreError
from leasehold.pipeline.errors import PipelineError
from leasehold.service.cli.run import stopping
from leasehold.service.config.cosmos import CosmosFeed, CosmosLeases, CosmosSink
from leasehold.service.config.eventhubs import EventHub
from leasehold.service.config.leases import BlobLeases
from leasehold.service.config.settings import Settings
from leasehold.service.errors import StartFailed
from leasehold.service.texts import redacted

if TYPE_CHECKING:
    from leasehold.common.azure import CosmosAccount
    from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount
    from leasehold.service.probing.report import Answer, ProbeReport
from leasehold.service.cli.probe import Say

REMOVAL_S_MAX = 30.0
SDKS = (NAME, "azure-cosmos", "azure-eventhub", "azure-storage-blob", "azure-identity")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """hub: a scratch hub, or None to ask no event hub. creates: whether a container in Cosmos DB, or blobs, may be created."""

    hub: str | None = None
    partition: str = "0"
    consumer_group: str = "$Default"
    creates: bool = False


@dataclass(frozen=True, slots=True)
class Targets:
    """Event hubs, databases in Cosmos DB, and the leases' container of blobs that answer questions."""

    hubs: tuple[EventHubAccount, ...] = ()
    databases: tuple[tuple[CosmosAccount, str], ...] = ()
    blobs: BlobLeases | None = None

    @property
    def names(self) -> dict[str, str]:
        """Name -> what hides it in a report."""
        names = dict[str, str]()
        for number, hub in enumerate(self.hubs, 1):
            names |= {hub.host: f"NAMESPACE{number}", hub.host.partition(".")[0]: f"NAMESPACE{number}", hub.hub: "HUB"}
        for number, (account, database) in enumerate(self.databases, 1):
            host = account.host
            names |= {
                host: f"ACCOUNT{number}",
                host.partition(".")[0]: f"ACCOUNT{number}",
                database: f"DATABASE{number}",
            }
        if self.blobs is not None:
            from leasehold.common.azure import storage_account_of

            storage = storage_account_of(**self.blobs.account)
            path = urlsplit(storage.endpoint).path.strip("/")  # an emulator's address has it there
            hidden = (storage.host, storage.host.partition(".")[0], path)
            names |= {**dict.fromkeys(hidden, "STORAGE"), self.blobs.container: "CONTAINER"}
        return {name: hidden for name, hidden in names.items() if name and not name.isdigit()}


def targets_of(settings: Settings, options: ServiceOptions, say: Say) -> Targets:
    """Reports what it leaves out. Raises StartFailed if nothing is left, or a pipeline uses the hub."""
    from leasehold.common.azure import cosmos_account_of
    from leasehold.pipeline.connectors.eventhubs.account import account_of

    sections = list(_sections_of(settings))
    hubs, databases = dict[str, "EventHubAccount"](), dict[tuple[str, str], tuple["CosmosAccount", str]]()
    for section in sections:
        if isinstance(section, EventHub):
            used = account_of(**section.account)
            if options.hub is None:
                say(f"event hub {used.name}: not asked; name an unused hub of its namespace with --hub")
                continue
            if used.hub.lower() == options.hub.lower():
                raise StartFailed(
                    f"--hub is '{options.hub}', which a pipeline uses, and the questions publish to it: create another hub in"
                    " this namespace, with one partition, and name that"
                )
            try:
                hub = account_of(**{**section.account, "event_hub": options.hub})
            except ValueError as error:
                raise StartFailed(f"--hub: {error}; a connection string of the namespace reaches every hub") from None
            hubs[hub.host] = hub
        elif isinstance(section, CosmosFeed | CosmosSink | CosmosLeases):
            account = cosmos_account_of(**section.account)
            if options.creates:
                databases[account.host, section.database] = account, section.database
            else:
                say(
                    f"Cosmos DB {account.host}/{section.database}: not asked; --create permits a container of its own there"
                )
    blobs = _blobs_of(settings, options, say)
    if not hubs and not databases and blobs is None:
        raise StartFailed(
            "there is no service to ask: --service asks event hubs with --hub, and Cosmos DB and leases in Blob Storage with"
            " --create, of a FILE that uses them"
        )
    return Targets(tuple(hubs.values()), tuple(databases.values()), blobs)


def _blobs_of(settings: Settings, options: ServiceOptions, say: Say) -> BlobLeases | None:
    leases = settings.leases
    if not isinstance(leases, BlobLeases):
        return None
    if options.creates:
        return leases
    say(f"{leases.place}: not asked; --create permits blobs of its own there")
    return None


def _sections_of(settings: Settings) -> Iterator[object]:
    yield settings.leases
    for pipeline in settings.pipelines:
        yield from (pipeline.feed, pipeline.sink, pipeline.letters)


async def ask_services(targets: Targets, options: ServiceOptions, say: Say) -> ProbeReport | None:
    """None if a signal ended it; what was created is removed then, too."""
    from leasehold.service.probing.report import ProbeReport

    answers: dict[str, list[Answer]] = {}
    left: list[str] = []
    work = asyncio.create_task(_ask_all(targets, options, say, answers, left), name="questions")

    def stop() -> None:
        work.cancel()

    with stopping(stop):
        await asyncio.wait({work})
    for each in left:
        say(f"could not be removed: {each}")
    if work.cancelled():
        say("interrupted" if left else "interrupted; nothing is left behind but events in hubs")
        return None
    work.result()
    versions = {name: version(name) for name in SDKS} | {"Python": platform.python_version()}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return ProbeReport(date=date, versions=versions, systems=answers, left=left)


async def _ask_all(
    targets: Targets, options: ServiceOptions, say: Say, answers: dict[str, list[Answer]], left: list[str]
) -> None:
    for hub in targets.hubs:
        system = f"Event Hubs, {hub.name}, partition {options.partition}"
        answers[system] = await _ask_hub(hub, options, say)
    for account, database in targets.databases:
        system = f"Cosmos DB, {account.host}/{database}"
        answers[system] = await _ask_cosmos(account, database, say, left)
    if targets.blobs is not None:
        answers[f"Blob Storage, {targets.blobs.place}"] = await _ask_blobs(targets.blobs, say, left)


async def _ask_hub(hub: EventHubAccount, options: ServiceOptions, say: Say) -> list[Answer]:
    from leasehold.service.probing.eventhubs import COSTS, QUESTIONS
    from leasehold.service.probing.hub_place import HubPlace
    from leasehold.service.probing.report import ask_all, unopened

    say(f"event hub {hub.name}, partition '{options.partition}': {COSTS}")
    clock = BootClock()
    group = uuid.uuid4().int >> 67  # of 61 bits: producer groups have 63
    place = HubPlace(
        hub, options.partition, options.consumer_group, group=group, clock=clock, threaded=asyncio.to_thread
    )
    try:
        try:
            await place.open()
        except (PipelineError, TimeoutError) as error:
            say(f"event hub {hub.name}: FAILED: {redacted(str(error))}")
            return [unopened("hub", error)]
        return await ask_all(place, QUESTIONS, clock, say)
    finally:
        await place.close()


async def _ask_cosmos(account: CosmosAccount, database: str, say: Say, left: list[str]) -> list[Answer]:
    from leasehold.pipeline.errors import FeedUnavailable
    from leasehold.service.probing.cosmos import COSTS, QUESTIONS, CosmosPlace
    from leasehold.service.probing.report import ask_all, unopened

    name = f"leasehold-probe-{uuid.uuid4().hex[:12]}"
    say(f"Cosmos DB {account.host}/{database}: creates the container '{name}', {COSTS}")
    clock = BootClock()
    place = CosmosPlace(account, database, name, clock=clock)
    may_exist = True
    try:
        try:
            await place.open()
        except PipelineError as error:
            may_exist = place.is_created or isinstance(error, FeedUnavailable)
            say(f"Cosmos DB {account.host}/{database}: FAILED: {redacted(str(error))}")
            return [unopened("cosmos", error)]
        return await ask_all(place, QUESTIONS, clock, say)
    finally:
        if may_exist and (why := await place.remove(REMOVAL_S_MAX)) is not None:
            left.append(f"container '{name}' in {account.host}/{database} ({redacted(why)}): delete it")
        await place.close()


async def _ask_blobs(leases: BlobLeases, say: Say, left: list[str]) -> list[Answer]:
    from leasehold.service.probing.blob import COSTS, QUESTIONS, BlobPlace
    from leasehold.service.probing.report import ask_all, unopened

    name = f"leasehold-probe-{uuid.uuid4().hex[:12]}"
    say(f"{leases.place}: {COSTS}; their names begin with '{name}'")
    clock = BootClock()
    place = BlobPlace(leases.make({}, creates=False), name, clock=clock)
    may_exist = True  # also if open() is cancelled: its request may have arrived
    try:
        try:
            await place.open()
        except StoreError as error:
            may_exist = isinstance(error, StoreAmbiguous)
            say(f"{leases.place}: FAILED: {redacted(str(error))}")
            return [unopened("blob", error)]
        return await ask_all(place, QUESTIONS, clock, say)
    finally:
        if may_exist and (why := await place.remove(REMOVAL_S_MAX)) is not None:
            left.append(f"blobs '{name}/...' in the {leases.place} ({redacted(why)}): delete them")
        await place.close()


def write_report(report: ProbeReport, file: Path) -> None:
    """Raises StartFailed."""
    from leasehold.service.probing.report import to_json, to_markdown

    text = to_json(report) if file.suffix == ".json" else to_markdown(report)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StartFailed(
            f"the report cannot be written to '{file}' ({error.strerror or error}): name another file"
        ) from None
