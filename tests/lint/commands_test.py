#!/usr/bin/python3
"""What the pages tell people to run is there and can be run: every command of ours in README.md and docs/."""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A path of ours where a command stands: at the start of a line, or of code that gives it arguments.
COMMAND = re.compile(r"(?:^(?:\$ )?|`(?=[^`\n ]+ ))((?:tools|bench|\.ci)/[\w./-]*\w)(?=[\s`]|$)", re.MULTILINE)


def faults(page):
    for found in COMMAND.finditer(page.read_text(encoding="utf-8")):
        file = ROOT / found.group(1)
        if file.is_file() and file.suffix not in (".cpp", ".h", ".txt", ".json") and not os.access(file, os.X_OK):
            yield f"{page.relative_to(ROOT)}: {found.group(1)} is not executable"
        elif not file.exists():
            yield f"{page.relative_to(ROOT)}: there is no {found.group(1)}"


def main():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [fault for page in pages for fault in faults(page)]
    scripts = [ROOT / "tools" / "check", ROOT / "tools" / "demo", ROOT / ".ci" / "run"]
    found += [f"{script.relative_to(ROOT)} is not executable" for script in scripts if not os.access(script, os.X_OK)]
    print("\n".join(found) or f"{len(pages)} pages: every command of ours is there and executable")
    return 1 if found else 0


sys.exit(main())
