"""The built image, run as Kubernetes runs it: as user 10001, on a root that is read-only, with memory for what is written."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NAME = os.environ.get("IMAGE", "leasehold")
WRITABLE = ("tmp", "dev/shm", "var/lib/leasehold")
INSIDE = """
set -eu
mount --bind {root} {root}
mount -o remount,bind,ro {root}
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
{tmpfs}
mount --bind {settings} {root}/etc/leasehold
hostname {host}
exec env --ignore-environment {environment} /usr/sbin/chroot --userspec={user} --groups={group} {root} {command}
"""


def buildah(*arguments: str) -> str:
    ran = subprocess.run(["buildah", *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@dataclass(frozen=True)
class Image:
    """root: where its files are. config: what the Dockerfile says of how it is run."""

    root: Path
    config: dict[str, Any]
    bytes: int

    def command(self, settings: Path, *arguments: str, host: str = "pod-1", **environment: str) -> list[str]:
        """A process of it in namespaces of its own, but for the network."""
        user, group = self.config["User"].split(":")
        given = [*self.config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        tmpfs = [f"mount -t tmpfs -o mode=1777,size=2g tmpfs {self.root}/{folder}" for folder in WRITABLE]
        script = INSIDE.format(
            root=self.root,
            tmpfs="\n".join(tmpfs),
            settings=settings,
            host=host,
            environment=shlex.join(given),
            user=f"{user}:{group}",
            group=group,
            command=shlex.join(arguments or (*self.config["Entrypoint"], *self.config["Cmd"])),
        )
        return [
            "unshare",
            "--mount",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation=private",
            "sh",
            "-c",
            script,
        ]


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        pytest.skip("needs buildah, and root")
    told = json.loads(buildah("inspect", "--type", "image", NAME))
    container = buildah("from", "--pull-never", NAME)
    try:
        root = Path(buildah("mount", container))
        (root / "etc/leasehold").mkdir(exist_ok=True)  # as whoever mounts the settings does
        (root / "etc/hosts").write_text("127.0.0.1 localhost pod-1\n")  # as Kubernetes does: a pod knows its own name
        used = subprocess.run(["du", "-sxb", root], capture_output=True, text=True, timeout=120, check=True).stdout
        yield Image(root, told["Docker"]["config"], int(used.split()[0]))
    finally:
        buildah("rm", container)
