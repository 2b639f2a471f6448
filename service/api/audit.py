"""The log of what operators did: one line for each action, even if it was refused, and a count.

The log contains the name of the token, never the token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from structlog.typing import FilteringBoundLogger as Log

from leasehold.leases.lease import Lease
from leasehold.service.api.auth import Caller
from leasehold.service.stats import Action, ActionOutcome, Stats

TEXT_CHARACTERS_MAX = 200

_ACTIONS: Mapping[tuple[str, str], Action] = {
    ("POST", r"/api/leases/([^/]+)/([\s\S]+)/release"): "release",
    ("POST", r"/api/leases/([^/]+)/([\s\S]+)/handoff"): "handoff",
    ("PUT", r"/api/leases/([^/]+)/([\s\S]+)/continuation"): "reset",
    ("POST", r"/api/leases/([^/]+)/([\s\S]+)/close"): "close",
    ("POST", r"/api/pipelines/([^/]+)()/pause"): "pause",
    ("POST", r"/api/pipelines/([^/]+)()/resume"): "resume",
    ("POST", r"/api/leases()()/import"): "import",
    ("GET", r"/api/leases()()/export"): "export",
    ("GET", r"/api/tap/([^/]+)/([\s\S]+)"): "tap",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """An operator's request and its result. before, after: facts of a lease or an order. is_change: whether anything was done."""

    action: Action
    pipeline: str = ""
    partition: str = ""
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    is_change: bool = True


def operator_action_of(method: str, path: str) -> OperatorAction | None:
    """The action that a request is; None if it is not an operator's."""
    for (verb, pattern), action in _ACTIONS.items():
        if verb == method and (found := re.fullmatch(pattern, path)):
            return OperatorAction(action=action, pipeline=found[1], partition=found[2])
    return None


def lease_facts(lease: Lease) -> dict[str, object]:
    """The fields of a lease that actions change."""
    return {
        "owner": lease.owner,
        "handoff_to": lease.handoff_to,
        "epoch": lease.epoch,
        "generation": lease.generation,
        "continuation": lease.continuation and _cut(lease.continuation),
        **({"closed": True} if lease.closed else {}),
    }


def outcome_of(status: int, *, is_change: bool) -> ActionOutcome:
    """done; unchanged; denied: the caller lacks permission; refused: any other fault of the request; failed: the host's fault."""
    if status < 300:
        return "done" if is_change else "unchanged"
    if status in (401, 403):
        return "denied"
    return "refused" if status < 500 else "failed"


class AuditLog:
    """Records actions in the log, and in the stats of this host."""

    def __init__(self, log: Log, stats: Stats) -> None:
        self._log = log
        self._stats = stats

    def note(self, action: OperatorAction, *, caller: Caller | None, client: str, status: int, why: str = "") -> None:
        outcome = outcome_of(status, is_change=action.is_change)
        self._stats.record_action(action.action, outcome)
        cut = replace(action, pipeline=_cut(action.pipeline), partition=_cut(action.partition))
        fields = {"pipeline": cut.pipeline, "partition": cut.partition, "before": cut.before, "after": cut.after}
        level = self._log.info if status < 300 else self._log.warning
        level(
            "operator action",
            action=action.action,
            outcome=outcome,
            status=status,
            who=caller.name if caller else "unknown",
            client=client,
            **{name: value for name, value in fields.items() if value},
            **({"why": _cut(why)} if why else {}),
        )


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
