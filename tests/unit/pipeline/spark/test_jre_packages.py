"""The advice without Java names a package that the machine's distribution has."""

from __future__ import annotations

import pytest

from leasehold.pipeline.spark.jre import ANY, java_advice

OPENJDK_17 = "apt-get install openjdk-17-jre-headless"
OPENJDK_21 = "apt-get install openjdk-21-jre-headless"


@pytest.mark.parametrize(
    ("os_release", "advice"),
    [
        ('PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n', OPENJDK_17),
        ('VERSION_ID="13"\nID=debian\n', OPENJDK_21),
        ("ID=debian\nVERSION_CODENAME=forky\n", OPENJDK_21),
        ('ID=raspbian\nID_LIKE=debian\nVERSION_ID="12"\n', OPENJDK_17),
        ('VERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n', OPENJDK_21),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22"\n', OPENJDK_21),
        ("ID=fedora\nVERSION_ID=43\n", "dnf install java-21-openjdk-headless"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n', "dnf install java-21-openjdk-headless"),
        ('ID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"\n', "dnf install java-21-amazon-corretto-headless"),
        ("ID=gentoo\n", ANY),
        ("not a list of fields", ANY),
        ("", ANY),
    ],
)
def test_each_distribution_gets_a_package_of_its_own(os_release: str, advice: str) -> None:
    assert java_advice(os_release) == advice


def test_macos_gets_homebrew_and_where_it_puts_java() -> None:
    assert java_advice("", "Darwin").startswith("brew install openjdk@21, and set JAVA_HOME")
