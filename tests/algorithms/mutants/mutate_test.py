"""mutate.py ends the build when a line of its table no longer stands exactly once in its function."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parents[2] / "algorithms"
LINE = "port.recvReduceCopy(previous, c);"


class Mutate(unittest.TestCase):
    def run_with(self, change):
        """Runs mutate.py on the headers, ring.h changed by `change`; returns exit code, message, output."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("ring.h", "direct.h", "chunk.h", "grouping.h", "hierarchical.h", "hierarchical_ring.h", "tree.h"):
                text = (HEADERS / name).read_text(encoding="utf-8")
                (Path(folder) / name).write_text(change(text) if name == "ring.h" else text, encoding="utf-8")
            output = Path(folder) / "mutants.cpp"
            run = subprocess.run([sys.executable, HERE / "mutate.py", folder, output], capture_output=True,
                                 text=True, timeout=60)
            return run.returncode, run.stderr, output.read_text(encoding="utf-8") if output.exists() else None

    def test_writes_the_defects(self):
        code, message, output = self.run_with(lambda text: text)
        self.assertEqual((code, message), (0, ""))
        self.assertIn("return (port.rank() + 2) % port.size();", output)

    def test_refuses_a_line_that_is_gone(self):
        code, message, output = self.run_with(lambda text: text.replace(LINE, "port.recvReduceCopy(c, previous);"))
        self.assertNotEqual(code, 0)
        self.assertIn(f"ringReduce has the line '{LINE}' 0 times", message)
        self.assertIsNone(output)

    def test_refuses_a_line_that_stands_twice(self):
        code, message, _ = self.run_with(lambda text: text.replace(LINE, LINE + "\n    " + LINE))
        self.assertNotEqual(code, 0)
        self.assertIn(f"ringReduce has the line '{LINE}' 2 times", message)

    def test_refuses_a_function_that_is_gone(self):
        code, message, _ = self.run_with(lambda text: text.replace("ringPrevious(", "ringBefore("))
        self.assertNotEqual(code, 0)
        self.assertIn("found 0 definitions of ringPrevious", message)


if __name__ == "__main__":
    unittest.main()
