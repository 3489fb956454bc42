"""The commands of docs/ZERO.md: they run, and print what the page says.

    zero_guide_test.py PAGE TESTS PROGRAM...

Every ```console block holds commands ("$ ...") and lines that they print, "..." for any number of others. A line must
be printed as it stands, unless it tells losses or times: of such a line everything but the numbers must be right. Hashes
of weights may be others than the page's, but are equal where the page's are. TESTS is what the page calls `tests`.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PAGE, TESTS, *PROGRAMS = [Path(argument).resolve() for argument in sys.argv[1:]]
ANY = "..."
# What depends on the machine or, as losses do, on its instruction set. Of peal-train alone: the planner only computes.
MEASURED = re.compile(r"\bloss\b|tokens?/s|FLOP|\[ms\]|\bms\b|not hidden|^  step|nats|-?gram |training took|^compute:")
HASH = re.compile(r"\b[0-9a-f]{16}\b")
NUMBER = re.compile(r"\d[\d,.]*(e[+-]\d+)?")


def blocks(text):
    return re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text):
    """[command, expected lines] in the page's order."""
    found = []
    for block in blocks(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def without_numbers(line):
    return " ".join(NUMBER.sub("#", line).split())


class Comparison:
    """Of what commands printed with what the page says, over the whole page."""

    def __init__(self):
        self.hashes = {}  # the page's: the program's

    def same(self, command, expected, printed):
        if "peal-train" in command and MEASURED.search(expected):
            return without_numbers(expected) == without_numbers(printed)
        return HASH.sub("hash", expected) == HASH.sub("hash", printed)

    def check(self, command, expected, printed):
        """The first line that is missing, or None."""
        at, skips = 0, False
        for line in expected:
            if line == ANY:
                skips = True
                continue
            end = len(printed) if skips else at + 1
            found = next((i for i in range(at, min(end, len(printed))) if self.same(command, line, printed[i])), None)
            if found is None:
                return line
            for ours, theirs in zip(HASH.findall(line), HASH.findall(printed[found])):
                if self.hashes.setdefault(ours, theirs) != theirs:
                    return f"{line}\n  (the page has {ours} elsewhere, where it was {self.hashes[ours]})"
            at, skips = found + 1, False
        return None if skips or at == len(printed) else f"(no more lines, but there is: {printed[at]})"


class Guide(unittest.TestCase):
    def test_commands_print_what_the_page_says(self):
        page = PAGE.read_text(encoding="utf-8")
        environment = dict(os.environ)
        environment["PATH"] = ":".join([*(str(program.parent) for program in PROGRAMS), environment["PATH"]])
        comparison, settings, everything, ran = Comparison(), [], "", 0
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "tests").symlink_to(TESTS)
            for command, expected in commands(page):
                if re.match(r"\w+=", command):
                    settings.append(command)
                    continue
                done = subprocess.run(["bash", "-c", "\n".join([*settings, command])], cwd=folder, env=environment,
                                      capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 0, f"$ {command}\n{done.stdout}{done.stderr}")
                missing = comparison.check(command, expected, done.stdout.splitlines())
                self.assertIsNone(missing, f"{PAGE.name} says that this is printed:\n  {missing}\n"
                                           f"and this was:\n$ {command}\n{done.stdout}")
                everything += done.stdout
                ran += 1
        self.assertGreater(ran, 10)
        self.assertEqual(len(comparison.hashes), len(set(comparison.hashes.values())), comparison.hashes)
        table = re.search(r"^### Side by side$(.*?)^###", page, re.MULTILINE | re.DOTALL).group(1)
        numbers = re.findall(r"\b\d[\d,]+,\d{3}\b", table)
        self.assertGreater(len(numbers), 12)
        for number in numbers:
            self.assertRegex(everything, rf"(?<![\d,]){number}(?![\d,])")


class Comparing(unittest.TestCase):
    """The comparison notices what it must."""

    def check(self, expected, printed, command="peal-train"):
        return Comparison().check(command, expected.splitlines(), printed.splitlines())

    def test_other_bytes_and_formulas(self):
        line = "  model states   746,816   746,816  equal, 4P + 12P/N"
        self.assertIsNone(self.check(f"...\n{line}\n...", f"first\n{line}\nlast"))
        self.assertIsNotNone(self.check(f"...\n{line}\n...", "first\n" + line.replace("746,816", "746,818")))
        self.assertIsNotNone(self.check(f"...\n{line}\n...", "first\n" + line.replace("12P", "14P")))
        self.assertIsNotNone(self.check(f"{line}\n...", f"first\n{line}"))
        self.assertIsNotNone(self.check(line, f"{line}\nlast"))
        self.assertIsNotNone(self.check("...\nb\na\n...", "a\nb"))

    def test_measured_lines_by_their_words(self):
        self.assertIsNone(self.check("loss 3.41 nats", "loss 3.5 nats"))
        self.assertIsNotNone(self.check("loss 3.41 nats", "loss 3.41 bits"))
        self.assertIsNotNone(self.check("network 1.0 ms", "network 1.1 ms", "peal-plan"))

    def test_hashes_that_should_be_equal(self):
        comparison = Comparison()
        self.assertIsNone(comparison.check("", ["w " + "a" * 16], ["w " + "b" * 16]))
        self.assertIsNone(comparison.check("", ["w " + "a" * 16], ["w " + "b" * 16]))
        self.assertIsNotNone(comparison.check("", ["w " + "a" * 16], ["w " + "c" * 16]))


unittest.main(argv=sys.argv[:1])
