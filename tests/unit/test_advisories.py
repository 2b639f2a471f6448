"""`make audit` never takes silence for good news."""

from pathlib import Path

import audit
import pytest

GOOD = {"name": "click", "version": "8.1", "vulns": []}
BAD = {"name": "jinja2", "version": "2.11.2", "vulns": [{"id": "PYSEC-2021-66", "fix_versions": ["2.11.3"]}]}
SKIPPED = {"name": "pyspark", "skip_reason": "Dependency not found on PyPI"}


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    file = tmp_path / "locked.txt"
    file.write_text("click==8.1\n    # via leasehold\njinja2==2.11.2 ; python_version > '3'\n")
    return file


def test_advisories_are_told_with_the_version_that_mends() -> None:
    assert list(audit.advisories({"dependencies": [GOOD, BAD]})) == ["jinja2 2.11.2: PYSEC-2021-66, mended in 2.11.3"]


def test_a_package_that_was_left_out_is_no_good_package() -> None:
    with pytest.raises(audit.NotTold, match="pyspark: Dependency not found"):
        list(audit.advisories({"dependencies": [GOOD, SKIPPED]}))


@pytest.mark.parametrize(
    ("against", "code", "said"),
    [
        ({"pypi": (["x"], [])}, 0, "audit: nothing known against the 2 packages of uv.lock, says pypi"),
        ({"pypi": (["x"], ["jinja2: bad"])}, 1, "audit: 1 known against the 2 packages"),
        ({"pypi": ([], [])}, 2, "pypi (PyPI's JSON API): it has nothing against jinja2==2.11.2"),
        ({"pypi": None, "osv": (["x"], [])}, 0, "says osv"),
        ({"pypi": None, "osv": None}, 2, "audit: NOTHING WAS CHECKED"),
    ],
)
def test_only_who_tells_of_what_is_known_to_be_bad_is_believed(
    locked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], against, code: int, said: str
) -> None:
    def bad(requirements: Path, service: str) -> list[str]:
        if against[service] is None:
            raise audit.NotTold("it does not answer")
        return list(against[service][requirements == locked])

    monkeypatch.setattr(audit, "bad", bad)
    assert audit.audited(locked, list(against)) == code
    assert said in capsys.readouterr().out
