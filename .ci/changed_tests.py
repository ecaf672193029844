# SPDX-License-Identifier: Apache-2.0
"""Print the tests of what has changed: of the files that differ from main, and of those that git does not know yet.

``make check`` runs them. The tests of a module are those named after it, otherwise those of its whole room; those that
belong to no room stand for what all rooms share.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Print the paths in one line."""
    sys.stdout.write(" ".join(tests_of(changed_files())) + "\n")


def changed_files() -> list[str]:
    """List the files that differ from where this branch left main; on main itself, from what was pushed."""
    base = "HEAD"
    for name in ("origin/main", "main"):
        found = _git("merge-base", "HEAD", name)
        if found:
            base = found[0]
            break
    return [*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def tests_of(changed: Iterable[str]) -> list[str]:
    """List the test files, and the modules with examples, that belong to changed files."""
    found = {test for path in changed for test in _tests_of_file(Path(path))}
    return sorted(path for path in found if (ROOT / path).is_file())


def _tests_of_file(path: Path) -> Iterator[str]:
    top = path.parts[0]
    if top == "tests" and path.name.startswith("test_"):
        yield str(path)
    elif path.name == "conftest.py":
        yield from _tests_in(*path.parts[:-1])
    elif top == "tests":
        yield from _tests_that_name(path.stem)
    elif top == "nni_latency" and path.suffix == ".py":
        yield str(path)
        yield from _tests_of_module(path)
    elif top == "docs" or path.name == "README.md":
        yield "tests/cli/test_documented_commands.py"
    elif top == "plugins":
        yield from _tests_that_name(path.parts[1])
    elif top == "examples":
        yield from _tests_that_name(path.stem)
    elif top == "lut" or path.name == "pyproject.toml" or path.name.startswith(("setup.", "constraints")):
        yield "tests/test_packaging.py"


def _tests_of_module(path: Path) -> list[str]:
    """Return the tests named after a module, otherwise all of its room."""
    name, in_room = path.stem.strip("_"), _tests_in("tests", *path.parts[1:-1][:1])
    return [test for test in in_room if name and name in Path(test).stem] or in_room


def _tests_in(*parts: str) -> list[str]:
    folder = ROOT.joinpath(*parts)
    # What lies directly in tests/ belongs to no room.
    files = folder.glob("test_*.py") if parts == ("tests",) else folder.rglob("test_*.py")
    return [str(path.relative_to(ROOT)) for path in files]


def _tests_that_name(word: str) -> list[str]:
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    files = (ROOT / "tests").rglob("test_*.py")
    return [
        str(path.relative_to(ROOT))
        for path in files
        if "benchmarks" not in path.parts and pattern.search(path.read_text(encoding="utf-8"))
    ]


if __name__ == "__main__":
    main()
