"""Writes the name, the version and the licence of all software of others in the image:
python image/third_party.py SITE-PACKAGES STATUS DOC TEXTS LICENSES JAVA > THIRD-PARTY.txt

STATUS: dpkg's list of the packages of the image's base. DOC: their folder usr/share/doc, with a file `copyright` each.
TEXTS: such a folder with packages of Debian that have the same libraries as wheels that lack their texts, and as Java's folder.
LICENSES: gets these texts. JAVA: the folder of Java, or - without one.
Each row names where the full texts are. Those of Python packages name their source, too: of it, the thin image keeps only what is
compiled. It ends with an error if a text is gone, or if a library is not known here.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

OURS = {"leasehold-processor", "leasehold-emulators"}
UNKNOWN = "see its texts"
JAR = re.compile(r"(?P<name>.+?)[-_](?P<version>\d[\w.+-]*)\.jar")
LIBRARY = re.compile(r"(?P<name>lib\w+?)(-[0-9a-f]{8})?\.so(\.(?P<version>[\d.]+))?")
LIBRARIES = {
    "libcom_err": ("MIT", "libcom-err2"),
    "libcrypt": ("LGPL-2.1-or-later", "libcrypt1"),
    "libcrypto": ("Apache-2.0", "libssl3*"),
    "libgssapi_krb5": ("MIT", "libkrb5-3"),
    "libk5crypto": ("MIT", "libkrb5-3"),
    "libkeyutils": ("LGPL-2.0-or-later", "libkeyutils1"),
    "libkrb5": ("MIT", "libkrb5-3"),
    "libkrb5support": ("MIT", "libkrb5-3"),
    "liblber": ("OLDAP-2.8", "libldap[2-]*"),
    "libldap": ("OLDAP-2.8", "libldap[2-]*"),
    "libnss_wrapper": ("BSD-3-Clause", "libnss-wrapper"),
    "libpq": ("PostgreSQL", "libpq5"),
    "libsasl2": ("BSD-Attribution-HPND-disclaimer", "libsasl2-2"),
    "libssl": ("Apache-2.0", "libssl3*"),
}
"""Libraries whose licence no package here states -> the licence, and the package of Debian that has its text (a pattern)."""
Row = tuple[str, ...]
"""Name, version, licence, where its texts are, and for some where its source is."""


def python_row(package: Distribution) -> Row:
    """The licence as the package states it: an expression, classifiers, or a short text."""
    meta = package.metadata
    classifiers = [each.rpartition(" :: ")[2] for each in meta.get_all("Classifier", []) if each.startswith("License")]
    stated = (meta.get("License") or "").strip()
    short = stated if stated and "\n" not in stated and len(stated) < 80 else ""
    licence = meta.get("License-Expression") or short or ", ".join(classifiers) or UNKNOWN
    source = f"https://pypi.org/project/{meta['Name']}/{package.version}/"
    return meta["Name"], package.version, licence, folder_of(package).name, source


def folder_of(package: Distribution) -> Path:
    """The one named .dist-info. Raises SystemExit where a text that the package lists is gone."""
    folder = next(
        Path(str(package.locate_file(each))).parent for each in package.files or () if each.name == "METADATA"
    )
    for name in package.metadata.get_all("License-File", []):
        if not any((place / name).is_file() for place in (folder / "licenses", folder / "license_files", folder)):
            sys.exit(f"{package.metadata['Name']} lists its licence {name}, and {folder} has no such text: let it stay")
    return folder


def jar_licence(manifest: str) -> str:
    """Of META-INF/MANIFEST.MF, whose long lines go on after a line break and a blank."""
    whole = re.sub(r"\r?\n ", "", manifest)
    found = re.search(r"^Bundle-License: *(.+?)\s*$", whole, re.MULTILINE)
    return found[1] if found else "as the LICENSE of PySpark lists it"


def jar_row(jar: Path) -> Row:
    with zipfile.ZipFile(jar) as opened:
        has_manifest = "META-INF/MANIFEST.MF" in opened.namelist()
        manifest = opened.read("META-INF/MANIFEST.MF").decode(errors="replace") if has_manifest else ""
    found = JAR.fullmatch(jar.name)
    name, version = (found["name"], found["version"]) if found else (jar.stem, "")
    return name, version, jar_licence(manifest), "pyspark/licenses"


def debian_rows(status: str, doc: Path) -> Iterator[Row]:
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.+)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            text = doc / fields["Package"] / "copyright"
            yield (
                fields["Package"],
                fields["Version"],
                debian_licence(text),
                f"/usr/share/doc/{text.parent.name}/copyright",
            )


def debian_licence(text: Path) -> str:
    """The short names in a machine-readable file `copyright`. Raises SystemExit where there is no such file."""
    if not text.is_file():
        sys.exit(f"{text} is gone: let it stay, since it has the licence of {text.parent.name}")
    names = re.findall(r"^License: *(\S[^\n]*)$", text.read_text(errors="replace"), re.MULTILINE)
    return ", ".join(dict.fromkeys(names)) or UNKNOWN


def java_rows(java: Path) -> Iterator[Row]:
    found = re.search(r'^JAVA_VERSION="(.+)"$', (java / "release").read_text(), re.MULTILINE)
    yield "OpenJDK", found[1] if found else "", "GPL-2.0-only WITH Classpath-exception-2.0", f"{java}/legal"


def library_rows(libraries: Iterable[Path], texts: Path, licenses: Path) -> Iterator[Row]:
    """Their texts are copied. Raises SystemExit where a library or a text is not known."""
    for library in libraries:
        found = LIBRARY.fullmatch(library.name)
        if not found or found["name"] not in LIBRARIES:
            sys.exit(f"{library} is not known: add its licence to LIBRARIES in third_party.py")
        licence, package = LIBRARIES[found["name"]]
        text = next(iter(sorted(texts.glob(f"{package}/copyright"))), None)
        if text is None:
            sys.exit(
                f"{texts} has no text {package}/copyright for {library.name}: install that package in the stage `texts`"
            )
        copied = licenses / text.parent.name / "copyright"
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(text, copied)
        yield found["name"], found["version"] or "", licence, str(copied)


def table(title: str, rows: Iterable[Row]) -> str:
    """Raises SystemExit without any: then what it lists lies elsewhere than is known here."""
    listed = sorted(set(rows), key=lambda row: row[0].lower())
    if not listed:
        sys.exit(f"third_party.py found nothing for '{title}': correct where it looks")
    return "\n".join([title, "-" * len(title), *("\t".join(row) for row in listed), ""])


def main(site: Path, status: Path, doc: Path, texts: Path, licenses: Path, java: str) -> None:
    packages = (each for each in distributions(path=[str(site)]) if each.metadata["Name"] not in OURS)
    parts = [table("Python packages (texts below site-packages)", map(python_row, packages))]
    libraries = [*(site / "psycopg_binary.libs").iterdir(), *Path(java).glob("lib/libnss_wrapper.so")]
    parts.append(table("Libraries of psycopg-binary and of the image", library_rows(libraries, texts, licenses)))
    if java != "-":
        parts.append(table("Java", java_rows(Path(java))))
        parts.append(
            table("Jars of Spark (texts below site-packages)", map(jar_row, (site / "pyspark/jars").glob("*.jar")))
        )
    parts.append(table("Packages of Debian", debian_rows(status.read_text(), doc)))
    sys.stdout.write("\n".join(parts))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:6]), sys.argv[6])
