"""Containers of the built image, without a daemon: run as Kubernetes runs them, as the image's user or another one.

Their root is read-only, with memory for what is written. They have processes, mounts and a host name of their own. They share the
machine's network, unless they are given one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psutil

ROOT = Path(__file__).parents[1]
NAME = os.environ.get("IMAGE", "leasehold")
THIN = f"{NAME}-thin"
EMULATORS = f"{NAME}-emulators"
TOKEN = "0123456789abcdef" * 2
"""Of readers: in the file `readers` beside the settings."""
SETTINGS = "etc/leasehold"
STATE = "var/lib/leasehold"
WRITABLE = ("tmp", "dev/shm", STATE)
LISTEN = "0A"
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
"""127.0.0.1, the same as an address of IPv6, and ::1, as the kernel writes them."""
HOSTS = ("pod-1", "pod-2", "pod-3", "pod-4")
INSIDE = """
set -eu
mount --bind {root} {root}
mount -o remount,bind,ro {root}
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
{mounts}
hostname {host}
exec env --ignore-environment {environment} /usr/bin/unshare --root={root} --wd={folder} --setuid={user} --setgid={group} \
  {command}
"""
UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation=private", "sh", "-c")


def buildah(*arguments: str) -> str:
    ran = subprocess.run(["buildah", *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@dataclass(frozen=True)
class Image:
    """root: where its files are. container: buildah's name of them. config: what the Dockerfile says of how it is run."""

    root: Path
    config: dict[str, Any]
    container: str

    @property
    def user(self) -> str:
        return str(self.config["User"])

    def give(self, folder: Path) -> None:
        """To its user, as a volume is."""
        os.chown(folder, *map(int, self.user.split(":")))

    def size_bytes(self) -> int:
        used = subprocess.run(["du", "-sxb", self.root], capture_output=True, text=True, timeout=120, check=True).stdout
        return int(used.split()[0])

    def command(
        self,
        settings: Path,
        *arguments: str,
        host: str = HOSTS[0],
        state: Path | None = None,
        user: str | None = None,
        **environment: str,
    ) -> list[str]:
        """state: a directory to keep what is written to the host's own; memory, if not given. user: user and group, if not the
        image's own."""
        user = user or self.user
        given = [*self.config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        script = INSIDE.format(
            root=self.root,
            mounts="\n".join(self._mounts(settings, state)),
            host=host,
            environment=shlex.join(given),
            folder=self.config["WorkingDir"] or "/",
            user=user.partition(":")[0],
            group=user.partition(":")[2],
            command=shlex.join(arguments or (*self.config["Entrypoint"], *self.config["Cmd"])),
        )
        return [*UNSHARE, script]

    def _mounts(self, settings: Path, state: Path | None) -> Iterator[str]:
        given = {SETTINGS: settings, **({STATE: state} if state else {})}
        for folder in WRITABLE:
            if folder not in given:
                yield f"mount -t tmpfs -o mode=1777,size=2g tmpfs {self.root}/{folder}"
        for folder, source in given.items():
            yield shlex.join(["mount", "--bind", str(source), f"{self.root}/{folder}"])


def noted(line: str) -> None:
    """For people: `make image` and `make pods` show it."""
    with (ROOT / "build/image.txt").open("a") as notes:
        notes.write(line + "\n")


@contextmanager
def opened(name: str = NAME) -> Iterator[Image]:
    """Its files are there meanwhile. As root."""
    told = json.loads(buildah("inspect", "--type", "image", name))
    container = buildah("from", "--pull-never", name)
    try:
        root = Path(buildah("mount", container))
        (root / SETTINGS).mkdir(exist_ok=True)  # as whoever mounts the settings does
        names = " ".join(HOSTS)
        (root / "etc/hosts").write_text(
            f"127.0.0.1 localhost {names}\n"
        )  # as Kubernetes does: a pod knows its own name
        yield Image(root, told["Docker"]["config"], container)
    finally:
        buildah("rm", container)


@dataclass(frozen=True, slots=True)
class Network:
    """Of one pod and its sidecars. machine: where the pod finds this machine."""

    name: str
    pod: str = "169.254.77.2"
    machine: str = "169.254.77.1"

    def command(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]


@contextmanager
def network() -> Iterator[Network]:
    """As root."""
    made = Network(f"leasehold-{os.getpid()}")
    outside = f"lh-{os.getpid()}"
    _ip("netns", "add", made.name)
    try:
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", made.name)
        _ip("address", "add", f"{made.machine}/30", "dev", outside)
        _ip("-netns", made.name, "address", "add", f"{made.pod}/30", "dev", "eth0")
        _ip("link", "set", outside, "up")
        for device in ("lo", "eth0"):
            _ip("-netns", made.name, "link", "set", device, "up")
        yield made
    finally:
        _ip("netns", "delete", made.name)


def _ip(*arguments: str) -> None:
    ran = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def send(container: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to process 1 of a container."""
    for process in psutil.Process(container.pid).children():
        process.send_signal(number)


def end(container: subprocess.Popen[bytes]) -> None:
    """End a container with all its processes. Killing only `unshare` would leave them, because they have changed their user."""
    if container.poll() is None:
        with suppress(psutil.NoSuchProcess):
            send(container, signal.SIGKILL)
        container.kill()
    container.wait(20)


class Pod:
    """A host in a container. output: a file for what it says."""

    def __init__(
        self,
        image: Image,
        settings: Path,
        *,
        port: int,
        output: Path,
        host: str = HOSTS[0],
        state: Path | None = None,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        network: Network | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._output = output
        self._image = image
        command = image.command(settings, host=host, state=state, user=user, POD_NAME=host, **(environment or {}))
        self.started = time.monotonic()
        with output.open("wb") as file:
            self.process = subprocess.Popen(network.command(*command) if network else command, stdout=file, stderr=file)

    @property
    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def asked(self, path: str) -> tuple[int, str]:
        """Status and text; 0 where nobody answers."""
        request = Request(f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        try:
            with urlopen(request, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, ""
        except (URLError, OSError):
            return 0, ""

    def items(self, path: str) -> list[dict[str, Any]]:
        """Of a listing; none where it does not answer."""
        status, text = self.asked(path)
        return list(json.loads(text)["items"]) if status == 200 else []

    def until(
        self, path: str, within_s: float, holds: Callable[[str], bool] = lambda text: True, every_s: float = 0.01
    ) -> float:
        """Seconds from its start until the path was answered as wanted. Raises AssertionError."""
        while True:
            status, text = self.asked(path)
            if status == 200 and holds(text):
                return time.monotonic() - self.started
            assert self.process.poll() is None, f"{self.host} has ended: {self.said}"
            assert time.monotonic() - self.started < within_s, (
                f"{self.host}, {path}: not within {within_s} s: {self.said}"
            )
            threading.Event().wait(every_s)

    def memory_bytes(self) -> int:
        """Resident, of all its processes: also the pages of files that pods on one machine share."""
        return sum(each.memory_info().rss for each in psutil.Process(self.process.pid).children(recursive=True))

    def send(self, number: signal.Signals) -> None:
        """To the host."""
        send(self.process, number)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """In its container, as a probe is run."""
        (first,) = psutil.Process(self.process.pid).children()
        entered = ["nsenter", f"--target={first.pid}", "--mount", "--net", "--pid"]
        inside = ["/usr/sbin/chroot", f"--userspec={self._image.user}", str(self._image.root), *command]
        return subprocess.run([*entered, *inside], capture_output=True, text=True, timeout=300, check=False)

    def opens_to_others(self) -> set[int]:
        """The ports that accept connections from outside its network (proc_pid_net(5))."""
        (first,) = psutil.Process(self.process.pid).children()
        tables = (Path(f"/proc/{first.pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        listening = [address.split(":") for _, address, _, state, *_ in rows if state == LISTEN]
        return {int(port, 16) for address, port in listening if address not in LOOPBACK}

    def ended(self, within_s: float = 60) -> int:
        return self.process.wait(within_s)

    def end(self) -> None:
        end(self.process)
