"""Check, before anything is installed, that the machine has what Omnigraph needs; standard library only."""

import re
import shutil
import subprocess
import sys

PYTHON = (3, 11)
JAVA = 17


def main() -> None:
    if sys.version_info < PYTHON:
        sys.exit("Omnigraph needs Python 3.11 or newer; this is {}.{}.".format(*sys.version_info[:2]))
    java = java_version()
    if java is None:
        sys.exit("Omnigraph needs Java 17 or newer for Spark, and no `java` was found on the PATH: install a JRE.")
    if java < JAVA:
        sys.exit(f"Omnigraph needs Java 17 or newer for Spark; the `java` on the PATH is version {java}.")


def java_version() -> "int | None":
    """The major version of the java on the PATH, or None without one."""
    java = shutil.which("java")
    if java is None:
        return None
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    return int(found.group(1)) if found else None


if __name__ == "__main__":
    main()
