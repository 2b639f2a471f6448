"""`.github`: workflows call targets and scripts that exist, with few rights and bounded time, and forms are complete."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTIONS = sorted((GITHUB / "actions").glob("*/action.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
USES = re.compile(r"^\s*(?:- )?uses: (.*)$", re.MULTILINE)
PINNED = re.compile(r"(?P<action>[\w.-]+/[\w./-]+)@(?P<commit>[0-9a-f]{40}) # v\d+\.\d+\.\d+")
MORE = {
    "codeql.yml: analyze": {"contents": "read", "security-events": "write"},
    "release.yml: pypi": {"id-token": "write"},
    "release.yml: pypi-emulators": {"id-token": "write"},
    "release.yml: image": {"contents": "read", "packages": "write"},
    "release.yml: sign": {"id-token": "write", "packages": "write"},
    "release.yml: chart": {"id-token": "write", "packages": "write"},
    "release.yml: docs": {"contents": "write"},
}
"""Jobs that may do more than read the repository."""
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def load(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return {"on" if key is True else key: value for key, value in found.items()}  # YAML 1.1 reads `on` as true


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in load(path)["jobs"].items():
            yield f"{path.name}: {name}", job


def steps() -> Iterator[dict[str, Any]]:
    for _, job in jobs():
        yield from job["steps"]
    for path in ACTIONS:
        yield from load(path)["runs"]["steps"]


def values_of(job: dict[str, Any]) -> dict[str, list[str]]:
    """The values of a job's matrix, by name."""
    found: dict[str, list[str]] = job.get("strategy", {}).get("matrix", {})
    return found


def commands() -> Iterator[str]:
    """Every command, once for each value of its job's matrix."""
    for _, job in jobs():
        for step in job["steps"]:
            run = step.get("run", "")
            filled = [run]
            for name, values in values_of(job).items():
                filled = [text.replace(f"${{{{ matrix.{name} }}}}", value) for text in filled for value in values]
            yield from filled


def targets() -> set[str]:
    made = [words for run in commands() for words in re.findall(r"^(?:sudo \S+ )?make ([a-z -]+)", run, re.MULTILINE)]
    return {name for words in made for name in words.split()}


def test_each_target_that_a_workflow_makes_is_one_of_the_makefile() -> None:
    assert {"check", "test", "connectors", "matrix", "docs", "image", "everything"} <= targets()
    assert targets() - TARGETS == set()


def test_each_script_that_a_workflow_names_can_be_run() -> None:
    texts = [path.read_text() for path in (*WORKFLOWS, *ACTIONS)]
    named = {name for text in texts for name in re.findall(r"(?<![\w/.])\.ci/\w+", text)}
    assert {".ci/run", ".ci/matrix", ".ci/setup"} <= named
    assert [name for name in sorted(named) if not os.access(ROOT / name, os.X_OK)] == []


def test_each_action_is_pinned_by_commit_with_its_version_or_lies_here() -> None:
    used = {name for path in (*WORKFLOWS, *ACTIONS) for name in USES.findall(path.read_text())}
    assert {name.partition(" ")[0] for name in used} == {step["uses"] for step in steps() if "uses" in step}
    assert len(used) > 10
    assert [
        name for name in sorted(used) if not (PINNED.fullmatch(name) or (ROOT / name / "action.yml").is_file())
    ] == []


def test_each_action_has_one_version_everywhere() -> None:
    texts = "".join(path.read_text() for path in (*WORKFLOWS, *ACTIONS))
    found = {(each["action"], each["commit"]) for each in PINNED.finditer(texts)}
    assert len(dict(found)) == len(found) > 10


def test_a_job_that_may_do_more_than_read_is_known() -> None:
    assert {name: job["permissions"] for name, job in jobs() if "permissions" in job} == MORE


def test_what_a_release_publishes_is_approved_by_a_person_and_uses_no_cache() -> None:
    release = load(GITHUB / "workflows" / "release.yml")["jobs"]
    assert {name for name, job in release.items() if "environment" not in job} == {"build"}
    prepared = [
        step for job in release.values() for step in job["steps"] if step.get("uses") == "./.github/actions/prepare"
    ]
    assert {step["with"]["cache"] for step in prepared} == {"false"}


def test_a_release_tries_what_it_publishes_and_that_its_tag_is_right() -> None:
    runs = [step.get("run", "") for step in load(GITHUB / "workflows" / "release.yml")["jobs"]["build"]["steps"]]
    made = [run.split()[1] for run in runs if run.startswith("make ")]
    assert made == ["tagged", "dist"]


def test_the_image_is_tried_with_all_tools_each_week_and_where_its_build_changes() -> None:
    workflow = load(GITHUB / "workflows" / "image.yml")
    assert {"pull_request", "schedule"} < workflow["on"].keys()
    paths = [path.removesuffix("/**") for path in workflow["on"]["pull_request"]["paths"]]
    assert {"Dockerfile", "image", "pyproject.toml", "uv.lock"} < set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    (installed,) = re.findall(
        r"apt-get install .*", "\n".join(step.get("run", "") for step in workflow["jobs"]["image"]["steps"])
    )
    assert {"buildah", "debootstrap", "haproxy"} < set(installed.split())


def test_the_files_of_an_image_have_the_time_of_the_commit() -> None:
    steps = load(GITHUB / "workflows" / "release.yml")["jobs"]["image"]["steps"]
    (pushed,) = [step["with"] for step in steps if step.get("id") == "push"]
    assert any("SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)" in step.get("run", "") for step in steps)
    assert "rewrite-timestamp=true" in pushed["outputs"].split(",")


def test_an_image_is_run_after_it_is_pushed_and_before_anything_names_it() -> None:
    steps = load(GITHUB / "workflows" / "release.yml")["jobs"]["image"]["steps"]
    (pushed,) = [number for number, step in enumerate(steps) if step.get("id") == "push"]
    tried, noted, kept = steps[pushed + 1 : pushed + 4]
    assert tried["run"].startswith('image/try "$NAME@$DIGEST"')
    assert tried["env"]["DIGEST"] == noted["env"]["DIGEST"] == "${{ steps.push.outputs.digest }}"
    assert kept["with"]["name"].startswith("digest-")
    assert os.access(ROOT / "image" / "try", os.X_OK)


def test_each_package_has_an_environment_of_its_own_and_is_uploaded_after_the_images() -> None:
    """PyPI permits one pending publisher for each environment."""
    release = load(GITHUB / "workflows" / "release.yml")["jobs"]
    kept = {
        name: step["with"]["path"] for step in release["build"]["steps"] if (name := step.get("with", {}).get("name"))
    }
    uploads = [(release[name]["environment"]["name"], release[name]) for name in ("pypi-emulators", "pypi")]
    assert [name for name, _ in uploads] == ["pypi-emulators", "pypi"]
    packages = [job["steps"][0]["with"]["name"] for _, job in uploads]
    assert packages == ["leasehold-emulators", "leasehold-processor"]
    assert [kept[name] for name in packages] == ["dist/leasehold_emulators-*", "dist/leasehold_processor-*"]
    assert [job["needs"] for _, job in uploads] == ["image", "pypi-emulators"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_runs_once_at_a_time(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    assert workflow["on"]


def test_each_job_ends_in_bounded_time() -> None:
    assert [name for name, job in jobs() if not 0 < job.get("timeout-minutes", 0) <= 350] == []


def test_the_tests_run_on_every_supported_python_and_on_debian() -> None:
    found = dict(jobs())
    assert values_of(found["ci.yml: test"])["python"] == PYTHONS
    assert found["ci.yml: debian"]["container"].startswith("debian:")
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert classifiers == PYTHONS


def test_each_pull_request_is_tried_with_every_supported_pyspark() -> None:
    assert "pull_request" in load(GITHUB / "workflows" / "ci.yml")["on"]
    assert {"run": "make dist"} in dict(jobs())["ci.yml: dist"]["steps"]
    tried = (ROOT / "tests" / "dist.py").read_text()
    assert {"pyspark==4.1.*"} <= set(re.findall(r'"(pyspark==[^"]+)"', tried))
    assert "LOWEST)" in tried  # 4.0


def test_advisories_are_asked_for_each_day() -> None:
    workflow = load(GITHUB / "workflows" / "dependencies.yml")
    assert [each["cron"].split()[2:] for each in workflow["on"]["schedule"]] == [["*", "*", "*"]]
    assert {"run": "make audit"} in workflow["jobs"]["audit"]["steps"]


def test_dependabot_looks_where_there_is_something_to_look_at() -> None:
    updates = {each["package-ecosystem"]: each for each in load(GITHUB / "dependabot.yml")["updates"]}
    files = {"uv": "uv.lock", "npm": "package.json", "github-actions": ""}
    assert updates.keys() == files.keys()
    for system, file in files.items():
        folders = updates[system].get("directories") or [updates[system]["directory"]]
        assert [name for name in folders if not (ROOT / name.lstrip("/") / file).exists()] == []
    folders = {str(path.parent.relative_to(ROOT)) for path in ACTIONS}
    assert folders <= {name.lstrip("/") for name in updates["github-actions"]["directories"]}


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_asks_for_something_and_each_answer_has_its_own_id(name: str) -> None:
    form = load(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert form["name"]
    assert form["description"]
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 2
    assert any(part.get("validations", {}).get("required") for part in form["body"])
    assert all(part["attributes"].get("label") or part["type"] == "markdown" for part in form["body"])
