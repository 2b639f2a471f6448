"""When a job on a cluster is given up."""

from __future__ import annotations

from leasehold.pipeline.spark.watch import ASK_S, STILL_S, Progress, Watch, still

WAITS = Progress(running=0, ended=0, left=2)


def test_a_job_of_which_no_task_runs_is_given_up() -> None:
    watch = Watch(moved_at=100)
    watch.note(WAITS, 101)
    assert not watch.is_still(100 + STILL_S - 1)
    watch.note(WAITS, 100 + STILL_S)
    assert watch.is_still(100 + STILL_S)


def test_a_job_moves_while_a_task_runs_or_one_more_has_ended() -> None:
    watch = Watch(moved_at=0)
    watch.note(Progress(running=1, ended=0, left=2), 20)
    assert not watch.is_still(20 + STILL_S - 1)
    watch.note(Progress(running=0, ended=1, left=1), 40)
    assert not watch.is_still(40 + STILL_S - 1)
    watch.note(Progress(running=0, ended=1, left=1), 60)
    assert watch.is_still(40 + STILL_S)


def test_a_job_of_which_nothing_is_known_or_nothing_left_is_not_given_up() -> None:
    watch = Watch(moved_at=0)
    watch.note(None, 100)
    assert not watch.is_still(100)
    for now in (200, 200 + STILL_S):
        watch.note(Progress(running=0, ended=2, left=0), now)
        assert not watch.is_still(now)


def test_what_is_still_is_looked_into_where_its_cluster_shows_it() -> None:
    assert "look at the pods of its executors. Cores" in still("k8s://https://a")
    assert "look at the pages of its master and workers. Cores" in still("spark://a:7077")


def test_other_hosts_of_a_connect_server_may_hold_its_cores() -> None:
    assert "Jobs of other hosts may hold all cores of this server (share them: `spark.scheduler.mode`)" in still(
        "sc://a"
    )
    assert "other hosts" not in still("spark://a:7077")


def test_a_master_is_asked_each_time_that_a_job_has_waited_for_a_while() -> None:
    watch = Watch(moved_at=100)
    assert not watch.has_to_ask(100 + ASK_S - 1)
    assert watch.has_to_ask(100 + ASK_S)
    assert not watch.has_to_ask(100 + ASK_S, ran_at=101)
    watch.asked_at = 100 + ASK_S
    assert not watch.has_to_ask(100 + 2 * ASK_S - 1)
    assert watch.has_to_ask(100 + 2 * ASK_S)
    assert 2 * ASK_S < STILL_S


def test_a_job_that_waits_for_others_does_not_stand_still() -> None:
    watch = Watch(0.0)
    watch.note(Progress(running=0, ended=0, left=8), STILL_S)
    assert watch.is_still(STILL_S)
    assert not watch.is_still(STILL_S, ran_at=STILL_S - 1)
    assert watch.is_still(2 * STILL_S, ran_at=STILL_S)
