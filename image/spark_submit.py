#!/opt/leasehold/bin/python -I
"""Starts Spark's driver as bin/spark-submit does, but without the shells in between, and without the JVM that they start first
to work out the command.

    spark-submit --conf spark.driver.memory=1g ... pyspark-shell
    spark-submit learn          # when the image is built: asks that JVM once for the options that every driver of this Spark gets
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

MAIN = "org.apache.spark.deploy.SparkSubmit"
HOME = Path(__file__).absolute().parents[1]
NSS = "lib/libnss_wrapper.so"
OPTIONS = HOME / "bin" / "driver-options.json"


def java(env: Mapping[str, str]) -> str:
    return f"{env['JAVA_HOME']}/bin/java" if env.get("JAVA_HOME") else "java"


def classpath(home: Path) -> str:
    """In one order, whatever the disk's: an archive of classes fits one classpath alone."""
    return os.pathsep.join(sorted(map(str, home.glob("jars/*.jar"))))


def conf_in(arguments: Sequence[str]) -> dict[str, str]:
    return dict(value.partition("=")[::2] for flag, value in pairwise(arguments) if flag == "--conf")


def command(arguments: Sequence[str], *, home: Path, options: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """options: those that every driver gets."""
    conf = conf_in(arguments)
    return [
        java(env),
        *("-cp", classpath(home)),
        *shlex.split(env.get("SPARK_SUBMIT_OPTS", "")),
        f"-Xmx{conf.get('spark.driver.memory', '1g')}",
        *shlex.split(conf.get("spark.driver.extraJavaOptions", "")),
        *options,
        MAIN,
        *arguments,
    ]


def is_known(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def introduced(wrapper: Path, *, uid: int, gid: int, home: str) -> dict[str, str]:
    """The environment in which the system's library knows this user, where /etc/passwd does not and cannot be written: Spark
    does not start as a user without a name."""
    with tempfile.NamedTemporaryFile("w", prefix="passwd-", delete=False) as passwd:
        passwd.write(f"leasehold:x:{uid}:{gid}::{home}:/usr/sbin/nologin\n")
    return {"LD_PRELOAD": str(wrapper), "NSS_WRAPPER_PASSWD": passwd.name, "NSS_WRAPPER_GROUP": "/etc/group"}


def launched(arguments: Sequence[str], *, home: Path, env: Mapping[str, str]) -> list[str]:
    """The command as Spark's own launcher works it out."""
    scala = next(home.glob("jars/spark-core_*.jar")).name.split("_")[1].split("-")[0]
    launcher = [java(env), "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main", MAIN, *arguments]
    told = {**env, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": scala}
    said = subprocess.run(launcher, env=told, capture_output=True, text=True, check=True)  # noqa: S603
    return [word for word in said.stdout.split("\0") if word.strip()]


def learnt(home: Path, env: Mapping[str, str]) -> list[str]:
    """What every driver gets: it stands between the memory and the class to run."""
    words = launched(["pyspark-shell"], home=home, env=env)
    memory = next(index for index, word in enumerate(words) if word.startswith("-Xmx"))
    return words[memory + 1 : words.index(MAIN)]


def main(arguments: Sequence[str]) -> None:
    if arguments == ["learn"]:
        OPTIONS.write_text(json.dumps(learnt(HOME, os.environ)), encoding="utf-8")
        return
    env = dict(os.environ)
    if not is_known(os.getuid()):
        env |= introduced(Path(env["JAVA_HOME"], NSS), uid=os.getuid(), gid=os.getgid(), home=env["HOME"])
    words = command(arguments, home=HOME, options=json.loads(OPTIONS.read_text(encoding="utf-8")), env=env)
    # Python's workers inherit the seed: rows with one key meet in one partition only where all hash alike.
    os.execvpe(words[0], words, {**env, "SPARK_HOME": str(HOME), "PYTHONHASHSEED": "0"})  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
