"""`make audit` never takes silence for good news."""

from pathlib import Path

import audit
import pytest

GOOD = {"name": "click", "version": "8.1", "vulns": []}
KNOWN = {"id": "PYSEC-2021-66", "aliases": ["CVE-2020-28493"], "fix_versions": ["2.11.3"]}
BAD = {"name": "jinja2", "version": "2.11.2", "vulns": [KNOWN]}
SKIPPED = {"name": "pyspark", "skip_reason": "Dependency not found on PyPI"}
LOCKED = (
    "click==8.1\n    # via leasehold\njinja2[x]==2.11.2 ; python_version > '3'\njinja2==3.1 ; python_version < '3'\n"
)
FOUND = audit.Advisory(names=frozenset({"PYSEC-2021-66", "CVE-2020-28493"}), text="jinja2: bad")


def test_advisories_are_told_with_the_version_that_mends() -> None:
    (found,) = audit.advisories({"dependencies": [GOOD, BAD]}, [("click", "8.1"), ("jinja2", "2.11.2")])
    assert found.text == "jinja2 2.11.2: PYSEC-2021-66, mended in 2.11.3"
    assert found.names == FOUND.names


def test_a_package_that_was_left_out_is_no_good_package() -> None:
    with pytest.raises(audit.NotTold, match="pyspark: Dependency not found"):
        list(audit.advisories({"dependencies": [GOOD, SKIPPED]}, []))
    with pytest.raises(audit.NotTold, match="jinja2: left out"):
        list(audit.advisories({"dependencies": [GOOD]}, [("click", "8.1"), ("jinja2", "2.11.2")]))


def test_each_version_of_a_package_is_asked_for_whatever_python_it_is_for() -> None:
    assert audit.rounds(LOCKED) == ["click==8.1\njinja2==2.11.2\n", "jinja2==3.1\n"]


def test_nothing_of_this_repository_is_asked_for() -> None:
    assert "--no-emit-workspace" in audit.LOCKED


@pytest.mark.parametrize(
    ("against", "code", "said"),
    [
        ({"pypi": ([FOUND], [])}, 0, "audit: nothing known against the 3 packages of uv.lock, says pypi"),
        ({"pypi": ([FOUND], [FOUND])}, 1, "audit: 2 known, 2 without an answer, against the 3 packages"),
        ({"pypi": ([], [])}, 2, "pypi (PyPI's JSON API): it has nothing against jinja2==2.11.2"),
        ({"pypi": None, "osv": ([FOUND], [])}, 0, "says osv"),
        ({"pypi": None, "osv": None}, 2, "audit: NOTHING WAS CHECKED"),
    ],
)
def test_only_who_tells_of_what_is_known_to_be_bad_is_believed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], against, code: int, said: str
) -> None:
    def bad(required: str, service: str) -> list[audit.Advisory]:
        if against[service] is None:
            raise audit.NotTold("it does not answer")
        return list(against[service][required != audit.KNOWN_TO_BE_BAD])

    monkeypatch.setattr(audit, "bad", bad)
    assert audit.audited(LOCKED, list(against), {}) == code
    assert said in capsys.readouterr().out


def test_an_answer_by_any_name_of_an_advisory_is_shown_and_enough(capsys: pytest.CaptureFixture[str]) -> None:
    answered = audit.answers("# why\nCVE-2020-28493 2026-11-30 no template is a user's\nOLD-1 2025-01-01 gone\n")
    assert audit.judged([FOUND], answered, "all") == 0
    assert capsys.readouterr().out.splitlines() == [
        "jinja2: bad; 2026-11-30 no template is a user's",
        "OLD-1: nobody reports it any more; take it out of tests/advisories.txt",
        "audit: 1 known, 0 without an answer, against all",
    ]


def test_each_answer_has_an_id_a_date_and_a_reason() -> None:
    for answer in audit.answers(Path(audit.ANSWERS).read_text()).values():
        date, _, reason = answer.partition(" ")
        assert date.count("-") == 2
        assert len(reason.split()) > 2
