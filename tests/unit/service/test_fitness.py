"""Whether a host can do its work, and what follows. Pure; hosts that fall ill are in test_host_gray."""

from __future__ import annotations

from dataclasses import replace

from leasehold.service.fitness import PROVED_FOR_S, REST, Facts, Peers, PipelineHealth, Proof

D = 7.0
WELL = Facts(now=1000.0, lasts_s=D, proof=Proof(proved_s=1.0))
ALL_FAIL = replace(WELL, fails_s=D + 1, failing=(D, D + 1), proof=Proof(proved_s=100.0))


def failing(*seconds: float) -> Facts:
    return replace(ALL_FAIL, fails_s=max(seconds, default=0.0), failing=seconds)


def test_a_host_all_whose_partitions_fail_for_a_duration_is_sick_and_one_that_fails_evicts_nobody() -> None:
    assert PipelineHealth().judged(ALL_FAIL, workers=2).state == "sick"
    assert PipelineHealth().judged(failing(D, 0.0), workers=2).state == "well"
    assert PipelineHealth().judged(failing(D - 1, D), workers=2).state == "well"
    assert PipelineHealth().judged(failing(), workers=0).state == "well"


def test_what_fails_during_an_outage_of_the_store_makes_nobody_sick() -> None:
    assert PipelineHealth().judged(replace(ALL_FAIL, trusted_s=D - 0.1), workers=2).state == "well"
    assert PipelineHealth().judged(replace(ALL_FAIL, trusted_s=D), workers=2).state == "sick"
    assert PipelineHealth().judged(replace(ALL_FAIL, failing=(D, 0.0)), workers=2).state == "well"


def test_a_suspicion_has_to_be_confirmed_by_a_probe() -> None:
    facts = replace(WELL, fails_s=D)
    assert facts.wants_probe
    assert PipelineHealth().judged(facts, workers=2).state == "well"
    assert PipelineHealth().judged(replace(facts, proof=Proof(probe_failed=True)), workers=2).state == "sick"


def test_a_host_that_cannot_read_the_leases_gets_no_others_and_keeps_its_own() -> None:
    facts = replace(WELL, reads_fail_s=D, peers=Peers(fit_s=D))
    blind = PipelineHealth().judged(facts, workers=2)
    assert (blind.state, blind.shown(facts)) == ("well", "b")
    assert blind.shown(replace(facts, trusted_s=D - 1)) == "-", "by an outage of the store nobody gets blind"


def test_a_sick_host_gives_its_leases_up_only_if_another_is_fit() -> None:
    sick = PipelineHealth(state="sick")
    assert sick.judged(ALL_FAIL, workers=2).state == "sick"
    assert sick.judged(replace(ALL_FAIL, peers=Peers(fit_s=D)), workers=2).state == "leaving"
    assert sick.judged(WELL, workers=2).state == "well"


def test_a_sick_host_keeps_its_leases_for_a_duration_after_another_is_fit_since_it_may_recover_as_well() -> None:
    sick, soon = PipelineHealth(state="sick"), replace(ALL_FAIL, peers=Peers(fit_s=D - 1))
    assert sick.judged(soon, workers=2).state == "sick"
    assert sick.judged(replace(soon, has_released=True), workers=2).state == "leaving", "its own handler fails"


def test_a_sick_host_whose_leases_others_have_asked_for_rests_like_one_that_gave_them_up() -> None:
    sick = PipelineHealth().judged(ALL_FAIL, workers=2)
    others = Peers(are_able=True)
    assert sick.judged(replace(WELL, failing=(), peers=others), workers=0).state == "renounced"


def test_a_sick_host_without_workers_does_not_rest_if_there_is_no_other() -> None:
    sick = PipelineHealth().judged(ALL_FAIL, workers=2)
    assert sick.judged(replace(ALL_FAIL, failing=()), workers=0).state == "sick"


def test_without_workers_because_all_failed_a_host_waits_for_another_that_is_fit() -> None:
    sick = PipelineHealth().judged(ALL_FAIL, workers=2)
    released = replace(ALL_FAIL, has_released=True)
    assert sick.judged(released, workers=0).state == "sick"
    assert sick.judged(replace(released, peers=Peers(fit_s=D)), workers=0).state == "renounced"


def test_a_sick_host_without_workers_is_well_only_after_a_proof_that_is_younger_than_its_sickness() -> None:
    sick = PipelineHealth().judged(ALL_FAIL, workers=2)
    nothing_fails = replace(WELL, now=ALL_FAIL.now + 5, has_released=True)

    def after_proof(proved_s: float, workers: int = 0) -> str:
        return sick.judged(replace(nothing_fails, proof=Proof(proved_s=proved_s)), workers=workers).state

    assert after_proof(6.0) == "sick", "that its last lease is gone shows nothing"
    assert after_proof(4.0) == "well", "it tries again"
    assert after_proof(6.0, workers=1) == "well"


def test_a_host_that_resumed_is_on_trial_until_it_delivers_or_has_tried_a_lease_for_two_durations() -> None:
    resumed = PipelineHealth(since=1000.0, rests=1)

    def is_on_trial(
        now: float, health: PipelineHealth = resumed, delivered: float = 999.0, requested: float = 999.0
    ) -> bool:
        return health.is_on_trial(now, D, delivered_at=delivered, requested_at=requested)

    assert is_on_trial(1900.0)
    assert is_on_trial(1003.0 + 2 * D - 1, requested=1003.0)
    assert not is_on_trial(1003.0 + 2 * D, requested=1003.0)
    assert not is_on_trial(1001.0, delivered=1000.5)
    assert not is_on_trial(1001.0, replace(resumed, rests=0))
    assert not is_on_trial(1001.0, replace(resumed, state="sick"))


def test_a_host_where_leases_failed_shows_that_it_is_fit_by_a_delivery_alone() -> None:
    probed = replace(WELL, peers=Peers(sick_s=2.0), has_released=True)
    assert PipelineHealth().shown(probed) == "-"
    assert PipelineHealth().shown(replace(probed, proof=Proof(delivered_s=3.0, proved_s=1.0))) == "-"
    assert PipelineHealth().shown(replace(probed, proof=Proof(delivered_s=1.0, proved_s=1.0))) == "f"


def test_a_host_renounces_once_nothing_of_it_works_any_more() -> None:
    leaving = PipelineHealth(state="leaving")
    assert leaving.judged(ALL_FAIL, workers=1) == leaving
    assert leaving.shown(ALL_FAIL) == "s"
    renounced = leaving.judged(ALL_FAIL, workers=0)
    assert (renounced.state, renounced.shown(ALL_FAIL), renounced.rests) == ("renounced", "r", 1)


def test_a_host_resumes_after_a_rest_and_a_probe_and_rests_longer_each_time() -> None:
    renounced = PipelineHealth(state="renounced", since=1000.0, rests=1)
    rested = replace(WELL, now=1000.0 + REST.first_s)
    assert renounced.judged(rested, workers=0).state == "well"
    assert renounced.judged(replace(rested, now=rested.now - 1), workers=0) == renounced
    assert renounced.judged(replace(rested, proof=Proof(proved_s=REST.first_s)), workers=0) == renounced, (
        "it was proved before"
    )
    again, longer = replace(renounced, rests=2), replace(rested, peers=Peers(are_able=True))
    assert again.judged(longer, workers=0) == again
    assert again.judged(replace(longer, now=1000.0 + 2 * REST.first_s), workers=0).state == "well"


def test_a_host_rests_no_longer_than_the_first_time_while_no_other_host_may_take_leases() -> None:
    renounced = PipelineHealth(state="renounced", since=1000.0, rests=6)
    rested = replace(WELL, now=1000.0 + REST.first_s)
    assert renounced.judged(rested, workers=0).state == "well"
    assert renounced.judged(replace(rested, now=rested.now - 1), workers=0) == renounced


def test_a_host_that_falls_sick_again_soon_after_it_resumed_rests_longer_still() -> None:
    resumed = PipelineHealth(since=1000.0, rests=1)
    soon = replace(ALL_FAIL, now=1000.0 + 2 * REST.first_s - 1)
    sick = resumed.judged(soon, workers=2)
    assert (sick.state, sick.rests) == ("sick", 1)
    assert replace(sick, state="leaving").judged(soon, workers=0).rests == 2
    assert resumed.judged(replace(WELL, now=1000.0 + 2 * REST.first_s), workers=2).rests == 0


def test_a_host_shows_that_it_is_fit_only_if_it_has_shown_it_since_another_is_sick() -> None:
    assert PipelineHealth().shown(WELL) == "-"
    assert PipelineHealth().shown(replace(WELL, peers=Peers(sick_s=2.0))) == "f"
    both_may_have_one_cause = replace(WELL, peers=Peers(sick_s=2.0), proof=Proof(proved_s=3.0))
    assert both_may_have_one_cause.wants_probe
    assert PipelineHealth().shown(both_may_have_one_cause) == "-"
    assert (
        PipelineHealth().shown(replace(WELL, peers=Peers(sick_s=900.0), proof=Proof(proved_s=PROVED_FOR_S + 1))) == "-"
    )
    assert PipelineHealth().shown(replace(WELL, peers=Peers(sick_s=2.0), fails_s=D)) == "-"
