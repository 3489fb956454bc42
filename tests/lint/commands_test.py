#!/usr/bin/python3
"""What README.md and docs/ refer to is there: every command of ours, and can be run; every test that is named; every
page and heading that is linked."""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A path of ours where a command stands: at the start of a line, or of code that gives it arguments.
COMMAND = re.compile(r"(?:^(?:\$ )?|`(?=[^`\n ]+ ))((?:tools|bench|\.ci)/[\w./-]*\w)(?=[\s`]|$)", re.MULTILINE)
# A test by its name in GoogleTest, and where tests define them.
TEST_NAME = re.compile(r"`([A-Z]\w*[a-z]\w*\.[A-Za-z]\w{4,})`")
TEST_DEFINED = re.compile(r"TEST(?:_P|_F)?\((\w+),\s*(\w+)\)")
# A test by its name in ctest, or the beginning of several: `cuda_faults_test`, `cuda_kernels…`.
CTEST_NAME = re.compile(r"`(\w[\w-]*(?:_test|…))`")
CTEST_DEFINED = re.compile(r"\b(?:(?:peal|cudasim|cudasim_tsan|hosts)_test\(|add_test\(\s*NAME )([\w-]+)")
LINK = re.compile(r"\]\(([\w./-]*\.md)?(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def defined_tests():
    return {".".join(found) for source in (ROOT / "tests").rglob("*.cpp")
            for found in TEST_DEFINED.findall(source.read_text(encoding="utf-8"))}


def defined_ctests():
    return {name for lists in (ROOT / "tests").rglob("CMakeLists.txt")
            for name in CTEST_DEFINED.findall(lists.read_text(encoding="utf-8"))}


def anchors(page):
    """As GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in HEADING.findall(page.read_text(encoding="utf-8"))}


def dead_references(page, tests, ctests):
    text = page.read_text(encoding="utf-8")
    for name in CTEST_NAME.findall(text):
        if name not in ctests and not any(name.endswith("…") and one.startswith(name[:-1]) for one in ctests):
            yield f"{page.relative_to(ROOT)}: ctest has no {name}"
    for name in TEST_NAME.findall(text):
        if name not in tests:
            yield f"{page.relative_to(ROOT)}: there is no test {name}"
    for target, anchor in LINK.findall(text):
        linked = page.parent / target if target else page
        if (target or anchor) and (not linked.is_file() or (anchor and anchor not in anchors(linked))):
            yield f"{page.relative_to(ROOT)}: there is no {target}#{anchor}"


def faults(page):
    for found in COMMAND.finditer(page.read_text(encoding="utf-8")):
        file = ROOT / found.group(1)
        if file.is_file() and file.suffix not in (".cpp", ".h", ".txt", ".json") and not os.access(file, os.X_OK):
            yield f"{page.relative_to(ROOT)}: {found.group(1)} is not executable"
        elif not file.exists():
            yield f"{page.relative_to(ROOT)}: there is no {found.group(1)}"


def main():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    tests, ctests = defined_tests(), defined_ctests()
    found = [fault for page in pages for fault in [*faults(page), *dead_references(page, tests, ctests)]]
    scripts = [ROOT / "tools" / "check", ROOT / "tools" / "demo", ROOT / ".ci" / "run"]
    found += [f"{script.relative_to(ROOT)} is not executable" for script in scripts if not os.access(script, os.X_OK)]
    print("\n".join(found) or f"{len(pages)} pages: all commands, tests and headings that they name are there")
    return 1 if found else 0


sys.exit(main())
