"""What JVMs write when they cannot start, as they write it, and what is left of it for a person."""

from __future__ import annotations

import pytest

from leasehold.pipeline.spark.reason import complaint, end_reason, last_words, start_advice, start_reason

INCUBATOR = "WARNING: Using incubator modules: jdk.incubator.vector"
COULD_NOT = [
    "Error: Could not create the Java Virtual Machine.",
    "Error: A fatal exception has occurred. Program will exit.",
]
JNI = [
    INCUBATOR,
    "Error: A JNI error has occurred, please check your installation and try again",
    'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
    "\tat java.base/jdk.internal.loader.URLClassPath.getLoader(URLClassPath.java:451)",
]
LOGGED = [
    "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
    "26/11/23 23:17:51 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address",
    'Setting default log level to "WARN".',
]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["Error occurred during initialization of VM", "Too small maximum heap"], "Too small maximum heap"),
        (["Invalid maximum heap size: -Xmxabc", *COULD_NOT], "Invalid maximum heap size: -Xmxabc"),
        (["Unrecognized VM option 'Garbage'", *COULD_NOT], "Unrecognized VM option 'Garbage'"),
        (JNI, "Java heap space"),
        (
            [
                "Error: Could not find or load main class garbage",
                "Caused by: java.lang.ClassNotFoundException: garbage",
            ],
            "Could not find or load main class garbage",
        ),
        ([INCUBATOR, "Error occurred during boot layer"], "Error occurred during boot layer"),
        (LOGGED, ""),
        ([], ""),
        (COULD_NOT, COULD_NOT[0]),
    ],
)
def test_the_reason_is_found_among_the_words_around_it(lines: list[str], reason: str) -> None:
    assert start_reason(lines) == reason


@pytest.mark.parametrize(
    "reason", ["Too small maximum heap", "Java heap space", "Insufficient driver memory: System memory 104857600"]
)
def test_if_it_is_about_memory_our_setting_is_named_with_its_value(reason: str) -> None:
    assert start_advice(reason, driver_memory="10m", master="local[1]").startswith(
        "`spark.driver_memory` (or `spark.driver.memory` in `spark.conf`) is '10m'"
    )


def test_if_it_is_not_about_memory_the_settings_of_java_are_named() -> None:
    advice = start_advice("Could not find or load main class garbage", driver_memory="1g", master="local[1]")
    assert "`spark.conf`" in advice
    assert "driver_memory" not in advice


@pytest.mark.parametrize(
    "reason", ["Master must either be yarn or start with spark, k8s, or local", "Could not parse Master URL: 'garbage'"]
)
def test_if_it_is_about_the_master_that_setting_alone_is_named(reason: str) -> None:
    advice = start_advice(reason, driver_memory="1g", master="garbage")
    assert advice.startswith("`spark.master` is 'garbage': write local[2], spark://HOST:PORT")
    assert "spark.conf" not in advice


def test_on_kubernetes_its_api_server_is_named() -> None:
    advice = start_advice("Connection refused", driver_memory="1g", master="k8s://https://a")
    assert "the API server of Kubernetes answers at `spark.master` ('k8s://https://a')" in advice
    assert "`spark.conf`" in advice
    assert "Kubernetes" not in start_advice("Connection refused", driver_memory="1g", master="spark://a:7077")


def test_a_jvm_that_ends_after_its_start_gives_the_last_errors_that_spark_logged() -> None:
    said = [
        "\tat org.apache.spark.SparkEnv$.create(SparkEnv.scala:724)",
        "26/11/24 03:19:08 ERROR JavaUtils: Failed to create directory /proc/nope/blockmgr-7c25df25",
        "java.nio.file.NoSuchFileException: /proc/nope",
        "26/11/24 03:19:08 ERROR DiskBlockManager: Failed to create local dir in /proc/nope. Ignoring this directory.",
        "java.io.IOException: Failed to create a temp directory (under /proc/nope) after 10 attempts!",
        "26/11/24 03:19:08 ERROR DiskBlockManager: Failed to create any local dir.",
    ]
    assert end_reason(said) == (
        "Failed to create local dir in /proc/nope. Ignoring this directory; Failed to create any local dir"
    )
    assert end_reason(["Terminating due to java.lang.OutOfMemoryError: Java heap space"]).endswith("Java heap space")
    assert end_reason(LOGGED) == ""


def test_a_bare_name_keeps_its_exceptions_class() -> None:
    assert (
        start_reason(["java.lang.ClassNotFoundException: nonsense.Class"]) == "ClassNotFoundException: nonsense.Class"
    )


def test_the_last_complaint_about_a_master_is_found() -> None:
    client = "26/11/23 23:19:04 WARN StandaloneAppClient$ClientEndpoint: "
    assert (
        complaint([*LOGGED, f"{client}Failed to connect to master a:1", f"{client}Again", "26/11 INFO X: y"]) == "Again"
    )
    assert complaint(LOGGED) == ""


def test_last_words_are_the_error_among_them() -> None:
    said = [INCUBATOR, "Error occurred during boot layer", "java.lang.module.FindException: x"]
    assert last_words(said) == "Error occurred during boot layer"
    assert last_words(["Setting Spark log level to ERROR."]) == ""
