"""Whether a job on a cluster makes progress, or waits for executors, or is lost. Pure.

Spark waits for executors forever, without an error. A cluster that is slow to grant them is not dead: Kubernetes may take
minutes to add a node and pull an image, and a standalone cluster may be full. So a job waits while the cluster answers and
knows the application.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

WAIT_S = 600.0
"""How long a job waits for executors if no setting has another time."""
SILENT_S = 30.0
"""A master or an API server that has not answered for this long is lost, if no task runs."""
ASK_S = 8.0
"""Jobs ask the cluster after this time without progress. Waits for a starting executor, or another job, seldom take longer."""
LOOK_S = 1.0
REPORTED_S = 30.0
"""How often the log reports that a job waits."""
WHY_MAX = 120
"""Characters of what Kubernetes writes about a pod."""
STATES_MAX = 3
"""How many states of pods are named, the most frequent first."""

Verdict = Literal["works", "waits", "lost", "in vain"]
"""works: it progresses, as far as is known. in vain: it has waited for as long as the setting permits."""


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The tasks of one job. running: at this moment; ended: so far; left: not ended, as far as is known."""

    running: int
    ended: int
    left: int


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """What a master, an API server or a Connect server answers about the application.

    knows: None if it does not answer, or is not in charge. about: its executors, or why it does not know, for people; empty if
    nothing is known.
    """

    knows: bool | None
    about: str = ""


KNOWN, UNKNOWN = ClusterAnswer(True), ClusterAnswer(None)


def answer_of(answers: Iterable[ClusterAnswer]) -> ClusterAnswer:
    """The answer of several masters, one of which is in charge. Asks no more of them after one that knows the application."""
    found = UNKNOWN
    for each in answers:
        if each.knows:
            return each
        found = found if each.knows is None else each
    return found


@dataclass(slots=True)
class JobWatch:
    """The watch over one job, in the caller's seconds. moved_at: when it last progressed."""

    moved_at: float
    ended: int = 0

    def note(self, progress: TaskCounts | None, now: float) -> bool:
        """Returns whether a task has run since the last look.

        progress: None if nothing is known of the job, for example while Spark plans it.
        """
        has_run = progress is not None and (progress.running > 0 or progress.ended != self.ended)
        if has_run or progress is None or not progress.left:
            self.moved_at = now
        if progress is not None:
            self.ended = progress.ended
        return has_run


@dataclass(slots=True)
class Cluster:
    """What all jobs of one Spark know of its executors, in the caller's seconds.

    ran_at: when a task of any job was last seen to run, because jobs wait for each other.
    asked_at, known_at: when the cluster was last asked about the application, and when it last knew it.
    On a Connect server, jobs may also wait for those of other hosts, which this host does not see.
    """

    wait_s: float = WAIT_S
    ran_at: float = -inf
    asked_at: float = -inf
    known_at: float = -inf
    unanswered: tuple[float, ...] = ()
    """When the last two questions without an answer ended."""
    about: str = ""
    """What the cluster answered about executors."""
    refusal: str = ""
    """What it answered last, if it did not know the application."""

    def quiet_since(self, watch: JobWatch) -> float:
        """Since when neither this job nor any other has progressed."""
        return max(watch.moved_at, self.ran_at)

    def has_to_ask(self, watch: JobWatch, now: float) -> bool:
        """Whether it is time to ask the cluster, for the first time or again."""
        return now - max(self.quiet_since(watch), self.asked_at) >= ASK_S

    def note(self, answer: ClusterAnswer, now: float) -> None:
        if answer.knows:
            self.known_at, self.about, self.unanswered = now, answer.about, ()
        else:
            self.unanswered, self.refusal = (*self.unanswered[-1:], now), answer.about

    def judge(self, watch: JobWatch, now: float) -> Verdict:
        """It takes two questions without an answer to lose a cluster: a host that stood still has asked none meanwhile."""
        since = self.quiet_since(watch)
        is_silent = len([at for at in self.unanswered if at >= since]) == 2
        if is_silent and now - max(since, self.known_at) >= SILENT_S:
            return "lost"
        if self.known_at < since:  # a cluster that is lost must not end the wait as one that is full
            return "works"
        if now - since >= self.wait_s:
            return "in vain"
        return "waits" if now - since >= ASK_S else "works"


def about_workers(workers: int, cores: int) -> str:
    """cores: how many are free."""
    has = f"{workers} worker{'' if workers == 1 else 's'}" if workers else "no workers"
    return f"its master has {has}" + (f", and {cores} free core{'' if cores == 1 else 's'}" if workers else "")


def about_pods(pods: Sequence[tuple[str, str]]) -> str:
    """pods: the phase of each pod, and why the pod does not run."""
    if not pods:
        return "it has no pod for an executor"
    found = Counter(f"{phase}: {' '.join(why.split())[:WHY_MAX]}" if why else phase for phase, why in pods)
    return "its executors have " + ", ".join(
        f"{count} pod{'' if count == 1 else 's'} {state}" for state, count in found.most_common(STATES_MAX)
    )


def waits(place: str, about: str = "") -> str:
    """What a job waits for, and what to look at. about: what the cluster answers about its executors."""
    where, which = "pages of its master and workers", "workers may run another version of Spark than the master"
    others = ""
    if place.startswith("sc://"):
        where = "pages of its server, and of its master and workers"
        others = ". Jobs of other hosts may hold all cores of this server (share them: `spark.scheduler.mode`)"
    if place.startswith("k8s://"):
        where, which = "pods of its executors", "their image may be missing"
    return (
        f"no executor of the Spark cluster at '{place}' runs a task of this host{f' ({about})' if about else ''}: look at the"
        f" {where}. Cores or memory may be short there, {which}, or executors cannot reach the driver"
        f" (`spark.driver.host` and `spark.driver.port` in `spark.conf`){others}"
    )


def in_vain(place: str, wait_s: float, about: str = "") -> str:
    """Why a job is given up, and what to do."""
    return f"after {wait_s:g} s (`spark.executors_wait_s`), {waits(place, about)}"


def lost(place: str, refusal: str = "") -> str:
    """What is wrong, and what happens next."""
    what = "API server of Kubernetes" if place.startswith("k8s://") else "Spark master"
    return (
        f"no executor runs a task of this host, and the {what} at '{place}' has not answered for {SILENT_S:g} s"
        f"{f' ({refusal})' if refusal else ''}: the next batch starts another driver"
    )


def forgotten(place: str) -> str:
    """What is wrong, and what happens next."""
    return (
        f"the Spark master at '{place}' no longer knows this host's application, perhaps because it lost the connection to its"
        " driver: the next batch starts another"
    )
