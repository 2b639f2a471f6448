"""Dead letters beside the sink `kafka`: what a topic refuses is kept apart, and all others are stored once, in order."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from connectors.kafka.topics import Topics, committed
from patience import PATIENCE_S
from plugins_cli import Commands, events_in

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""

LARGE = b"x" * 4000


async def test_an_event_that_the_topic_refuses_is_kept_apart(
    topics: Topics, tmp_path: Path, leasehold: Commands
) -> None:
    small = replace(topics, name=f"{topics.name}-small")
    topics.machine.make_topic(small.name, 4, max_message_bytes="2000")
    bodies = [b"%d" % number for number in range(40)]
    topics.produce(0, [*bodies[:17], LARGE, *bodies[17:]])
    (tmp_path / "bank.yaml").write_text(
        f"""
api: {{enabled: false}}
pipelines:
  - name: bank
    feed: {{type: kafka, servers: "{topics.machine.servers}", topic: {topics.name}}}
    sink: {{type: kafka, servers: "{topics.machine.servers}", topic: {small.name}}}
    dead_letters: {{type: log, path: letters, share_max: 1}}
"""
    )
    run = leasehold("run", "--until-idle", "bank.yaml", cwd=tmp_path, env=os.environ)
    assert await asyncio.to_thread(run.ended) == 0, run.out + run.err
    async with asyncio.timeout(PATIENCE_S):
        assert [record.value for record in await committed(small)] == bodies
    letters = await asyncio.to_thread(events_in, tmp_path / "letters", lambda row: row["body"])
    assert [body for each in letters.values() for body in each] == [LARGE]
