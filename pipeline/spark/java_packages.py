"""Which command installs a Java that Spark runs on, by the text of /etc/os-release. Pure."""

from __future__ import annotations

import re

ANY = "install Java 17 or newer, from https://adoptium.net for example"
_MACOS = 'brew install openjdk@21, and set JAVA_HOME to "$(brew --prefix openjdk@21)"'
_BY_ID = {
    "amzn": "dnf install java-21-amazon-corretto-headless",
    "debian": "apt-get install openjdk-21-jre-headless",
    "ubuntu": "apt-get install openjdk-21-jre-headless",
    "fedora": "dnf install java-21-openjdk-headless",
    "rhel": "dnf install java-21-openjdk-headless",
    "suse": "zypper install java-21-openjdk-headless",
    "opensuse": "zypper install java-21-openjdk-headless",
    "arch": "pacman -S jre21-openjdk-headless",
    "alpine": "apk add openjdk21-jre-headless",
}
_OLDER = {("debian", "11"), ("debian", "12")}
"""Their newest Java is 17."""
_OLD = "apt-get install openjdk-17-jre-headless"


def java_advice(os_release: str, system: str = "Linux") -> str:
    """os_release: the file's text, empty without one. system: as `platform.system` says it."""
    if system == "Darwin":
        return _MACOS
    fields = {name: value.strip("\"'") for name, value in re.findall(r"^([A-Z_]+)=(.*?)\s*$", os_release, re.MULTILINE)}
    ids = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    if any((each, fields.get("VERSION_ID", "")) in _OLDER for each in ids):
        return _OLD
    return next((_BY_ID[each] for each in ids if each in _BY_ID), ANY)
