"""Pyright knows the types of `leasehold`, as mypy does (`make types`). It comes from npm, so it runs with `make connectors`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from plugins_node import program

ROOT = Path(__file__).parents[2]
TYPED = ROOT / "tests/typed/face.py"


def test_pyright_knows_the_types(tmp_path: Path) -> None:
    settings = {
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnusedExpression": "none",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copy(TYPED, tmp_path)
    options = ("--outputjson", "--project", str(tmp_path), "--pythonpath", sys.executable)
    command = program("pyright", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    found = json.loads(done.stdout)
    assert found["generalDiagnostics"] == []
    assert found["summary"]["filesAnalyzed"] == 1
