"""The unit tests on the image's own Python, with its own packages, as its own user.

What they need besides is installed into a copy of the image's files, which is thrown away: the image has no tools for tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import containers
import pytest

ROOT = Path(__file__).parents[2]
CHECKOUT = "src/leasehold"
ENVIRONMENT = "opt/leasehold"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "node_modules", "__pycache__", ".*_cache", ".hypothesis"
)
SYNC = (
    *("sync", "--quiet", "--locked", "--inexact", "--no-install-project", "--extra", "connect", "--extra", "otel"),
    *("--reinstall-package", "pygments"),  # the image has a part of it, and pytest needs the rest
)
OF_CHECKOUT = ("test_release.py", "test_tier.py", "chart")
"""They try nothing of the image, and need git and sed."""
TRUSTED = "/run/machine-ca.crt"


def install_tools(image: containers.Image) -> None:
    """Those of uv.lock. Nothing else that the image has is installed again, and its own `leasehold` stays."""
    uv = ROOT / ".venv/bin/uv"
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    volumes = {str(uv): "/run/uv:ro", cache: "/run/uv-cache"}
    environment = {"UV_PROJECT_ENVIRONMENT": f"/{ENVIRONMENT}", "UV_CACHE_DIR": "/run/uv-cache", "UV_LINK_MODE": "copy"}
    authorities = next((os.environ[name] for name in ("SSL_CERT_FILE", "PIP_CERT") if os.environ.get(name)), None)
    if authorities is not None:
        volumes[authorities] = f"{TRUSTED}:ro"
        environment["SSL_CERT_FILE"] = TRUSTED
    containers.buildah(
        *("run", "--isolation", "chroot", "--user", "0:0", "--workingdir", f"/{CHECKOUT}"),
        *(f"--volume={here}:{there}" for here, there in volumes.items()),
        *(f"--env={name}={value}" for name, value in environment.items()),
        *(image.container, "--", "/run/uv", *SYNC),
    )


def lend_checkout(image: containers.Image) -> None:
    """Behind the image's own packages, which tests/dist.py names: those are the image's, `tests` is the checkout's."""
    shutil.copytree(ROOT, image.root / CHECKOUT, symlinks=True, ignore=LEFT_OUT)
    (site,) = (image.root / ENVIRONMENT / "lib").glob("python3.*/site-packages")
    (site / "zz_checkout.pth").write_text(f"/{CHECKOUT}\n")


@pytest.mark.timeout(1800)
def test_the_unit_tests_pass_on_the_images_own_python(throw_away: containers.Image, tmp_path: Path) -> None:
    lend_checkout(throw_away)
    install_tools(throw_away)
    without = " ".join(f"--ignore=tests/unit/{name}" for name in OF_CHECKOUT)
    tests = f"cd /{CHECKOUT} && exec /{ENVIRONMENT}/bin/pytest -p no:cacheprovider -q -n 3 --dist loadfile {without} tests/unit"
    command = throw_away.command(
        tmp_path,
        *("sh", "-c", tests),
        PYTHONDONTWRITEBYTECODE="",
        PYTHONPYCACHEPREFIX="/tmp/pycache",
        HYPOTHESIS_STORAGE_DIRECTORY="/tmp/hypothesis",
    )
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    containers.noted(f"unit tests on its own Python: {ran.stdout.strip().splitlines()[-1]}")
