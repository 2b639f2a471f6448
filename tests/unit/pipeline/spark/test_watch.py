"""Whether a job on a cluster works, waits for executors, or is given up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from leasehold.pipeline.spark.watch import (
    ASK_S,
    KNOWN,
    SILENT_S,
    UNKNOWN,
    WAIT_S,
    Cluster,
    ClusterAnswer,
    JobWatch,
    TaskCounts,
    about_pods,
    about_workers,
    answer_of,
    in_vain,
    lost,
    waits,
)

WAITS = TaskCounts(running=0, ended=0, left=2)
REMOVED = ClusterAnswer(knows=False)


def known_until(cluster: Cluster, now: float) -> Cluster:
    cluster.note(KNOWN, now)
    return cluster


def silent_at(cluster: Cluster, *times: float) -> Cluster:
    for now in times:
        cluster.note(UNKNOWN, now)
    return cluster


def test_a_job_waits_while_the_cluster_answers_and_knows_the_application() -> None:
    watch, cluster = JobWatch(moved_at=100), Cluster()
    watch.note(WAITS, 100 + WAIT_S)
    assert cluster.judge(watch, 100 + ASK_S) == "works"
    assert known_until(cluster, 100 + ASK_S).judge(watch, 100 + ASK_S) == "waits"
    for now in range(110, int(100 + WAIT_S), 20):
        assert known_until(cluster, now).judge(watch, now + 19) in ("waits", "in vain")
    assert cluster.judge(watch, 100 + WAIT_S - 1) == "waits"


def test_a_job_that_has_waited_for_as_long_as_the_setting_permits_is_given_up() -> None:
    watch, cluster = JobWatch(moved_at=100), Cluster(wait_s=60)
    assert known_until(cluster, 159).judge(watch, 159) == "waits"
    assert cluster.judge(watch, 160) == "in vain"


def test_a_cluster_that_does_not_answer_is_lost_and_no_setting_delays_that() -> None:
    watch, cluster = JobWatch(moved_at=100), silent_at(Cluster(wait_s=86_400), 110, 120)
    assert cluster.judge(watch, 100 + SILENT_S - 1) == "works"
    assert cluster.judge(watch, 100 + SILENT_S) == "lost"
    silent_at(known_until(cluster, 200), 210, 220)
    assert cluster.judge(watch, 200 + SILENT_S - 1) == "waits"
    assert cluster.judge(watch, 200 + SILENT_S) == "lost"


def test_a_cluster_is_lost_by_two_questions_and_never_by_time_alone() -> None:
    """A host that stood still has asked nothing meanwhile."""
    watch, cluster = JobWatch(moved_at=0), silent_at(Cluster(), -20, -10)
    assert cluster.judge(watch, 2 * SILENT_S) == "works"
    assert silent_at(cluster, 2 * SILENT_S).judge(watch, 2 * SILENT_S) == "works"
    assert silent_at(cluster, 2 * SILENT_S + ASK_S).judge(watch, 2 * SILENT_S + ASK_S) == "lost"


def test_a_cluster_that_is_away_is_lost_though_a_wait_ends_sooner() -> None:
    """Each job would end in vain, and no silence would be long enough."""
    watch, cluster = JobWatch(moved_at=100), known_until(Cluster(wait_s=20), 99)
    assert silent_at(cluster, 108, 116).judge(watch, 125) == "works"
    assert cluster.judge(watch, 100 + SILENT_S) == "lost"


def test_an_answer_of_an_earlier_wait_says_nothing_of_this_one() -> None:
    watch, cluster = JobWatch(moved_at=0), Cluster()
    cluster.note(KNOWN, 50)
    watch.note(TaskCounts(running=1, ended=0, left=2), 60)
    assert cluster.judge(watch, 60 + ASK_S) == "works"


@pytest.mark.parametrize("standing", [UNKNOWN, REMOVED])
def test_an_answer_that_does_not_know_the_application_is_no_reason_to_wait(standing: ClusterAnswer) -> None:
    watch, cluster = JobWatch(moved_at=0), Cluster()
    cluster.note(standing, ASK_S)
    assert cluster.judge(watch, ASK_S) == "works"


def test_a_job_moves_while_a_task_runs_or_one_more_has_ended() -> None:
    watch, cluster = JobWatch(moved_at=0), known_until(Cluster(), 20)
    watch.note(TaskCounts(running=1, ended=0, left=2), 20)
    assert cluster.judge(watch, 20 + ASK_S - 1) == "works"
    watch.note(TaskCounts(running=0, ended=1, left=1), 40)
    watch.note(TaskCounts(running=0, ended=1, left=1), 60)
    known_until(cluster, 40 + ASK_S)
    assert cluster.judge(watch, 40 + ASK_S - 1) == "works"
    assert cluster.judge(watch, 40 + ASK_S) == "waits"


def test_a_job_of_which_nothing_is_known_or_nothing_left_does_not_wait() -> None:
    watch, cluster = JobWatch(moved_at=0), Cluster()
    watch.note(None, 100)
    assert cluster.judge(watch, 100) == "works"
    for now in (200, 200 + SILENT_S):
        known_until(cluster, now)
        watch.note(TaskCounts(running=0, ended=2, left=0), now)
        assert cluster.judge(watch, now) == "works"


def test_a_job_that_waits_for_others_of_its_host_does_not_wait_for_executors() -> None:
    watch, cluster = JobWatch(0.0), Cluster()
    watch.note(WAITS, SILENT_S)
    cluster.ran_at = SILENT_S - 1
    silent_at(cluster, SILENT_S, 2 * SILENT_S - 2)
    assert cluster.judge(watch, SILENT_S) == "works"
    assert cluster.judge(watch, 2 * SILENT_S - 1) == "lost"


def test_the_cluster_is_asked_each_time_that_a_job_has_waited_for_a_while() -> None:
    watch, cluster = JobWatch(moved_at=100), Cluster()
    assert not cluster.has_to_ask(watch, 100 + ASK_S - 1)
    assert cluster.has_to_ask(watch, 100 + ASK_S)
    cluster.asked_at = 100 + ASK_S
    assert not cluster.has_to_ask(watch, 100 + 2 * ASK_S - 1)
    assert cluster.has_to_ask(watch, 100 + 2 * ASK_S)
    cluster.ran_at = 110
    assert not cluster.has_to_ask(watch, 100 + 2 * ASK_S)
    assert 3 * ASK_S < SILENT_S


@pytest.mark.parametrize(
    ("answers", "knows"),
    [
        ([], None),
        ([UNKNOWN, UNKNOWN], None),
        ([UNKNOWN, REMOVED], False),
        ([REMOVED, KNOWN], True),
        ([KNOWN, REMOVED], True),
        ([UNKNOWN, KNOWN], True),
    ],
)
def test_of_several_masters_the_one_in_charge_answers(answers: Sequence[ClusterAnswer], knows: bool | None) -> None:
    assert answer_of(answers).knows is knows


def test_what_a_job_waits_for_is_looked_into_where_its_cluster_shows_it() -> None:
    assert "look at the pods of its executors. Cores" in waits("k8s://https://a")
    assert "look at the pages of its master and workers. Cores" in waits("spark://a:7077")
    assert "runs a task of this host (its master has no workers): look" in waits("spark://a:7077", about_workers(0, 0))
    assert "API server of Kubernetes at 'k8s://https://a' has not answered" in lost("k8s://https://a")
    assert "Spark master at 'spark://a:7077' has not answered" in lost("spark://a:7077")


def test_a_cluster_is_lost_with_its_last_refusal() -> None:
    cluster = known_until(Cluster(), 0)
    cluster.note(ClusterAnswer(None, "the API server answers with status 503"), 10)
    assert (cluster.unanswered, cluster.about) == ((10,), "")
    assert "answered for 30 s (the API server answers with status 503): the" in lost("k8s://https://a", cluster.refusal)
    assert silent_at(cluster, 20).refusal == ""


def test_other_hosts_of_a_connect_server_may_hold_its_cores() -> None:
    assert "Jobs of other hosts may hold all cores of this server (share them: `spark.scheduler.mode`)" in waits(
        "sc://a"
    )
    assert "other hosts" not in waits("spark://a:7077")


def test_a_wait_in_vain_names_the_setting() -> None:
    assert in_vain("spark://a:7077", 600.0).startswith(
        "after 600 s (`spark.executors_wait_s`), no executor of the Spark"
    )


@pytest.mark.parametrize(
    ("workers", "cores", "about"),
    [
        (0, 0, "its master has no workers"),
        (1, 1, "its master has 1 worker, and 1 free core"),
        (2, 0, "its master has 2 workers, and 0 free cores"),
    ],
)
def test_a_master_shows_what_it_could_grant(workers: int, cores: int, about: str) -> None:
    assert about_workers(workers, cores) == about


def test_pods_are_counted_by_what_keeps_them_from_running() -> None:
    assert about_pods([]) == "it has no pod for an executor"
    pods = [("Pending", "ImagePullBackOff"), ("Pending", "0/3 nodes are\navailable"), ("Pending", "ImagePullBackOff")]
    assert (
        about_pods(pods)
        == "its executors have 2 pods Pending: ImagePullBackOff, 1 pod Pending: 0/3 nodes are available"
    )
    assert about_pods([("Running", "")]) == "its executors have 1 pod Running"
    assert len(about_pods([(str(n), "x" * 1000) for n in range(50)])) < 500
