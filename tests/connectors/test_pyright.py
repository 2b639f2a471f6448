"""Pyright knows the types of `leasehold`, as mypy does (`make types`). It comes from npm, so it runs with `make connectors`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from plugins_node import program

ROOT = Path(__file__).parents[2]
TYPED = (ROOT / "tests/typed/face.py", ROOT / "tests/typed/programs.py")


def test_pyright_in_strict_mode_knows_the_types_and_takes_what_programs_write(tmp_path: Path) -> None:
    settings = {
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnusedExpression": "none",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    for path in TYPED:
        shutil.copy(path, tmp_path)
    options = ("--outputjson", "--project", str(tmp_path), "--pythonpath", sys.executable)
    command = program("pyright", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    found = json.loads(done.stdout)
    assert found["generalDiagnostics"] == []
    assert found["summary"]["filesAnalyzed"] == len(TYPED)
