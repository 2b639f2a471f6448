"""Builds wheels, sdists and the chart of Leasehold into dist/ and tries them as a user would: `make dist`.

A second build has the same bytes. The wheels are installed in empty environments outside of the tree, with the dependencies of
uv.lock and then with other releases (`RELEASES`): of PySpark, and the oldest of all that pyproject.toml permits. Each brings one
package, and nothing else at the top. In each environment the private parts are found, and the demo runs. Modules of users are
called as our folders, and another distribution installs one called `leases`. One environment gets the sdist instead, which makes
the same wheel. One gets `leasehold-processor[demo,emulators]` from an index on this machine, beside other SDKs of Azure, and
does what a stranger does (`.ci/stranger`). Where buildah is, as root, the image is built as far as it installs packages, and has
the files of the wheel. At last `pyspark-client` overwrites PySpark, which a command reports.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import containers
import helm_python

ROOT = Path(__file__).parents[1]
UV = str(Path(sys.executable).with_name("uv"))
PACKAGES = {"leasehold"}
EMULATORS = {"leasehold_emulators"}
NOT_OURS = ("leases", "pipeline", "service")
DEMO_S = 1800
IMAGE = "leasehold-dist"
IMAGE_S = 3600
LOWEST = ("lowest-direct",)
"""Of each package in pyproject.toml the oldest release that it permits, and of those that these need the newest."""
RELEASES: tuple[tuple[str, ...], ...] = ((), ("pyspark==4.1.*",), LOWEST)
"""What each environment has instead of the releases in uv.lock, which are the newest."""
ALONG = {"pyspark": {"pyspark", "py4j"}}
"""Packages of uv.lock that give way with one of RELEASES."""
EXTRAS = ("delta", "demo", "kafka", "nats", "otel", "pulsar")
"""Extras without pandas, which are installed with the oldest releases."""
BESIDE = ("azure-storage-file-datalake", "azure-servicebus", "azure-keyvault-secrets")
"""What else of Azure a stranger has installed."""
OF_USERS = {
    "leases.py": "STORE = 'state/leases.db'\n",
    "service.py": "def shown(event):\n    return 'seen: ' + event.json()['word']\n",
    "pipeline.py": """
from leasehold import FilesFeed, Pipeline, Processor, SqliteLeases
from leases import STORE
from service import shown

def on_changes(changes, context):
    for event in changes:
        print(shown(event), flush=True)

async def main():
    words = Pipeline("words", feed=FilesFeed(path="words-*.jsonl"), handler=on_changes)
    async with Processor(words, leases=SqliteLeases(path=STORE)) as processor:
        await processor.idle()

if __name__ == "__main__":
    import asyncio
    asyncio.run(main())
""",
    "words.yaml": """
leases: {path: state/leases.db}
api: {enabled: false}
pipelines:
  - name: words
    feed: {type: files, path: "words-*.jsonl"}
    sink: {type: python, handler: "pipeline:on_changes"}
""",
    "words-1.jsonl": '{"word": "apple"}\n',
}
"""What a user keeps in a folder: modules that are called as folders of this repository."""
OPTIONAL_PARTS = """
import leasehold.pipeline.connectors.files.delta.table
import leasehold.pipeline.connectors.kafka.cluster
import leasehold.pipeline.connectors.nats.connection
import leasehold.pipeline.connectors.pulsar.broker
import leasehold.service.telemetry.otlp
"""
PRIVATE_PARTS = "from leasehold.pipeline.connectors.eventhubs.amqp.sdk_internals import sdk; sdk()"

NO_PANDAS = "from importlib.util import find_spec; assert find_spec('pandas') is None, 'pandas is an extra'"


def run(*command: str, cwd: Path, timeout_s: float = 900) -> str:
    """What it prints. Raises SystemExit."""
    done = finish(*command, cwd=cwd, timeout_s=timeout_s)
    if done.returncode != 0:
        sys.exit(f"dist: {' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def finish(*command: str, cwd: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """In an environment of its own, so that nothing of ours is found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=timeout_s, check=False)


def built(folder: Path) -> tuple[Path, Path, Path]:
    """The wheel, the sdist, and the wheel of the emulators; the chart is beside them. All files have the commit's time."""
    shutil.rmtree(folder, ignore_errors=True)
    os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    run(UV, "build", "--quiet", "--all-packages", "--out-dir", str(folder), cwd=ROOT)
    chart = Path(helm_python.package(ROOT / "helm", destination=folder))
    chart.write_bytes(dated(chart.read_bytes(), int(os.environ["SOURCE_DATE_EPOCH"])))
    (wheel,), (sdist,) = folder.glob("leasehold_processor-*.whl"), folder.glob("leasehold_processor-*.tar.gz")
    (emulators,) = folder.glob("leasehold_emulators-*.whl")
    return wheel, sdist, emulators


def dated(archive: bytes, epoch: int) -> bytes:
    """The files of a .tgz with one time, which Helm has no setting for. Pure."""
    packed, packing = io.BytesIO(), io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=packing, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in old:
            content = old.extractfile(member)
            member.mtime, member.pax_headers = epoch, {}
            new.addfile(member, content)
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(packing.getvalue())
    return packed.getvalue()


def differing(one: Path, other: Path) -> list[str]:
    """The files of two folders that only one of them has, or that differ."""
    names = {path.name for folder in (one, other) for path in folder.iterdir()}
    return sorted(name for name in names if _bytes(one / name) != _bytes(other / name))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def modules_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if name.partition("/")[0] in PACKAGES}


def rebuilt(sdist: Path, folder: Path) -> Path:
    """The wheel that the sdist makes, where nothing of ours is."""
    run(UV, "build", "--quiet", "--wheel", "--out-dir", str(folder), str(sdist), cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def top_level(wheel: Path) -> set[str]:
    """The names that it installs, but for its own description."""
    with zipfile.ZipFile(wheel) as opened:
        names = {name.partition("/")[0] for name in opened.namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


def constraints(locked: str, releases: Collection[str]) -> str:
    """`locked`, the lines of a requirements file, with these releases instead. Pure."""
    gone = {name for release in releases for name in ALONG[release.partition("==")[0]]}
    kept = [line for line in locked.splitlines() if re.split(r"[=\[ ;]", line, maxsplit=1)[0] not in gone]
    return "\n".join([*kept, *releases, ""])


def install(folder: Path, releases: Collection[str], *needed: str) -> Path:
    """The Python of an environment that has nothing but what is needed, with these releases of it."""
    python, locked = folder / "environment/bin/python", folder / "locked.txt"
    if releases == LOWEST:
        what = (
            "--resolution",
            *LOWEST,
            *(f"--extra={name}" for name in EXTRAS),
            "--python",
            sys.executable,
            "--no-sources",
        )
        run(UV, "pip", "compile", "--quiet", *what, "pyproject.toml", "--output-file", str(locked), cwd=ROOT)
    else:
        what = ("--locked", "--all-extras", "--no-dev", "--no-hashes", "--no-emit-workspace")
        run(UV, "export", "--quiet", *what, "--output-file", str(locked), cwd=ROOT)
        locked.write_text(constraints(locked.read_text(), releases))
    run(UV, "venv", "--quiet", "--python", sys.executable, str(folder / "environment"), cwd=folder)
    run(UV, "pip", "install", "--quiet", "--python", str(python), "--constraint", str(locked), *needed, cwd=folder)
    run(UV, "pip", "check", "--python", str(python), cwd=folder)
    return python


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of an index on this machine that has the distributions in the folder."""
    command = (sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield re.findall(r"http://\S+/", server.stdout.readline())[0]
        finally:
            server.terminate()


def be_a_stranger(dist: Path, folder: Path) -> None:
    """From an index, beside other SDKs of Azure: the program of the README, and the demo. Raises SystemExit."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    with served(dist) as index:
        wanted = ("--find-links", index, f"leasehold-processor[demo,emulators]=={version}", *BESIDE)
        python = install(folder, (), *wanted)
    told = run(str(ROOT / ".ci/stranger"), str(python.parent), str(ROOT / "README.md"), cwd=folder, timeout_s=DEMO_S)
    sys.stdout.write(
        f"  from an index, beside {', '.join(BESIDE)}: the README's program, and {told.splitlines()[-1]}\n"
    )


def unlike(wheel: Path, site: Path) -> set[str]:
    """Files of the wheel that are not installed there as they are, and what else its distribution has installed."""
    with zipfile.ZipFile(wheel) as opened:
        files = {name: opened.read(name) for name in opened.namelist() if ".dist-info/" not in name}
    (record,) = site.glob("leasehold_processor-*.dist-info/RECORD")
    installed = {row[0] for row in csv.reader(record.read_text().splitlines())}
    others = {name for name in installed - files.keys() if ".dist-info/" not in name and not name.startswith("../")}
    return others | {
        name for name, content in files.items() if not (site / name).is_file() or (site / name).read_bytes() != content
    }


def try_image(wheel: Path) -> str:
    """That the image is made of what the wheel is, before it is slimmed and compiled. In words. Raises SystemExit."""
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        return "the image is not tried: install buildah, and run this as root"
    run("image/build", IMAGE, "environment", cwd=ROOT, timeout_s=IMAGE_S)
    with containers.opened(IMAGE) as image:
        (site,) = image.root.glob("opt/leasehold/lib/python3*/site-packages")
        if found := sorted(unlike(wheel, site)):
            sys.exit(f"dist: the image and {wheel.name} differ in {', '.join(found[:5])}")
        if found := sorted(each for each in NOT_OURS if (site / each).exists()):
            sys.exit(f"dist: the image has {', '.join(found)} at the top, which is a user's name")
    return f"the image has what {wheel.name} installs, and no more of ours"


def main() -> None:
    wheel, sdist, emulators = built(ROOT / "dist")
    with tempfile.TemporaryDirectory(prefix="leasehold-dist-") as directory:
        built(second := Path(directory) / "second")
        if found := differing(ROOT / "dist", second):
            sys.exit(
                f"dist: two builds of one commit differ in {', '.join(found)}: find out what writes a time or an order"
            )
    for each, packages in ((emulators, EMULATORS), (wheel, PACKAGES)):
        if (found := top_level(each)) != packages:
            sys.exit(f"dist: {each.name} installs {sorted(found)}, and is to install {sorted(packages)}")
    with tempfile.TemporaryDirectory(prefix="leasehold-dist-") as directory:
        if missing := modules_of(wheel) ^ modules_of(rebuilt(sdist, Path(directory))):
            sys.exit(f"dist: {sdist.name} and {wheel.name} differ in {sorted(missing)[:5]}")
    sys.stdout.write(
        f"dist/{wheel.name}: {', '.join(sorted(PACKAGES))}, and the same from {sdist.name} and a second build\n"
    )
    sys.stdout.write(f"  {try_image(wheel)}\n")
    with tempfile.TemporaryDirectory(prefix="leasehold-dist-") as directory:
        be_a_stranger(ROOT / "dist", Path(directory))
    for package, releases in zip((wheel, sdist, wheel), RELEASES, strict=True):
        with tempfile.TemporaryDirectory(prefix="leasehold-dist-") as directory:
            try_out(package, Path(directory), releases)
            if not releases:
                add_emulators(Path(directory), wheel, emulators)
            if releases == RELEASES[-1]:
                replace_pyspark(Path(directory))
        others = " and ".join(releases) or "the releases of uv.lock"
        sys.stdout.write(f"  {package.name} with {others}: the demo's balances match\n")


def try_out(package: Path, folder: Path, releases: Collection[str]) -> None:
    """Raises SystemExit."""
    extras = ",".join(EXTRAS) if releases == LOWEST else "demo"
    python = install(folder, releases, f"leasehold-processor[{extras}] @ {package.as_uri()}")
    if releases == LOWEST:
        run(str(python), "-c", OPTIONAL_PARTS, cwd=folder)
    place = run(str(python), "-c", "import leasehold; print(leasehold.__path__[0])", cwd=folder).strip()
    if not Path(place).is_relative_to(folder / "environment"):
        sys.exit(f"dist: `leasehold` is imported from {place}, not from what was installed")
    run(str(python), "-c", PRIVATE_PARTS, cwd=folder)
    run(str(python), "-c", NO_PANDAS, cwd=folder)
    use_names_of_ours(python, folder)
    told = json.loads(run(str(python.with_name("leasehold")), "demo", "--json", cwd=folder, timeout_s=DEMO_S))
    if not told["balances"] or told["lost"] or told["duplicated"]:
        sys.exit(f"dist: the demo's balances are wrong: {told}")


def use_names_of_ours(python: Path, folder: Path) -> None:
    """A script and a file of settings run beside modules called as our folders. Raises SystemExit."""
    place, others = folder / "words", folder / "others"
    place.mkdir()
    for name, text in OF_USERS.items():
        (place / name).write_text(text)
    (others / "leases").mkdir(parents=True)
    (others / "leases/__init__.py").write_text("")
    (others / "pyproject.toml").write_text('[project]\nname = "others-leases"\nversion = "1"\n')
    run(UV, "pip", "install", "--quiet", "--python", str(python), str(others), cwd=folder)
    if (shown := run(str(python), "pipeline.py", cwd=place)) != "seen: apple\n":
        sys.exit(f"dist: a script pipeline.py beside leases.py printed {shown!r}")
    with (place / "words-1.jsonl").open("a") as file:
        file.write('{"word": "banana"}\n')
    command = (str(python.with_name("leasehold")), "run", "--until-idle", str(place / "words.yaml"))
    if "seen: banana\n" not in (shown := run(*command, cwd=folder)):
        sys.exit(f"dist: `handler: pipeline:on_changes` beside the settings printed {shown!r}")
    run(UV, "pip", "check", "--python", str(python), cwd=folder)


def add_emulators(folder: Path, wheel: Path, emulators: Path) -> None:
    """`leasehold emulate` names the extra, which brings it. Raises SystemExit."""
    python, place = folder / "environment/bin/python", str(wheel.parent)
    command = (str(python.with_name("leasehold")), "emulate", "cosmos", "--help")
    done = finish(*command, cwd=folder, timeout_s=60)
    if done.returncode != 2 or "pip install 'leasehold-processor[emulators]'" not in done.stderr:
        sys.exit(f"dist: without {emulators.name}, `leasehold emulate` ended with {done.returncode}: {done.stderr}")
    run(
        UV,
        "pip",
        "install",
        "--quiet",
        "--python",
        str(python),
        "--find-links",
        place,
        "leasehold-processor[emulators]",
        cwd=folder,
    )
    if "--ranges" not in (shown := run(*command, cwd=folder)):
        sys.exit(f"dist: with {emulators.name}, `leasehold emulate cosmos --help` printed {shown!r}")
    sys.stdout.write("  with the extra `emulators`: `leasehold emulate` is there\n")


def replace_pyspark(folder: Path) -> None:
    """Raises SystemExit unless a command reports it."""
    python = folder / "environment/bin/python"
    run(UV, "pip", "install", "--quiet", "--python", str(python), "pyspark-client", cwd=folder)
    done = finish(str(python.with_name("leasehold")), "demo", cwd=folder, timeout_s=60)
    if done.returncode != 2 or "leasehold: pyspark-client has replaced" not in done.stderr:
        sys.exit(f"dist: with pyspark-client, the demo ended with {done.returncode}: {done.stdout}{done.stderr}")
    sys.stdout.write("  with pyspark-client: the command names it and ends\n")


if __name__ == "__main__":
    main()
