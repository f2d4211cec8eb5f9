"""Download transformers' own model tests, which its wheel does not hold, for the version that is installed.

    python -m tests.transformers_suite.download

Writes `downloaded/` beside this file, which git ignores. Does nothing where that holds the right version already.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path


FOLDER = Path(__file__).resolve().parent / "downloaded"
# What is taken out of the source distribution: the tests, and the licence they come under.
FILES = ("tests/test_modeling_common.py", "LICENSE")
# The one package that these tests import and this project does not.
PARAMETERIZED = "parameterized==0.9.0"
STAMP = "VERSION"


def why_missing() -> str | None:
    """Why the tests cannot run, or `None` if the right version is there."""
    installed = version("transformers")
    stamp = FOLDER / STAMP
    if not stamp.is_file():
        return f"transformers' own tests are not here; `make test-transformers` downloads those of {installed}"
    found = stamp.read_text(encoding="utf-8").strip()
    if found != installed:
        return (
            f"transformers' own tests are here for {found}, and {installed} is installed; "
            "`make test-transformers` downloads those"
        )
    return None


def download() -> None:
    """Fill `FOLDER`, or leave it as it is.

    Raises:
        RuntimeError: if pip fails or the archive lacks a file; it says what to do.
    """
    installed = version("transformers")
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix="downloaded.") as scratch:
        archives, result = Path(scratch, "archives"), Path(scratch, "result")
        # Only the source distribution holds the tests. Nothing is built: pip reads the metadata and stops.
        source = ("--no-binary", "transformers", "--dest", str(archives), f"transformers=={installed}")
        _pip(f"transformers {installed}", "download", *source)
        _pip(PARAMETERIZED, "install", "--target", str(result / "packages"), PARAMETERIZED)
        _extract(next(archives.glob("*.tar.gz")), result)
        (result / STAMP).write_text(f"{installed}\n", encoding="utf-8")
        shutil.rmtree(FOLDER, ignore_errors=True)
        result.rename(FOLDER)


def _pip(what: str, command: str, *arguments: str) -> None:
    options = ("--quiet", "--no-deps", "--disable-pip-version-check", "--retries", "1", "--timeout", "20")
    done = subprocess.run(
        [sys.executable, "-m", "pip", command, *options, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if re.match(r"(ERROR|.*No module named)", line)]
        raise RuntimeError(
            f"pip could not download {what}. This needs the network (or a pip index set up to be reached without it), "
            f"a released version, and pip in {sys.executable}. pip said: {' '.join(lines[:2]) or done.stderr.strip()}"
        )


def _extract(archive: Path, result: Path) -> None:
    with tarfile.open(archive) as source:
        # Every name starts with the folder of the release.
        members = {member.name.partition("/")[2]: member for member in source if member.isfile()}
        for name in FILES:
            if name not in members:
                raise RuntimeError(f"{archive.name} holds no {name}; the suite knows transformers 5.24.")
            (result / Path(name).name).write_bytes(source.extractfile(members[name]).read())


def main() -> int:
    """Download if need be, and say what happened; 1 on failure."""
    if why_missing() is None:
        print(f"transformers' own tests: already here ({version('transformers')}).")
        return 0
    try:
        download()
    except RuntimeError as error:
        print(f"transformers' own tests: {error}", file=sys.stderr)
        return 1
    print(f"transformers' own tests: downloaded ({version('transformers')}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
