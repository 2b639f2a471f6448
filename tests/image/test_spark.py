"""Spark as the image has it: without the jars of image/unused.txt, and started without a shell."""

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import in_spark
import pyspark
import pytest

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent


def script(name: str) -> Any:
    """A script of the image as a module. The folder `image` is no package, and no import root either."""
    return loaded(ROOT / "image" / f"{name}.py")


def loaded(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compiled, slim, spark_submit = script("compiled"), script("slim"), script("spark_submit")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SPARK_HOME of links to what stays."""
    home = tmp_path_factory.mktemp("spark")
    gone = set(
        slim.unused(SPARK.parent, [each for each in slim.listed("unused.txt") if each.startswith("pyspark/jars/")])
    )
    (home / "jars").mkdir()
    for jar in set(SPARK.glob("jars/*.jar")) - gone:
        (home / "jars" / jar.name).symlink_to(jar)
    (home / "bin").mkdir()
    text = (ROOT / "image/spark_submit.py").read_text().replace("/opt/leasehold/bin/python", sys.executable)
    (home / "bin/spark-submit").write_text(text)
    (home / "bin/spark-submit").chmod(0o755)
    subprocess.run([home / "bin/spark-submit", "learn"], check=True, timeout=120)
    return home


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH without a shell, nor any of its tools."""
    java = shutil.which("java") if "JAVA_HOME" not in os.environ else None
    (tmp_path / "bin").mkdir()
    if java:
        (tmp_path / "bin/java").symlink_to(Path(java).resolve())
    return str(tmp_path / "bin")


def test_every_path_on_the_list_is_there_to_be_taken_out() -> None:
    """Of the packages that are here: what `spark.remote` needs is in the image alone, whose build looks for all."""
    here = {"**", *(path.name for path in SPARK.parent.iterdir())}
    listed = [each for each in slim.listed("unused.txt", "unused-thin.txt") if each.partition("/")[0] in here]
    assert {"pyspark", "pyarrow", "numpy"} <= {each.partition("/")[0] for each in listed}
    assert len(list(slim.unused(SPARK.parent, listed))) > 40
    with pytest.raises(SystemExit, match="nothing like it"):
        list(slim.unused(SPARK.parent, ["pyspark/jars/no-such-*.jar"]))


def test_spark_runs_everything_without_the_jars_that_the_image_lacks(home: Path, path: str) -> None:
    ran = subprocess.run(
        [sys.executable, in_spark.__file__],
        env={**os.environ, "SPARK_HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    *wrong, done = ran.stdout.splitlines() or [""]
    assert not wrong, "\n".join(wrong)
    assert done == f"{len(in_spark.VALUES) + len(in_spark.PYTHON)} done", ran.stderr


def test_the_driver_is_started_as_spark_s_own_launcher_would_start_it(home: Path) -> None:
    options = {"spark.driver.memory": "700m", "spark.driver.extraJavaOptions": "-Da=b -Dc='d e'"}
    arguments = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")] + ["pyspark-shell"]
    env = {**os.environ, "SPARK_SUBMIT_OPTS": "-Dx=y"}
    theirs = spark_submit.launched(arguments, home=home, env=env)
    learnt = json.loads((home / "bin/driver-options.json").read_text())
    ours = spark_submit.command(arguments, home=home, options=learnt, env=env)
    to_java, to_spark = slice(ours.index("-cp") + 2, ours.index(spark_submit.MAIN)), ours.index(spark_submit.MAIN)
    assert ours[to_java] == theirs[theirs.index("-cp") + 2 : theirs.index(spark_submit.MAIN)]
    assert "-Dc=d e" in ours
    assert sorted(ours[to_spark:]) == sorted(theirs[theirs.index(spark_submit.MAIN) :])


def test_the_classpath_comes_in_one_order_since_an_archive_of_classes_fits_no_other(home: Path) -> None:
    jars = spark_submit.classpath(home).split(os.pathsep)
    assert jars == sorted(jars)
    assert len(jars) > 100
    assert shlex.quote(jars[0]) == jars[0]


def test_of_a_jar_s_libraries_those_stay_that_this_machine_s_linux_loads() -> None:
    names = ("linux/amd64/libzstd.so", "a/native/Linux/x86_64/libsnappy.so", "linux/aarch64/libzstd.so", "a/Lib.class")
    others = ("darwin/x86_64/libzstd.dylib", "win/amd64/libzstd.dll", "a/native/Linux/x86_64-musl/libsnappy.so")
    kept = [name for name in (*names, *others) if not slim.is_foreign(name, "x86_64")]
    assert kept == [names[0], names[1], names[3]]
    assert [name for name in (*names, *others) if not slim.is_foreign(name, "aarch64")] == [names[2], names[3]]


def test_a_bare_module_lacks_its_source_and_docstrings_and_nothing_else(tmp_path: Path) -> None:
    """Assertions stay, and so do functions that are nothing but a docstring."""
    (tmp_path / "tried.py").write_text(
        '''"""A module."""
from __future__ import annotations

class Thing:
    """A class."""

    def hold(self, number: Missing) -> None:
        """A method."""
        assert number, "held"

def empty():
    """All of it."""
'''
    )
    compiled.bare_one(tmp_path / "tried.py")
    assert [file.name for file in tmp_path.iterdir()] == ["tried.pyc"]
    tried = loaded(tmp_path / "tried.pyc")
    assert [each.__doc__ for each in (tried, tried.Thing, tried.Thing.hold, tried.empty)] == [None] * 4
    assert tried.empty() is None
    with pytest.raises(AssertionError, match="held") as failed:
        tried.Thing().hold(0)
    assert failed.traceback[-1].lineno == 8  # counted from 0
    assert str(failed.traceback[-1].path).endswith("tried.py")
