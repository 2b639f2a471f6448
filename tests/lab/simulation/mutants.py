"""Planted faults, the test of the tester. Each breaks one rule of docs/protocol.md in the production code.

A mutant is planted before anything is imported, in a process of its own, and seeds run until one catches it. What seeds cannot
see, a test that the mutant names has to catch. A mutant whose code is not found exactly once, or that nothing
catches, fails the run: it tests nothing any more, or the simulation is too weak. Code is compared token by token with the
syntax tree of the module, without comments, so that no formatting hides it.

A mutant breaks a rule, not the program: it uses no name that its module does not know, and is not caught by an error like
NameError or TypeError (BROKEN).

    make mutants                  all of them
    make mutants MUTANT=epoch     those whose name holds the word; the trace that caught them is shown
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.machinery
import importlib.util
import io
import os
import re
import resource
import signal
import subprocess
import symtable
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from types import CodeType
from typing import Any

import click
import pytest

SEEDS_MAX = 400
CPU_MAX_S = 900
"""CPU time for a mutant, so that a busy machine lets none escape."""
HANGS_S = 4 * CPU_MAX_S
PYTEST = ("-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "--no-header", "--tb=short")
BROKEN = re.compile(r"\b(?:Name|UnboundLocal|Attribute|Import|ModuleNotFound|Type)Error: .*")


@dataclass(frozen=True, slots=True)
class Edit:
    """In a module, the code `old` (there exactly once) becomes `new`."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """test: the one that catches it, "" for seeds."""

    name: str
    edits: tuple[Edit, ...]
    test: str = ""


def mutant(
    name: str,
    module: str,
    old: str,
    new: str,
    *more: tuple[str, str, str],
    test: str = "",
) -> Mutant:
    return Mutant(name, (Edit(module, old, new), *(Edit(*edit) for edit in more)), test)


OVERLOAD = "tests/lab/test_host_overload.py"
SESSION = "tests/unit/leases/test_session.py"
TENURE = "tests/unit/leases/test_tenure.py"
TRUST = "tests/unit/leases/test_trust.py"
WATCH = "tests/unit/leases/test_host_watch.py"
HOST_LIVENESS = "tests/unit/service/test_host_liveness.py"
FITNESS = "tests/unit/service/test_fitness.py"
SHARES = "tests/unit/leases/test_shares.py"
HOST_GRAY = "tests/unit/service/test_host_gray.py"
HANDLERS = "tests/unit/pipeline/handlers"
HANDLER_SINK = "tests/unit/pipeline/connectors/test_handlers.py"
TOPIC = "tests/unit/pipeline/connectors/kafka/test_simulated.py"

MUTANTS = (
    mutant(
        "trust runs from the answer to a beat, not from its start",
        "leasehold.leases.trust",
        "found = replace(self._at(now), known=attempt,",
        "found = replace(self._at(now), known=replace(attempt, began=now),",
        test=f"{TRUST}::test_trust_counts_from_the_start_of_an_attempt_however_late_it_is_known_to_have_arrived",
    ),
    mutant(
        "trust and term of a take are those of its answer",
        "leasehold.leases.keeper",
        "return OwnedLease(self.store, wanted, etag, began, self._clock, self.session)",
        "return OwnedLease(self.store, wanted, etag, begin(self._clock, self.session), self._clock, self.session)",
        test=f"{TENURE}::test_trust_and_term_of_a_take_are_those_of_its_start",
    ),
    mutant(
        "a restored lease gives out an epoch that may be in use",
        "leasehold.leases.lease",
        "RESTORED_ABOVE = 1000",
        "RESTORED_ABOVE = 0",
        test="tests/unit/leases/test_lease.py::test_a_lease_that_is_put_back_gives_out_no_epoch_that_its_owner_may_have_raised_to",
    ),
    mutant(
        "a take whose answer was lost counts as won",
        "leasehold.leases.keeper",
        "wanted, etag, began = (now.lease, now.etag, Began(began.at, 0))",
        "wanted, etag, began = (now.lease, now.etag, Began(began.at, began.term))",
        test=f"{TENURE}::test_a_take_whose_answer_was_lost_is_won_once_more_before_anything_is_sent",
    ),
    mutant(
        "a host sends before its document names the new term",
        "leasehold.leases.trust",
        "        if found.term or attempt.term <= self.last_term or now >= found.until:\n            return found\n"
        "        return replace(found, term=attempt.term, last_term=attempt.term)\n",
        "        if found.term or now >= found.until:\n            return found\n"
        "        return replace(found, term=self.last_term + 1, last_term=self.last_term + 1)\n",
        test=TRUST,
    ),
    mutant(
        "a shorter duration binds only once it has arrived",
        "leasehold.leases.trust",
        "return min(self.known.trusted_until, *shorter, inf)",
        "return self.known.trusted_until",
        test=TRUST,
    ),
    mutant(
        "a longer duration counts once it is asked for",
        "leasehold.leases.trust",
        "return min(self.known.trusted_until, *shorter, inf)",
        "return max(self.known.trusted_until, *(each.trusted_until for each in self.open), -inf)",
        test=TRUST,
    ),
    mutant(
        "a lapse is judged when a beat begins",
        "leasehold.leases.trust",
        "found = replace(self._at(now), known=attempt, open=later)",
        "found = replace(self, known=attempt, open=later)",
        test=TRUST,
    ),
    mutant(
        "trust lasts as long as others wait: no margin",
        "leasehold.leases.trust",
        "return self.began + self.lasts_s * (1 - MARGIN)",
        "return self.began + self.lasts_s",
        test=TRUST,
    ),
    mutant(
        "a host lives as long as its tick moves, without a term too",
        "leasehold.leases.host_watch",
        "return silent | self._termless.still_for(lambda tenant: WITHOUT_TERM * self._lasts_s(tenant), self.began)",
        "return silent",
        test=f"{WATCH}::test_a_host_whose_documents_name_no_term_for_two_durations_is_dead_however_its_tick_moves",
    ),
    mutant(
        "observers wait as long as by default, whatever a document names",
        "leasehold.leases.host_watch",
        "return self.records[tenant].lasts_s if tenant in self.present else self.setting_s",
        "return 7.0",
        test=WATCH,
    ),
    mutant(
        "hosts are dead after half their duration",
        "leasehold.leases.host_watch",
        "silent = self._watch.still_for(self._lasts_s, self.began)",
        "silent = self._watch.still_for(lambda tenant: self._lasts_s(tenant) / 2, self.began)",
    ),
    mutant(
        "leases that were read after the look are judged by it",
        "leasehold.leases.host_watch",
        "return self.expired().intersection(owners) if self.began >= read_until else frozenset()",
        "return self.expired().intersection(owners)",
        test=f"{WATCH}::test_a_look_judges_no_lease_that_was_read_after_it_began",
    ),
    mutant(
        "hosts do not notice the bell",
        "leasehold.leases.host_watch",
        "return frozenset((self._bell, *rings))",
        "return frozenset(rings)",
        test=f"{WATCH}::test_leases_may_have_changed_if_the_bell_has_whatever_it_holds",
    ),
    mutant(
        "a beat that is answered late counts as lost, and a slow host never asks for more time",
        "leasehold.leases.trust",
        "while took_s >= SLOW * lasts_s and lasts_s < longest:",
        "while took_s < 0:",
        (
            "leasehold.leases.session",
            "await asyncio.wait({writing}, timeout=self.timing.beat_timeout_s)",
            "await asyncio.wait({writing}, timeout=self.timing.beat_timeout_s)\n                writing.cancel()",
        ),
        (
            "leasehold.leases.session",
            "            if found is not None:\n                self._note_arrival(found.tick)\n",
            "",
        ),
    ),
    mutant(
        "a slow host never asks for more time",
        "leasehold.leases.trust",
        "while took_s >= SLOW * lasts_s and lasts_s < longest:",
        "while took_s < 0:",
        test=f"{TRUST}::test_a_slow_host_asks_for_more_time_before_its_beats_take_a_third_of_it",
    ),
    mutant(
        "a beat without an answer keeps the next one waiting",
        "leasehold.leases.session",
        "await asyncio.wait({writing}, timeout=self.timing.beat_timeout_s)",
        "await asyncio.wait({writing})",
        test=f"{SESSION}::test_one_beat_that_is_lost_costs_no_trust",
    ),
    mutant(
        "a read that shows a beat does not count as its answer",
        "leasehold.leases.session",
        "            if found is not None:\n                self._note_arrival(found.tick)\n",
        "",
        test=f"{SESSION}::test_a_read_that_shows_a_beat_whose_answer_was_lost_counts_as_its_answer",
    ),
    mutant(
        "work that was renounced begins again in the same term",
        "leasehold.leases.session",
        "            self._trust = self._trust.ended()\n",
        "            pass\n",
        test=f"{SESSION}::test_work_that_was_renounced_begins_again_in_a_new_term",
    ),
    mutant(
        "a backup of what a host replaced is taken for a live process",
        "leasehold.leases.trust",
        "if is_first or is_replaced:",
        "if is_first:",
        test=f"{SESSION}::test_a_backup_with_what_this_host_replaced_itself_is_replaced_at_once",
    ),
    mutant(
        "a host ends if a backup of the hosts' documents is put back",
        "leasehold.leases.trust",
        "if is_first or is_replaced:\n        return 'replace'\n    if before is None:\n        return 'wait'\n",
        "if is_first:\n        return 'replace'\n    if before is None:\n        return 'give way'\n",
    ),
    mutant(
        "a relic is never replaced",
        "leasehold.leases.trust",
        'return "replace" if found.since - before.since >= before.lasts_s else "wait"',
        'return "wait"',
        test=f"{SESSION}::test_a_document_of_another_incarnation_that_stands_still_is_a_relic_and_is_replaced",
    ),
    mutant(
        "a host that cannot do its work gets leases",
        "leasehold.leases.host_record",
        "pipelines=frozenset(self.pipelines) - self.which_are(SICK, RENOUNCED),",
        "pipelines=frozenset(self.pipelines),",
        test="tests/unit/leases/test_host_record.py",
    ),
    mutant(
        "a host renounces while it still works",
        "leasehold.service.fitness",
        'case "leaving" if not workers:',
        'case "leaving":',
        test=FITNESS,
    ),
    mutant(
        "a sick host without leases is well",
        "leasehold.service.fitness",
        "(workers or facts.proof.proved_s <= facts.now - self.since)",
        "True",
        test=FITNESS,
    ),
    mutant(
        "a host gives its leases up although no other is fit",
        "leasehold.service.fitness",
        'case "sick" if facts.is_sick_alone:',
        'case "sick" if facts.loses_work:',
        test=FITNESS,
    ),
    mutant(
        "a host gives its leases up because another one recovered before it",
        "leasehold.service.fitness",
        "(self.has_released or self.peers.fit_s >= self.lasts_s)",
        "True",
        test=FITNESS,
    ),
    mutant(
        "one partition that fails makes its host sick",
        "leasehold.service.fitness",
        "all_fail = bool(self.failing) and min(self.failing) >= self.lasts_s",
        "all_fail = bool(self.failing) and max(self.failing) >= self.lasts_s",
        test=FITNESS,
    ),
    mutant(
        "a share is reserved for ever",
        "leasehold.leases.shares",
        "if at - self._waiting[lease.key] > _lasts_s(lease, names)",
        "if at - self._waiting[lease.key] > 1e9",
        test=SHARES,
    ),
    mutant(
        "a host that cannot do its work keeps its share free for ever",
        "leasehold.leases.shares",
        "if at - self._waiting[lease.key] > _lasts_s(lease, names)",
        "if at - self._waiting[lease.key] > 1e9",
        (
            "leasehold.leases.host_record",
            "pipelines=frozenset(self.pipelines) - self.which_are(SICK, RENOUNCED),",
            "pipelines=frozenset(self.pipelines),",
        ),
    ),
    mutant(
        "requests depend on whom a host has seen let leases pass",
        "leasehold.leases.balance",
        "        shares_of_free = shares_of_expired = (yield from shares_of(able, pooled))\n    unseeing",
        "        shares = shares_of_free = shares_of_expired = (yield from shares_of(able, pooled))\n    unseeing",
        (
            "leasehold.leases.balance",
            "if free and (not able.keys().isdisjoint(benched)):",
            "if not able.keys().isdisjoint(benched):",
        ),
        test=f"{SHARES}::test_hosts_request_the_same_whomever_they_have_seen_let_leases_pass",
    ),
    mutant(
        "leases of a paused pipeline are let pass",
        "leasehold.leases.shares",
        "and lease.pipeline not in paused",
        "and lease.pipeline is not paused",
        test=f"{SHARES}::test_while_a_pipeline_is_paused_its_leases_are_not_let_pass",
    ),
    mutant(
        "what is free is left to whoever has let leases pass",
        "leasehold.leases.shares",
        "if now >= until:\n                self._benched[name]",
        "if now > until:\n                self._benched[name]",
        test=f"{SHARES}::test_who_let_a_share_pass_gets_no_more_than_it_has_for_a_while_that_doubles",
    ),
    mutant(
        "a look that was due by a longer duration ends an outage",
        "leasehold.leases.host_watch",
        "gap_max_s=max(timing.looks.gap_max_s, self._gap_max_s)",
        "gap_max_s=timing.looks.gap_max_s",
        test=f"{WATCH}::test_a_look_that_was_due_by_a_longer_duration_ends_no_outage",
    ),
    mutant(
        "a host waits for its namesake, however that moves",
        "leasehold.leases.trust",
        "if found.is_moved_since(before):",
        "if found.since < 0 and found.is_moved_since(before):",
        test=f"{TRUST}::test_a_foreign_document_that_moves_is_a_namesakes_and_one_that_stands_still_is_a_relic",
    ),
    mutant(
        "an incarnation that was replaced once is replaced at once for ever",
        "leasehold.leases.session",
        "self._replaced.discard(found.incarnation)",
        "self._replaced.add(found.incarnation)",
        test=SESSION,
    ),
    mutant(
        "a host that meets another process's document goes on sending",
        "leasehold.leases.session",
        "            self._trust = self._trust.lost()\n",
        "            pass\n",
        test=f"{SESSION}::test_of_two_live_processes_of_one_name_the_earlier_stops_sending_at_once_and_then_gives_way",
    ),
    mutant(
        "a host is fit for what it did before another fell sick",
        "leasehold.service.fitness",
        "self.proof.proved_s <= min(self.peers.sick_s, PROVED_FOR_S)",
        "self.proof.proved_s <= PROVED_FOR_S",
        test=FITNESS,
    ),
    mutant(
        "a host resumes without a rest",
        "leasehold.service.fitness",
        "return facts.now - self.since >= REST.pause_s(self.rests if facts.peers.are_able else 1, 0.0)",
        "return facts.now >= self.since",
        test=FITNESS,
    ),
    mutant(
        "a lease that fails everywhere makes each host sick at once",
        "leasehold.service.fitness",
        "FOREIGN_REST = Backoff(first_s=60.0, max_s=1800.0)",
        "FOREIGN_REST = Backoff(first_s=0.1, max_s=1800.0)",
        test=f"{HOST_GRAY}::test_a_lease_that_fails_wherever_it_goes_moves_at_most_once_a_minute_and_ever_less",
    ),
    mutant(
        "a host that cannot read its leases loses them",
        "leasehold.leases.balance",
        "if name is not None and (name, pipeline) not in self.kept and (count > shares.get(name, 0))",
        "if name is not None and count > shares.get(name, 0)",
        test=f"{HOST_GRAY}::test_a_host_that_cannot_read_the_leases_keeps_its_own_idle_or_not_also_when_another_host_comes",
    ),
    mutant(
        "a host is well although all that it took has failed and was released",
        "leasehold.service.fitness",
        "if each.at >= tried_since and now < each.until",
        "if each.at > each.until",
        test=f"{HOST_GRAY}::test_a_host_at_which_every_batch_ends_its_worker_leaves_the_work_to_others_and_tries_one_lease",
    ),
    mutant(
        "a host requests at once what another got on with after it failed here",
        "leasehold.service.fitness",
        "left = {key for key in wanted if key in ended and now < ended[key].left_until}",
        "left = set[LeaseKey]()",
        test=f"{HOST_GRAY}::test_a_lease_that_fails_at_one_host_alone_stays_ever_longer_where_it_works",
    ),
    mutant(
        "a host that resumes requests its whole share",
        "leasehold.service.fitness",
        "return int(requested_at < health.since)",
        "return None",
        test=f"{HOST_GRAY}::test_a_host_at_which_every_batch_ends_its_worker_leaves_the_work_to_others_and_tries_one_lease",
    ),
    mutant(
        "hosts whose handlers all fail take each other for fit",
        "leasehold.service.fitness",
        "return not self.has_released or self.proof.delivered_s <= (self.peers.sick_s or 0.0)",
        "return True",
        test=FITNESS,
    ),
    mutant(
        "what failed in an outage that is over makes its host sick",
        "leasehold.leases.store",
        "return 0.0 if self._since is None or self._last < tried_since else now - self._since",
        "return 0.0 if self._since is None else now - self._since",
        test="tests/unit/leases/test_store.py::test_calls_that_failed_and_were_not_tried_again_since_do_not_count",
    ),
    mutant(
        "what fails in an outage of the store makes its host sick",
        "leasehold.service.fitness",
        "case 'well' if facts.loses_work and (not facts.is_outage):",
        "case 'well' if facts.loses_work:",
        test=FITNESS,
    ),
    mutant(
        "a host requests leases that it has not shown it can process",
        "leasehold.service.fitness",
        "for name, keys in by_pipeline.items() if self._is_proved(name)",
        "for name, keys in by_pipeline.items()",
        test=f"{HOST_GRAY}::test_a_newcomer_that_cannot_reach_its_sink_requests_no_lease_that_another_host_works_on",
    ),
    mutant(
        "leases that were renounced are not taken",
        "leasehold.leases.host_watch",
        "        return {tenant: pipelines for tenant, pipelines in found.items() if pipelines}",
        "        return {tenant: pipelines for tenant, pipelines in found.items() if not pipelines}",
        test=f"{WATCH}::test_what_an_owner_has_renounced_is_shown_for_leases_that_were_read_before_the_look",
    ),
    mutant(
        "beats that hang pile up",
        "leasehold.leases.session",
        "while len(self._under_way) >= UNDER_WAY_MAX:",
        "while len(self._under_way) > 99 * UNDER_WAY_MAX:",
        test=f"{SESSION}::test_at_most_two_attempts_are_under_way",
    ),
    mutant(
        "a host that was slow stays slow",
        "leasehold.leases.trust",
        "if now - self.calm_since < CALM_S:",
        "if now - self.calm_since < CALM_S * 1e6:",
        test=f"{TRUST}::test_a_host_asks_for_less_time_after_a_minute_in_which_no_beat_was_slow_and_never_below_its_setting",
    ),
    mutant(
        "a slow newcomer that takes one lease after another is robbed",
        "leasehold.leases.shares",
        "lease.key: at if lease.pipeline in takes else self._waiting.get(lease.key, at) for lease in open_",
        "lease.key: self._waiting.get(lease.key, at) for lease in open_",
        test=SHARES,
    ),
    mutant(
        "time in which nobody could read counts towards expiry",
        "leasehold.leases.expiry",
        "unread = max(gap * (gap > intervals.gap_max_s), unread_s) + took * (took > intervals.took_max_s)",
        "unread = 0.0",
        test="tests/unit/leases/test_expiry.py",
    ),
    mutant(
        "a host that cannot write judges others",
        "leasehold.leases.session",
        "return self.beat_age_s < self.timing.judging_s",
        "return True",
        test=f"{SESSION}::test_a_host_that_cannot_write_stops_judging_before_others_could_seem_dead",
    ),
    mutant(
        "the grace after an outage is too short",
        "leasehold.leases.timing",
        "self.beat_s + 2 * self.beat_timeout_s)",
        "self.beat_timeout_s)",
        test="tests/unit/leases/test_timing.py",
    ),
    mutant(
        "what was asked for is taken without waiting",
        "leasehold.service.planning",
        "        return self._requests.still_for(self._timing.patience_s, scan.started)",
        "        return frozenset(asked)",
    ),
    mutant(
        "there is no trust window",
        "leasehold.leases.tenure",
        "return self._lost is None and self.won_term > 0 and (self.session.term == self.won_term)",
        "return self._lost is None",
    ),
    mutant(
        "no lease is won again after a lapse",
        "leasehold.leases.tenure",
        "return self._lost is None and self.won_term > 0 and (self.session.term == self.won_term)",
        "return self._lost is None and self.session.term > 0",
        test=f"{TENURE}::test_after_a_lapse_a_lease_is_trusted_once_it_is_written_again",
    ),
    mutant(
        "a write of a lease is worth the term of its answer",
        "leasehold.leases.tenure",
        "self._written = max(self._written, began)",
        "self._written = begin(self._clock, self.session)",
        test=f"{TENURE}::test_a_write_that_began_before_a_lapse_wins_nothing_after_it",
    ),
    mutant(
        "a listing with a lower epoch raises no doubt",
        "leasehold.leases.tenure",
        "if seen is None or seen.lease.tenant != self._lease.tenant:",
        "if seen is None or (seen.lease.tenant != self._lease.tenant and seen.lease.epoch >= self._lease.epoch):",
        test=f"{TENURE}::test_a_lease_put_back_with_a_lower_epoch_makes_its_owner_write",
    ),
    mutant(
        "a host does not ring when it releases or loses a lease",
        "leasehold.leases.tenure",
        "            self.changed.set()\n            self.session.ring()\n",
        "            self.changed.set()\n",
        test=f"{TENURE}::test_a_lease_that_is_released_or_lost_rings",
    ),
    mutant(
        "a batch is sent before its level stands in the lease",
        "leasehold.leases.keeper",
        "seen.lease.acquired(self.host, self.incarnation, claimed(seen.lease.sink_state))",
        "seen.lease.acquired(self.host, self.incarnation, seen.lease.sink_state)",
        (
            "leasehold.service.worker",
            "            state=lease.sink_state,\n",
            "            state=self.pipeline.claimed(lease.sink_state),\n",
        ),
        (
            "leasehold.service.worker",
            "            await self.owned.checkpoint(writer.position, writer.state)\n",
            "            await self.owned.checkpoint(writer.position, lease.sink_state)\n",
        ),
        (
            "leasehold.pipeline.connectors.log.producer_state",  # and a broker that lets a level in twice
            "    if held is not None and held.rank >= producer.rank:\n",
            (
                "    if held is not None and held.rank == producer.rank:\n        return held\n"
                "    if held is not None and held.rank > producer.rank:\n"
            ),
        ),
    ),
    mutant(
        "a host takes more leases than it wants",
        "leasehold.leases.balance",
        "max(0, limits[name] - totals[name])",
        "1000",
    ),
    mutant(
        "the epoch is not raised when a lease is taken",
        "leasehold.leases.lease",
        "            epoch=self.epoch + 1,\n",
        "",
    ),
    mutant(
        "a reset does not raise the generation",
        "leasehold.leases.lease",
        "            generation=self.generation + 1,\n",
        "",
    ),
    mutant(
        "asking for a lease moves its tick",
        "leasehold.leases.lease",
        "return replace(self, handoff_to=to)",
        "return replace(self, handoff_to=to, tick=self.tick + 1)",
    ),
    mutant(
        "a conflict is answered by a retry with the fresh ETag",
        "leasehold.leases.tenure",
        "            self._lose(_lost(before, now.lease))\n            raise self._lost",
        "            self._etag = now.etag\n            return False",
    ),
    mutant(
        "a checkpoint is unconditional",
        "leasehold.leases.tenure",
        "        except (StoreConflict, StoreMissing, StoreAmbiguous, asyncio.CancelledError) as error:\n",
        "        except StoreConflict:\n"
        "            fresh = await self._store.read(id_of(wanted))\n"
        "            self._adopt(wanted, await self._store.replace(id_of(wanted), encode_lease(wanted), fresh.etag), began)\n"
        "            return True\n"
        "        except (StoreMissing, StoreAmbiguous, asyncio.CancelledError) as error:\n",
    ),
    mutant(
        "a lease is taken whatever its ETag",
        "leasehold.leases.keeper",
        "            etag = await self._replace(wanted, seen)\n",
        "            etag = await self._replace(wanted, await self.read(*wanted.key))\n",
    ),
    mutant(
        "a lost answer to a take counts as a yes",
        "leasehold.leases.keeper",
        "            if not now.lease.is_same_tenure(wanted):\n                return None\n",
        "",
    ),
    mutant(
        "trust is judged by a timer alone",
        "leasehold.service.permit",
        "        if not self._owned.is_trusted:\n            raise NotTrusted(",
        "        if not getattr(self, 'is_open', True):\n            raise NotTrusted(",
        (
            "leasehold.service.permit",
            "        if not self._owned.is_trusted:\n            self._note_suspension()\n",
            "        self.is_open = self._owned.is_trusted\n        if not self.is_open:\n            self._note_suspension()\n",
        ),
        (
            "leasehold.service.worker",
            "            now = self._clock.monotonic()\n            stage",
            "            now, self._permit.is_open = self._clock.monotonic(), self.owned.is_trusted\n            stage",
        ),
    ),
    mutant(
        "trust is checked before a write, not when it is sent",
        "leasehold.pipeline.sink",
        '            raise NotTrusted("the write was cancelled before it was sent")\n        permit.check()\n',
        '            raise NotTrusted("the write was cancelled before it was sent")\n',
    ),
    mutant(
        "a failed write wins a lease again",
        "leasehold.leases.tenure",
        "            attempt += 1\n            failed(error, attempt)\n",
        "            owned._written = owned._written._replace(term=owned.session.term)\n            failed(error, attempt)\n",
    ),
    mutant(
        "a hung worker goes on renewing",
        "leasehold.service.worker",
        "            if left <= 0:\n                raise BatchHung(",
        "            if left < -1e9:\n                raise BatchHung(",
        ("leasehold.service.worker", "self._clock.sleep(min(left, timeout))", "self._clock.sleep(timeout)"),
    ),
    mutant(
        "children begin before their parent is closed",
        "leasehold.leases.lineage",
        "_is_at_work(parent, listed, leases) for parent in partition.parents",
        "False for parent in partition.parents",
    ),
    mutant(
        "what leases hold of a merged partition gets a lease once more",
        "leasehold.leases.lineage",
        "        for part in uncovered(partition, held)\n",
        "        for part in whole(partition, held)\n",
    ),
    mutant(
        "a child begins at its beginning and not where its parent ended",
        "leasehold.leases.lineage",
        "                        continuation=child.continuation,\n",
        "                        continuation=None,\n",
    ),
    mutant(
        "a partition ends before its last events are delivered",
        "leasehold.pipeline.pump.buffer",
        "        if self.is_empty and self._end is not None:\n",
        "        if self._end is not None:\n",
    ),
    mutant(
        "a batch holds whole pages",
        "leasehold.pipeline.pump.buffer",
        "            part = self._part(self._limits.events_max - events, at_least_one=not pages)\n",
        "            part = self._pages[0][0]\n",
    ),
    mutant(
        "what is left of a page begins where the page began",
        "leasehold.pipeline.event",
        "events=self.events.slice(n), position_after=_Behind(whole, taken + n)",
        "events=self.events, position_after=_Behind(whole, taken + n)",
    ),
    mutant(
        "the owner level is not raised after an ambiguous send",
        "leasehold.service.worker",
        "self.pipeline.claimed(kept if known is None else known)",
        "kept if known is None else known",
    ),
    mutant(
        "after an ambiguous send another batch takes its numbers",
        "leasehold.service.worker",
        "                fence = fence if isinstance(error, StoreError) else error\n",
        "                fence = fence if isinstance(error, (StoreError, Ambiguous)) else error\n",
    ),
    mutant(
        "a level that a document put back gives out again is attached again",
        "leasehold.pipeline.connectors.log.producer_state",
        "    if held is not None and held.rank >= producer.rank:\n",
        "    if held is not None and held.rank > producer.rank:\n",
    ),
    mutant(
        "the tail is read before the fence is taken",
        "leasehold.pipeline.connectors.log.sink",
        "        log, line, end = await _on_thread(self._threads, lambda: self._attached(claim, producer, state))\n",
        "        early = await _on_thread(self._threads, lambda: self._log.lines.get(producer.lease))\n"
        "        log, line, end = await _on_thread(self._threads, lambda: self._attached(claim, producer, state))\n"
        "        line = replace(line, marker=early.marker if early and early.generation == line.generation else None)\n",
    ),
    mutant(
        "the position is kept in the lease alone",
        "leasehold.pipeline.publishing_writer",
        "return max(held, claim.continuation, key=cmp_to_key(claim.compare))",
        "return claim.continuation",
    ),
    mutant(
        "an uncertain batch is sent again at the new level",
        "leasehold.pipeline.connectors.log.producer_state",
        "    return replace(new, marker=held.marker, ended=held.ended)",
        "    return replace(new, ended=held.ended)",
    ),
    mutant(
        "an uncertain send is repeated under new numbers",
        "leasehold.pipeline.connectors.log.sink",
        '            crash_point("before append")\n'
        "            first = self._log.publish(self._producer, number, batch, marker, check)\n",
        "            nonlocal number\n"
        '            crash_point("before append")\n'
        "            try:\n"
        "                first = self._log.publish(self._producer, number, batch, marker, check)\n"
        "            except LogUncertain:\n"
        "                number = number_after(number, batch.events)\n"
        "                raise\n",
    ),
    mutant(
        "a broker takes what was outranked",
        "leasehold.pipeline.connectors.log.producer_state",
        "    if held.rank > producer.rank:\n        raise _outranked(held, producer)\n    return held",
        "    return held",
    ),
    mutant(
        "a marker outlives its generation",
        "leasehold.pipeline.connectors.log.producer_state",
        "    if held is None or held.generation != producer.generation:",
        "    if held is None:",
    ),
    mutant(
        "two batches are unsettled at once",
        "leasehold.pipeline.pump.delivering",
        "        return item is not None and await self._write(item, stop)",
        "        if item is not None:\n"
        "            self._loose = asyncio.create_task(self._write(item, stop))\n"
        "            self._loose.add_done_callback(lambda task: task.cancelled() or task.exception())\n"
        "        return item is not None",
    ),
    mutant(
        "who is refused asks again at a constant pace",
        "leasehold.common.clock",
        "        return max(grown * (1 - self.spread * jitter), at_least_s)\n",
        "        return self.first_s\n",
    ),
    mutant(
        "takes that were refused wait for the next listing",
        "leasehold.service.taking",
        "again = await self._take_all(keys, scan, group)",
        "again = RoundOutcome()",
        test=f"{OVERLOAD}::test_a_listing_that_uses_up_what_takes_need_does_not_keep_leases_from_being_taken",
    ),
    mutant(
        "leases of a paused pipeline are taken",
        "leasehold.service.planning",
        "(self._clock.monotonic(), host_scan.peers, host_scan.controls.paused)",
        "(self._clock.monotonic(), host_scan.peers, frozenset())",
    ),
    mutant(
        "a sink that opens slowly is cancelled though it gets on",
        "leasehold.service.worker",
        "progress=lambda: self.progress.advance(OPENING, self._clock.monotonic())",
        "progress=lambda: None",
    ),
    mutant(
        "one sink's slow answer keeps the partitions of its pipeline waiting",
        "leasehold.service.partitions",
        "return await self._asks[pipeline.name].get('standing', LeaseKey(pipeline.name, partition),"
        " lambda: pipeline.sink.standing(pipeline.name, partition), 'its sink')",
        "return await self._await_answer(pipeline.sink.standing(pipeline.name, partition), 'its sink')",
        test="tests/unit/service/test_partitions_background_calls.py::test_a_slow_answer_for_one_partition_delays_no_other_and_comes_in_the_background",
    ),
    mutant(
        "events that do not lie behind what was read are delivered",
        "leasehold.pipeline.feed",
        "    if order > 0 or (order == 0 and events):\n",
        "    if False:\n",
    ),
    mutant(
        "a claim's first batch is not looked for in the hub",
        "leasehold.pipeline.connectors.eventhubs.sink.writer",
        "        if not self._is_verified:\n",
        "        if False:\n",
    ),
    mutant(
        "the tail of a hub's lease stands still while it publishes",
        "leasehold.pipeline.connectors.eventhubs.sink.writer",
        "        self._state = replace(self._state, tail=max(self._state.tail, end))\n",
        "        pass\n",
    ),
    mutant(
        "a hub's partition is empty if $management says so after a second",
        "leasehold.pipeline.connectors.eventhubs.sink.tail",
        "QUIET_S = 10.0\n",
        "QUIET_S = 1.0\n",
        test="tests/unit/pipeline/connectors/eventhubs/sink/test_tail.py",
    ),
    mutant(
        "a hub's partition ends where $management says",
        "leasehold.pipeline.connectors.eventhubs.sink.tail",
        "        while (end := self._end) is None or self._reading.behind < end:\n",
        "        self._end = (await self._tails.broker.read_extent(self._target)).last\n"
        "        while (end := self._end) is None or self._reading.behind < end:\n",
    ),
    mutant(
        "a hub's claim asks at a null level",
        "leasehold.pipeline.connectors.eventhubs.sink.producer_groups",
        "            return await self._numbers(target, AttachRequest(group=of, level=level))\n",
        "            return await self._numbers(target, AttachRequest(group=of, level=None))\n",
    ),
    mutant(
        "a claim does not look for what was published since the checkpoint",
        "leasehold.pipeline.connectors.eventhubs.sink.producer_groups",
        "    return Tail(behind=state.tail if has_published else min(before, state.tail), is_binding=has_published)\n",
        "    return Tail(behind=before, is_binding=False)\n",
    ),
    mutant(
        "a producer whose last number is -1 has published",
        "leasehold.pipeline.connectors.eventhubs.sink.producer_groups",
        "known.number not in (0, NOTHING_YET)",
        "known.number != 0",
        test="tests/unit/pipeline/connectors/eventhubs/sink/test_producer_groups_claims.py",
    ),
    mutant(
        "an answer of a lagging replica moves a Cosmos DB feed back",
        "leasehold.pipeline.connectors.cosmos.feed",
        "            after = pages[-1].to if pages else furthest(after, answer.etag)\n",
        "            after = pages[-1].to if pages else answer.etag\n",
        (
            "leasehold.pipeline.connectors.cosmos.feed",
            "        return [record for record in records if record.lsn > read]\n",
            "        return records\n",
        ),
        test="tests/connectors/cosmos/test_feed.py::test_what_a_lagging_replica_answers_moves_nothing_back_and_repeats_nothing",
    ),
    mutant(
        "bounds of ranges are ordered as texts",
        "leasehold.pipeline.connectors.cosmos.ranges",
        '    return bound.rstrip("0")\n',
        "    return bound\n",
        test="tests/unit/pipeline/connectors/cosmos/test_ranges.py",
    ),
    mutant(
        "leases lie in an account of any consistency",
        "leasehold.leases.stores.cosmos.connection",
        'TOO_WEAK = ("ConsistentPrefix", "Eventual")\n',
        "TOO_WEAK = ()\n",
        test="tests/connectors/cosmos/test_leases_faults.py::test_an_account_of_weak_consistency_is_refused",
    ),
    mutant(
        "leases are taken one after another",
        "leasehold.leases.side_by_side",
        "AT_ONCE_MAX = 16\n",
        "AT_ONCE_MAX = 1\n",
        test=f"{OVERLOAD}::test_hundreds_of_leases_of_a_dead_host_are_taken_within_the_promised_bound",
    ),
    mutant(
        "every host that starts creates every lease",
        "leasehold.leases.bootstrap",
        "            if scan.started - self._due_since[name] >= rank * grace_s\n",
        "",
        test=f"{OVERLOAD}::test_hosts_that_start_together_do_not_all_create_the_same_leases",
    ),
    mutant(
        "a database that lost a lease's position takes it from the lease",
        "leasehold.pipeline.connectors.postgres.sink",
        "message = sql.claimed(self._parts.tables, claim, is_known=is_known)",
        "message = sql.claimed(self._parts.tables, claim, is_known=False)",
    ),
    mutant(
        "an earlier epoch claims a position in PostgreSQL",
        "leasehold.pipeline.connectors.postgres.sql",
        "            WHERE known.epoch <= excluded.epoch\n",
        "            WHERE true\n",
    ),
    mutant(
        "the guard of a batch in PostgreSQL lets earlier epochs write",
        "leasehold.pipeline.connectors.postgres.sql",
        'return SQL("{} AND generation = {} AND epoch = {}").format(',
        'return SQL("{} AND generation = {} AND epoch >= {}").format(',
    ),
    mutant(
        "the guard of a batch in PostgreSQL does not look at the position",
        "leasehold.pipeline.connectors.postgres.sql",
        "WHERE {} AND position IS NOT DISTINCT FROM {} AND state = 'open'",
        "WHERE {} AND (true OR position IS NOT DISTINCT FROM {}) AND state = 'open'",
    ),
    mutant(
        "a manifest that lost entries is taken as it is",
        "leasehold.pipeline.connectors.files.sink.manifest",
        "    if version < seen:\n",
        "    if False:\n",
    ),
    mutant(
        "who comes second to put an entry takes it for its own",
        "leasehold.pipeline.connectors.files.sink.manifest",
        "            return found.id == entry.id\n",
        "            return True\n",
    ),
    mutant(
        "successors of a request in doubt are sent at once",
        "leasehold.pipeline.async_sink.request_scheduler",
        "        return now + self._limits.request_timeout_s if may_land else None\n",
        "        return None\n",
    ),
    mutant(
        "rows behind a late request go out with a larger one that is late too",
        "leasehold.pipeline.async_sink.buffer",
        "                    line.late_last = min(last[entry.order], line.late_last)\n",
        "                    line.late_last = max(last[entry.order], line.late_last if line.late_last < inf else -1)\n",
        test="tests/unit/pipeline/async_sink/test_buffer.py::test_while_two_requests_may_be_late_only_rows_of_both_are_sent",
    ),
    mutant(
        "a position passes what is not acknowledged",
        "leasehold.pipeline.async_sink.scheduler",
        "        while self._first in self._beyond:\n",
        "        while self._beyond:\n            self._first = min(self._beyond)\n",
    ),
    mutant(
        "calls of one key run side by side",
        "leasehold.pipeline.handlers.calls",
        'order = f"{UNKEYED}{number}" if key is None else KEYED + key',
        'order = f"{UNKEYED}{number}"',
    ),
    mutant(
        "calls get ahead of the position without a limit",
        "leasehold.pipeline.handlers.calls",
        "return self.unsettled < self._limits.window and self._bytes < self._limits.window_bytes",
        "return True",
    ),
    mutant(
        "an event counts as processed when its call begins",
        "leasehold.pipeline.handlers.calls",
        "        self.in_flight += 1\n        return Call(",
        "        self.in_flight += 1\n        self.acknowledge([first])\n        return Call(",
    ),
    mutant(
        "more calls run than may",
        "leasehold.pipeline.handlers.calls",
        "self.in_flight >= self._limits.max",
        "self.in_flight > self._limits.max",
    ),
    mutant(
        "a call that failed is repeated beside later events of its key",
        "leasehold.pipeline.handlers.calls",
        "        self._buffer.put_back(left, rests_until=now + pause_s)\n",
        "        from dataclasses import replace\n        for each in left:\n            self._buffer.acknowledged(each, now)\n"
        "            self._buffer.add(replace(each, order=f'{UNKEYED}{each.number}'), now)\n",
    ),
    mutant(
        "what a call acknowledged before it failed is handled again",
        "leasehold.pipeline.handlers.calls",
        "left = [entry for entry in call.entries if entry.number in self._open]\n        if not left:",
        "left = list(call.entries)\n        if not left:",
        test=f"{HANDLERS}/test_writer.py::test_what_was_acknowledged_before_an_error_is_not_handled_again",
    ),
    mutant(
        "a handler that acknowledges by hand has processed an event once it returns",
        "leasehold.pipeline.handlers.calls",
        "if not self._limits.manual_ack:",
        "if True:",
        test=f"{HANDLERS}/test_writer.py::test_with_manual_acknowledgement_the_position_follows_what_is_acknowledged",
    ),
    mutant(
        "an acknowledgement counts for all events of its call",
        "leasehold.pipeline.handlers.writer",
        "self._calls.acknowledge(call.entries[:count])",
        "self._calls.acknowledge(call.entries)",
        test=f"{HANDLERS}/test_writer.py::test_what_was_acknowledged_before_an_error_is_not_handled_again",
    ),
    mutant(
        "events of a lost lease can be acknowledged",
        "leasehold.pipeline.handlers.writer",
        "        if self._is_closed:\n            return False\n",
        "",
        test=f"{HANDLERS}/test_writer.py::test_what_is_never_acknowledged_is_handled_again_by_the_next_owner",
    ),
    mutant(
        "events of a lost lease are never stale",
        "leasehold.pipeline.handlers.writer",
        "is_released=lambda: self._is_closed",
        "is_released=lambda: False",
        test=f"{HANDLERS}/test_events.py::test_pages_of_a_lost_lease_are_left_to_its_next_tenure",
    ),
    mutant(
        "a lease can be lost between a look at stale events and their acknowledgement",
        "leasehold.pipeline.handlers.events",
        "count = self._count(position)\n",
        "await asyncio.sleep(0)\n        count = self._count(position)\n",
        test=f"{HANDLERS}/test_events.py::test_nothing_comes_between_a_look_at_stale_events_and_their_acknowledgement",
    ),
    mutant(
        "a handler that checkpoints by hand has processed a batch when it gets it",
        "leasehold.pipeline.connectors.python",
        "if last is not None and (self._up_to is None or last > self._up_to):",
        "if False:",
    ),
    mutant(
        "a checkpoint by hand of some events covers their whole batch",
        "leasehold.pipeline.connectors.python",
        "self._open.append((max(sequences, default=None)",
        "self._open.append((min(sequences, default=None)",
    ),
    mutant(
        "reading never pauses for checkpoints by hand",
        "leasehold.pipeline.connectors.python",
        "+ rows > self._open_max",
        "> 10**9",
    ),
    mutant(
        "a stop or handoff does not wait for checkpoints by hand",
        "leasehold.pipeline.connectors.python",
        "while self._open:\n            await self.wait_for_progress()",
        "while False:\n            await self.wait_for_progress()",
    ),
    mutant(
        "a row of several events becomes the dead letter of one of them",
        "leasehold.pipeline.handlers.writer",
        "has_row_of_each = len(of_rows) == len(of_events)",
        "has_row_of_each = True",
        test=f"{HANDLER_SINK}::test_events_that_became_one_row_are_handled_or_dead_letters_each",
    ),
    mutant(
        "an event becomes a dead letter for each of its rows",
        "leasehold.pipeline.handlers.writer",
        "if len(of_events) < events.num_rows or len(of_rows) < rows.num_rows:",
        "if len(of_events) < events.num_rows:",
        test=f"{HANDLER_SINK}::test_an_event_of_several_rows_becomes_one_dead_letter",
    ),
    mutant(
        "a call that fails again and again counts as one that hangs",
        "leasehold.service.worker",
        "self.progress.excuse_sink(self._clock.monotonic() + seconds)",
        "None",
        test=f"{HANDLERS}/test_writer.py::test_an_event_whose_calls_take_too_long_becomes_a_dead_letter_within_one_tenure",
    ),
    mutant(
        "a key continues behind its dead letter at once",
        "leasehold.pipeline.handlers.calls",
        "self._parked[call.first.order] = now + self._limits.park_s",
        "pass",
        test=f"{HANDLER_SINK}::test_an_event_that_fails_too_often_is_a_dead_letter_and_so_are_the_next_of_its_key",
    ),
    mutant(
        "a key is parked for ever",
        "leasehold.pipeline.handlers.calls",
        "self._parked[call.first.order] = now + self._limits.park_s",
        "self._parked[call.first.order] = inf",
        test=f"{HANDLERS}/test_calls.py::test_later_events_of_a_parked_key_are_parked_too_until_its_time_is_over",
    ),
    mutant(
        "an event that waits for trust to become a dead letter is counted at each attempt",
        "leasehold.pipeline.dead_letters.guards",
        "len(recent.union(sequences)) > self.most",
        "len(recent) + len(sequences) > self.most",
        test=f"{HANDLER_SINK}::test_events_that_wait_for_trust_to_become_dead_letters_count_once",
    ),
    mutant(
        "each claim may park as many events again",
        "leasehold.pipeline.dead_letters.dead_letter_transform",
        "self.park_guards.setdefault(partition, ParkGuard(events=self.share_events, share_max=self.share_max))",
        "ParkGuard(events=self.share_events, share_max=self.share_max)",
        test=f"{HANDLER_SINK}::test_too_many_parked_events_stop_the_partition_and_it_stays_so",
    ),
    mutant(
        "events that a retry repeats let it park more",
        "leasehold.pipeline.dead_letters.side_output_sink",
        "self._guard.settled = self._settled_before + rows",
        "self._guard.settled = self._settled_before + self._writer.acknowledged",
        (
            "leasehold.pipeline.dead_letters.side_output_sink",
            "while self._written and self._claim.compare(self._written[0][0], self._writer.position) <= 0:",
            "while self._written:",
        ),
        test=f"{HANDLER_SINK}::test_a_retry_that_repeats_good_events_parks_no_more_of_the_bad_ones",
    ),
    mutant(
        "a letter that was never written counts for the next claim",
        "leasehold.pipeline.dead_letters.guards",
        "self._parked.pop(sequence, None)",
        "pass",
        test=f"{HANDLER_SINK}::test_parked_events_whose_letters_were_never_written_do_not_count_in_the_next_claim",
    ),
    mutant(
        "parked events count from the start of a claim",
        "leasehold.pipeline.dead_letters.side_output_sink",
        "self._guard.admit(sequences, self._settled_before + self._writer.acknowledged)",
        "self._guard.admit(sequences, self._writer.acknowledged)",
        test=f"{HANDLER_SINK}::test_what_was_processed_before_a_claim_lets_it_park_no_more",
    ),
    mutant(
        "a stop or handoff drops what was taken, and the next owner repeats it",
        "leasehold.pipeline.pump.delivering",
        "            await self._in_flight.flush(stop)\n            return None\n",
        "            return None\n",
    ),
    mutant(
        "a stop starts its time over with each step",
        "leasehold.pipeline.pump.delivering",
        "return await self.carry_out(self._writer.flush(), stop)",
        "self._gives_up_at = None\n        return await self.carry_out(self._writer.flush(), stop)",
        test=f"{HANDLERS}/test_writer.py::test_a_stop_waits_as_long_however_full_the_window_is",
    ),
    mutant(
        "a plain call that raises StopIteration keeps its thread",
        "leasehold.pipeline.connectors.handlers",
        "        self.give_back()\n        if not future.done():\n",
        "        if not future.done():\n            self.give_back()\n",
        test=f"{HANDLER_SINK}::test_a_thread_is_free_again_though_nothing_waits_for_its_call",
    ),
    mutant(
        "a call that only makes a generator has handled its events",
        "leasehold.pipeline.connectors.handlers",
        "if inspect.isgenerator(answer) or inspect.isasyncgen(answer):",
        "if False:",
        test=f"{HANDLER_SINK}::test_a_function_that_returns_code_which_has_not_run_is_refused",
    ),
    mutant(
        "a lease is given up without its last checkpoint",
        "leasehold.service.worker",
        '            await run_within("checkpoint", retry_until_answered(self._checkpoints.keep, self._clock,'
        " self._log), self._log)\n",
        "",
    ),
    mutant(
        "partitions of unknown lag count as none",
        "leasehold.service.lag.measurement",
        "UNKNOWN_SHARE_MAX = 0.1\n",
        "UNKNOWN_SHARE_MAX = 1.0\n",
        test="tests/unit/service/lag/test_measurement.py::test_more_than_a_tenth_of_unknown_partitions_is_an_unknown_lag",
    ),
    mutant(
        "a hub's sink reads in a consumer group that it was not given",
        "leasehold.service.config.eventhubs",
        "consumer_group: ConsumerGroup = Field(description='The consumer group in which the sink reads the end of each"
        " partition. No reader with an epoch, such as the feed `eventhubs`, may use it.')",
        "consumer_group: ConsumerGroup = Field(default='$Default')",
        test="tests/unit/service/config/test_eventhubs_sink.py::test_what_does_not_go_together_is_told_without_secrets",
    ),
    mutant(
        "a partition whose start is unknown keeps the first round open for all others",
        "leasehold.leases.bootstrap",
        "self._audit.left) and _has_room_for(undecided)",
        "self._audit.left or undecided)",
        test="tests/unit/leases/test_bootstrap.py::test_a_partition_that_appears_while_an_older_one_is_undecided_begins_at_its_beginning",
    ),
    mutant(
        "an unknown partition beside idle ones counts as idle",
        "leasehold.service.lag.measurement",
        "(_unknown(of) if _is_known(of) else 0)",
        "0",
        test="tests/unit/service/lag/test_measurement.py::test_an_unknown_partition_beside_idle_ones_is_not_counted_as_idle",
    ),
    mutant(
        "a take that is refused again does not leave the container alone",
        "leasehold.service.taking",
        "if again.refused:",
        "if False:",
        test=f"{OVERLOAD}::test_a_take_that_is_refused_again_also_keeps_the_container_alone",
    ),
    mutant(
        "throttled rounds count as failed, and the next one lists",
        "leasehold.service.looking",
        "self._broken += not retry_after_s(error)",
        "self._broken += 1",
        test=f"{OVERLOAD}::test_while_all_readings_are_throttled_hosts_try_a_reading_of_changes_and_rarely_a_listing",
    ),
    mutant(
        "a throttled listing comes again with the next round",
        "leasehold.service.looking",
        "self._postpone_listing(self.scan)",
        "pass",
        test=f"{OVERLOAD}::test_listings_recover_from_a_disturbance_though_refused_ones_cost_half_of_the_room",
    ),
    mutant(
        "a listing waits for no pause that the store demanded",
        "leasehold.service.looking",
        "self._list_at, self._keeper.outcomes.quiet_until)",
        "self._list_at)",
        test=f"{OVERLOAD}::test_a_take_that_is_refused_again_also_keeps_the_container_alone",
    ),
    mutant(
        "a probe waits for no pause that the store demanded",
        "leasehold.service.fitness",
        "if self._clock.monotonic() < outcomes.quiet_until:",
        "if False:",
        test=f"{OVERLOAD}::test_a_probe_comes_no_sooner_than_the_container_wants_it",
    ),
    mutant(
        "throttled writes show nothing about a host",
        "leasehold.service.fitness",
        "outcomes.writes.spans_s >= self._session.timing.duration_s",
        "False",
        test=f"{HOST_GRAY}::test_a_host_all_whose_lease_writes_are_throttled_gives_a_partition_away_though_it_never_gets_to_a_probe",
    ),
    mutant(
        "one throttled write shows that a host is sick",
        "leasehold.service.fitness",
        "outcomes.writes.spans_s >= self._session.timing.duration_s",
        "True",
        test=f"{HOST_GRAY}::test_one_write_that_the_store_refuses_with_a_long_pause_evicts_nobody",
    ),
    mutant(
        "slow answers of a sink hold up all others",
        "leasehold.service.partitions",
        "call_later(self._timing.call_timeout_s, place.close)",
        "call_later(1e9, place.close)",
        test="tests/unit/service/test_partitions_background_calls.py::test_slow_answers_do_not_hold_up_a_quick_one",
    ),
    mutant(
        "a host remembers every report for ever",
        "leasehold.service.reports",
        "        if len(self._last) > REPORTS_MAX:\n",
        "        if False:\n",
        test="tests/unit/service/test_reports.py::test_the_subjects_are_bounded",
    ),
    mutant(
        "a batch is safe before it is delivered",
        "leasehold.service.worker",
        "self._checkpoints.has_moved(self._writer.position, ",
        "self._checkpoints.has_moved(str(int(self._writer.position or 0) + 1), ",
    ),
    mutant(
        "an at-least-once sink is checkpointed now and then",
        "leasehold.service.worker",
        "        while not self.pipeline.sink.holds_position and self._checkpoints.is_due:",
        "        while False:",
    ),
    mutant(
        "a lease is not checkpointed where its sink holds the position",
        "leasehold.service.checkpoints",
        "        self._safe = safe\n        self._dirty.set()\n",
        "        if self._pipeline.sink.holds_position:\n            return True\n"
        "        self._safe = safe\n        self._dirty.set()\n",
    ),
    # Sessions
    mutant(
        "a listing that does not show a tenure is ignored",
        "leasehold.leases.tenure",
        "self.is_doubted = True",
        "self.is_doubted = False",
        test=f"{HOST_LIVENESS}::test_a_released_idle_lease_stops_its_owner",
    ),
    mutant(
        "a lease is won again by a read",
        "leasehold.leases.tenure",
        "await self._change(Lease.renewed)",
        "if self.session is None:\n"
        "            return await self._change(Lease.renewed)\n"
        "        began = begin(self._clock, self._session)\n"
        "        now = versioned(await self._store.read(id_of(self._lease)))\n"
        "        if not now.lease.is_same_tenure(self._lease):\n"
        "            self._lose(_lost(self._lease, now.lease))\n"
        "            raise self._lost\n"
        "        self._adopt(now.lease, now.etag, began)",
    ),
    mutant(
        "hosts do not ring",
        "leasehold.leases.session",
        "self._rings += 1",
        "pass",
    ),
    mutant(
        "trust is checked before a request has a task, not when it is sent",
        "leasehold.pipeline.async_sink.request_writer",
        "request: R | None = first\nawait self._permit.wait_until_granted()",
        "request: R | None = first",
        test="tests/unit/pipeline/async_sink/test_writer_sink.py"
        "::test_trust_that_ends_before_the_task_of_a_request_begins_stops_the_request",
    ),
    mutant(
        "what executors refuse is passed over",
        "leasehold.pipeline.pump.range_jobs",
        "            plan.refuse(batch)\n"
        "            raise error if isinstance(error, RangeRefused) else RangeRefused(str(error)) from error\n",
        "            return Output(table=self._transform.columns.empty_table(), start=batch.start, to=batch.to, events=0)\n",
    ),
    mutant(
        "executors read ranges that change twice in one job",
        "leasehold.pipeline.pump.runner",
        "plan is not None and reader is not None and (self.why_host_reads is None)",
        "plan is not None and reader is not None",
        test="tests/unit/pipeline/pump/test_runner_ranges.py"
        "::test_ranges_that_change_are_read_by_the_host_if_a_job_reads_them_twice",
    ),
    mutant(
        "a function may read ranges that change as often as it likes",
        "leasehold.pipeline.spark.session",
        '        if why is not None:\n            raise TransformError(f"{why}: set `executors_read: false`")\n',
        "",
        test="tests/unit/pipeline/spark/test_session.py"
        "::test_what_a_function_makes_of_each_batch_has_to_read_its_events_once",
    ),
    mutant(
        "what the sink refuses is given to executors again",
        "leasehold.pipeline.pump.reading",
        "return has_suspects or has_buried or jobs.plan.is_for_host(self._read_to)",
        "return has_buried or jobs.plan.is_for_host(self._read_to)",
        test="tests/unit/pipeline/pump/test_runner_ranges.py::test_the_host_reads_while_refused_events_are_looked_for",
    ),
    mutant(
        "any number of jobs of executors run at once",
        "leasehold.pipeline.limits",
        "self.turns = asyncio.Semaphore(RANGED_JOBS_MAX)",
        "self.turns = asyncio.Semaphore(1000)",
        test="tests/unit/pipeline/pump/test_runner_ranges.py"
        "::test_few_jobs_of_executors_run_at_once_and_the_time_of_each_counts_from_its_beginning",
    ),
    mutant(
        "a job of executors returns more than there is room for",
        "leasehold.pipeline.limits",
        "while budget.returned + bytes_max > budget.bytes_max:\n    await self.wait_until_freed()",
        "pass",
        test="tests/unit/pipeline/pump/test_runner_ranges.py"
        "::test_what_executors_returned_to_all_partitions_is_bounded_until_it_is_delivered",
    ),
    mutant(
        "what executors refuse is given to them again",
        "leasehold.pipeline.pump.reading",
        "return has_suspects or has_buried or jobs.plan.is_for_host(self._read_to)",
        "return has_suspects or has_buried",
    ),
    mutant(
        "rows that tasks hand back are left out beside staged ones",
        "leasehold.pipeline.staging",
        "            parts.append(described(stager.stage(table, new_name()), table))\n",
        "            pass\n",
    ),
    mutant(
        "rows that tasks hand back are staged behind all others",
        "leasehold.pipeline.staging",
        "    for run in runs:\n",
        "    for run in sorted(runs, key=lambda run: not isinstance(run[0], StagedPart)):\n",
        test="tests/unit/pipeline/test_staging.py"
        "::test_rows_that_tasks_handed_back_are_staged_at_their_places_beside_others",
    ),
    mutant(
        "staged parts are committed in any order",
        "leasehold.pipeline.staging",
        "return Ranged(columns.empty_table(), tuple(in_order(parts)))",
        "return Ranged(columns.empty_table(), tuple(parts))",
        test="tests/unit/pipeline/test_staging.py"
        "::test_pieces_of_a_sorting_transform_are_committed_in_the_order_of_their_sequences",
    ),
    mutant(
        "the host reads once more what it has planned as ranges",
        "leasehold.pipeline.pump.reading",
        "        self._buffer.put_ranged(batch)\n        self._read_to = batch.to\n",
        "        self._buffer.put_ranged(batch)\n",
    ),
    mutant(
        "parts count whatever the epoch at which they were staged",
        "leasehold.pipeline.staging",
        "if (part.epoch, part.start) != (epoch, start):",
        "if part.start != start:",
        test="tests/unit/pipeline/connectors/files/sink/test_sink_staged.py"
        "::test_parts_of_another_claim_or_batch_are_refused",
    ),
    mutant(
        "staged files are cleared away whether entries name them or not",
        "leasehold.pipeline.connectors.files.sink.snapshot",
        "if (is_past or is_stale) and name not in named:",
        "if (is_past and name not in named) or is_stale:",
        test="tests/unit/pipeline/connectors/files/sink/test_sink_staged.py",
    ),
    mutant(
        "a claim clears away what earlier owners staged, whether entries name it or not",
        "leasehold.pipeline.connectors.files.sink.manifest",
        "        return [name for name in stale if name not in named]\n",
        "        return stale\n",
    ),
    mutant(
        "a claim clears away what later owners staged",
        "leasehold.pipeline.connectors.files.sink.snapshot",
        "is_stale = epoch is not None and epoch < partition.epoch",
        "is_stale = epoch is not None and epoch != partition.epoch",
        test="tests/unit/pipeline/connectors/files/sink/test_sink_staged.py::test_what_later_owners_staged_is_no_leftover",
    ),
    mutant(
        "a Delta table commits whatever executors have staged",
        "leasehold.pipeline.connectors.files.delta.sink",
        "        if output.staged:\n            self._check_parts(held, output)\n",
        "",
        test="tests/unit/pipeline/connectors/files/delta/test_sink_staged.py"
        "::test_parts_of_another_epoch_or_batch_are_refused",
    ),
    mutant(
        "a vacuum deletes what the present owner of a lease has staged",
        "leasehold.pipeline.connectors.files.delta.staged",
        "found.epoch < epochs.get(found.lease, 0)",
        "found.epoch <= epochs.get(found.lease, 0)",
        test="tests/unit/pipeline/connectors/files/delta/test_vacuum.py"
        "::test_what_an_earlier_owner_staged_and_nobody_committed_is_deleted_at_once",
    ),
    mutant(
        "a vacuum deletes staged files that a compaction has just replaced",
        "leasehold.pipeline.connectors.files.delta.table",
        "return [name for name in unneeded if name not in removed]",
        "return unneeded",
        test="tests/unit/pipeline/connectors/files/delta/test_vacuum.py"
        "::test_committed_files_that_a_compaction_replaced_wait_for_the_retention",
    ),
    mutant(
        "the rows of a staging table are not counted",
        "leasehold.pipeline.connectors.postgres.writer",
        "merged=[*merged[:-1], within, counted, within, merged[-1]]",
        "merged=[*merged[:-1], within, merged[-1]]",
        test="tests/integration/test_postgres_staging.py"
        "::test_staged_rows_that_a_crash_of_the_server_lost_are_processed_again",
    ),
    mutant(
        "a claim drops the staging tables of its own epoch",
        "leasehold.pipeline.connectors.postgres.staging_sql",
        'int(of["epoch"]) < claim.epoch',
        'int(of["epoch"]) <= claim.epoch',
        test="tests/unit/pipeline/connectors/postgres/test_sql.py"
        "::test_only_tables_of_this_lease_and_of_earlier_epochs_are_outranked",
    ),
    mutant(
        "a staging table commits whatever batch it was made for",
        "leasehold.pipeline.connectors.postgres.writer",
        "        check_parts(output.staged, epoch=claim.epoch, start=output.start)\n",
        "        pass\n",
        test="tests/integration/test_postgres_staging.py::test_a_part_that_another_batch_staged_is_refused_by_name",
    ),
    mutant(
        "the end of a job's time is no progress of the batch",
        "leasehold.pipeline.pump.range_jobs",
        "loop = asyncio.get_running_loop()\n        end = loop.call_later(job_s, moved)",
        "loop = asyncio.get_running_loop()\n        end = loop.call_later(job_s + 1e9, moved)",
        test="tests/unit/service/test_worker_ranges.py",
    ),
    mutant(
        "executors commit what they stage",
        "leasehold.pipeline.connectors.files.sink.sink",
        "            put_again(self.place, name, content)\n",
        "            put_again(self.place, name, content)\n"
        "            from leasehold.pipeline.connectors.files.sink.manifest import head_of\n"
        "            parts = name.split('/')\n"
        "            folders = entries.Folders(manifest=f'{entries.MANIFEST}/{parts[0]}/{parts[1]}', data='/'.join(parts[:2]))\n"
        "            head = head_of(self.place, folders)\n"
        "            number = head.version + 1\n"
        "            digest = hashlib.sha256(content).hexdigest()\n"
        "            file = DataFile(name=name, format=self.format, rows=table.num_rows, bytes=len(content), sha256=digest,"
        " version=number, generation=head.generation, epoch=head.epoch, start=head.position, to=head.position or '0')\n"
        "            entry = replace(head, version=number, id=unique, kind='batch', files=(file,))\n"
        "            self.place.put(folders.entry(number), entries.encoded(entry))\n",
    ),
    mutant(
        "a claim of a topic fences no earlier owner",
        "leasehold.pipeline.connectors.kafka.transactions",
        "self._producer = self._cluster.make_producer(self._lease,",
        'self._producer = self._cluster.make_producer(f"{id(self)}/{self._lease}",',
        test=TOPIC,
    ),
    mutant(
        "a claim of a topic reads the position before it fences",
        "leasehold.pipeline.connectors.kafka.sink",
        "            await self._asked(transactions.run(transactions.begin))\n"
        "            held, group = await self._find(claim.pipeline, claim.partition, self._cluster.timeout_s)\n",
        "            held, group = await self._find(claim.pipeline, claim.partition, self._cluster.timeout_s)\n"
        "            await self._asked(transactions.run(transactions.begin))\n",
        test=TOPIC,
    ),
    mutant(
        "positions in a topic are read while a commit is being completed",
        "leasehold.pipeline.connectors.kafka.cluster",
        '"isolation.level": "read_committed"',
        '"isolation.level": "read_uncommitted"',
        test=TOPIC,
    ),
)


class _Planted(MetaPathFinder):
    """Imports a mutant's modules with their changes."""

    def __init__(self, planted: Mutant) -> None:
        self._edits: dict[str, list[Edit]] = {}
        for edit in planted.edits:
            self._edits.setdefault(edit.module, []).append(edit)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in self._edits:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self._edits[fullname])
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, edits: list[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        text = self.get_source(fullname)
        assert text is not None
        return compile(changed(text, self._edits), self.path, "exec")


def changed(text: str, edits: list[Edit]) -> str:
    """The module as `ast.unparse` writes it, with the edits.

    Raises ValueError if one changes nothing, or several places, or brings a name that the module does not know.
    """
    text = ast.unparse(ast.parse(text))
    known = unknown_names(text)
    for edit in edits:
        places = [*_places(text, edit.old)]
        if len(places) != 1 or edit.old == edit.new:
            raise ValueError(f"{edit.module} holds {len(places)} times: {edit.old!r}")
        start, end = places[0]
        text = text[:start] + edit.new.strip() + text[end:]
    if unknown := unknown_names(text) - known:
        raise ValueError(f"{edits[0].module} does not know {', '.join(sorted(unknown))}")
    return text


def unknown_names(text: str) -> set[str]:
    """The global names that a module uses and neither defines nor imports."""
    module = symtable.symtable(text, "module", "exec")
    known, used, tables = {*dir(builtins), "__file__", "__path__", "__annotations__"}, set[str](), [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            is_defined = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            if is_defined and (table is module or symbol.is_declared_global()):
                known.add(symbol.get_name())
            elif symbol.is_referenced() and (table is module or symbol.is_global()):
                used.add(symbol.get_name())
    return used - known


_TOKEN = re.compile(r"""[rbfu]{0,2}(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|\w+|[^\w\s]""")


def _places(text: str, snippet: str) -> Iterator[tuple[int, int]]:
    """From where to where the tokens of the snippet stand in the text, or else its characters within a text of SQL."""
    found, wanted = [*_TOKEN.finditer(text)], [_normal(match[0]) for match in _TOKEN.finditer(snippet)]
    tokens = [_normal(match[0]) for match in found]
    for first in range(len(tokens) - len(wanted) + 1):
        if tokens[first] == wanted[0] and tokens[first : first + len(wanted)] == wanted:
            yield found[first].start(), found[first + len(wanted) - 1].end()
    for match in re.finditer(re.escape(snippet.strip()), text) if snippet.strip().startswith("WHERE") else ():
        yield match.span()


def _normal(token: str) -> str:
    """Whichever quotes a string has."""
    return token.replace('"', "'") if token[-1] in "'\"" else token


def is_sound(mutant: Mutant) -> bool:
    """Whether each of its edits still changes something, once."""
    for module in {edit.module for edit in mutant.edits}:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        with open(spec.origin) as source:
            changed(source.read(), [edit for edit in mutant.edits if edit.module == module])
    return True


def hunted(name: str, seeds_max: int, shows: bool) -> int:
    """In this process: plant it, and run its test, or seeds until one is caught. Prints the number of seeds; 0 where none was."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S + 5))
    planted = next(mutant for mutant in MUTANTS if mutant.name == name)
    sys.meta_path.insert(0, _Planted(planted))
    if planted.test:
        return tested(planted.test)
    from lab.simulation.run import simulated
    from lab.simulation.seeds import report
    from lab.simulation.setup import TIGHT
    from lab.simulation.world import hasten

    hasten()
    for seed in range(1, seeds_max + 1):
        verdict = simulated(seed, TIGHT, is_told=False)
        if verdict.found:
            if broken := broken_by("\n".join([*verdict.found, *verdict.trace])):
                click.echo(f"0 not caught: the program is broken: {broken}")
                return 1
            click.echo(f"{seed} {verdict.found[0].splitlines()[-1]}")
            if shows:
                click.echo(report(verdict, TIGHT))
            return 0
    click.echo("0 not caught")
    return 1


def broken_by(told: str) -> str:
    """The error that shows that a mutant broke the program and no rule; "" if there is none."""
    found = BROKEN.search(told)
    return found[0] if found else ""


def tested(test: str) -> int:
    """Whether the test fails, and does not merely end: only a failed test catches a mutant."""
    told = io.StringIO()
    with redirect_stdout(told):
        ended = pytest.main([*PYTEST, test])
    broken = broken_by(told.getvalue())
    is_caught = ended == pytest.ExitCode.TESTS_FAILED and not broken
    lines = [line for line in told.getvalue().splitlines() if line.startswith(("FAILED", "ERROR"))] or ["it passes"]
    lines = [f"the program is broken: {broken}"] if broken else lines
    click.echo(f"1 {lines[0]}" if is_caught else f"0 not caught: {lines[0]}")
    return 0 if is_caught else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    parser.add_argument("--hunt")
    asked = parser.parse_args()
    if asked.hunt is not None:
        return hunted(asked.hunt, asked.seeds, bool(asked.only))
    wanted = [mutant for mutant in MUTANTS if asked.only in mutant.name]
    if not wanted:
        names = "\n  ".join(mutant.name for mutant in MUTANTS)
        parser.error(f"no mutant's name contains {asked.only!r}; there are\n  {names}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda mutant: _hunt(mutant, asked.seeds, asked.only), wanted)
        last = list[int]()
        tests = list[str]()
        for planted, (seeds, how) in zip(wanted, results, strict=True):
            last += [seeds] if seeds and not planted.test else []
            tests += [planted.test] if seeds and planted.test else []
            click.echo(f"{('test' if planted.test else seeds) if seeds else 'not':>4}  {planted.name:62} {how}")
    for seed, violation in (unplanted := violations(set(last))).items():
        click.echo(f"seed {seed} catches nothing, as it violates {violation} with nothing planted")
    for test in (failing := failures(tests)):
        click.echo(f"{test} catches nothing, as it fails with nothing planted")
    caught = sum(seed not in unplanted for seed in last) + sum(test not in failing for test in tests)
    click.echo(f"{caught} of {len(wanted)} mutants caught")
    return 0 if caught == len(wanted) else 1


def violations(seeds: Collection[int]) -> dict[int, str]:
    """What seeds find with nothing planted: seed -> the first violation."""
    from lab.simulation.run import simulated
    from lab.simulation.setup import TIGHT

    verdicts = {seed: simulated(seed, TIGHT, is_told=False) for seed in sorted(seeds)}
    return {seed: verdict.found[0] for seed, verdict in verdicts.items() if verdict.found}


def failures(tests: Collection[str]) -> set[str]:
    """Those that fail with nothing planted."""
    runs = {
        test: subprocess.run([sys.executable, "-m", "pytest", *PYTEST, test], capture_output=True, check=False)
        for test in tests
    }
    return {test for test, run in runs.items() if run.returncode}


def _hunt(planted: Mutant, seeds_max: int, only: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "lab.simulation.mutants", "--hunt", planted.name, "--seeds", str(seeds_max)]
    try:
        run = subprocess.run(
            [*command, *(["--only", only] if only else [])],
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 0, f"not caught within {HANGS_S} s"
    if run.returncode == -signal.SIGXCPU:
        return 0, f"not caught within {CPU_MAX_S} s of CPU time"
    seeds, _, how = run.stdout.partition(" ")
    if not seeds.isdigit():
        return 0, f"could not be run: {run.stderr.strip().splitlines()[-1:]}"
    return int(seeds), how.rstrip() if only else how.splitlines()[0][:100]


if __name__ == "__main__":
    sys.exit(main())
