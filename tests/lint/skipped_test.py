#!/usr/bin/python3
"""tools/lint/skipped finds the sentence of every test that was skipped, in what the real ctest leaves."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNITTEST = """import unittest
class Launchers(unittest.TestCase):
    def test_mpich(self):
        '''Both hosts.'''
        self.skipTest("MPICH's mpirun is not installed")
    def test_other(self):
        pass
unittest.main(verbosity=2)
"""
TESTS = """
add_test(whole sh -c "echo begun; echo 'skipped: hosts cannot be made: not root'; exit 77")
set_tests_properties(whole PROPERTIES SKIP_RETURN_CODE 77)
add_test(google sh -c "for i in 1 2; do printf '/x/a_test.cpp:12: Skipped\\\\nnamespaces are for root\\\\n\\\\n'; done")
add_test(python "{python}" "{folder}/launchers.py")
add_test(passed sh -c "echo nothing was skipped: all ran")
"""


class Skipped(unittest.TestCase):
    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, ROOT / "tools/lint/skipped", *arguments], capture_output=True, text=True,
                              check=False)

    def test_each_kind_of_skip_is_told_once(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "launchers.py").write_text(UNITTEST, encoding="utf-8")
            (Path(folder) / "CTestTestfile.cmake").write_text(TESTS.format(python=sys.executable, folder=folder),
                                                              encoding="utf-8")
            subprocess.run(["ctest"], cwd=folder, capture_output=True, check=True)
            done = self.run_tool(folder)
        self.assertEqual(done.stdout.splitlines(),
                         ["   skipped: whole: hosts cannot be made: not root",
                          "   skipped: google: namespaces are for root (2 times)",
                          "   skipped: python: MPICH's mpirun is not installed"])
        self.assertEqual(done.returncode, 0)

    def test_without_a_log(self):
        done = self.run_tool("/nowhere")
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no /nowhere/Testing", done.stderr)

    def test_tests_that_may_be_skipped_tell_why(self):
        """unittest is silent without verbosity."""
        for file in (ROOT / "tests").rglob("*_test.py"):
            text = file.read_text(encoding="utf-8")
            if file != Path(__file__) and ("skipTest(" in text or "unittest.skip" in text):
                self.assertIn("verbosity=2", text, file)


if __name__ == "__main__":
    unittest.main()
