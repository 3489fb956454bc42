"""tools/lint/tidy looks at sources in batches: what it finds is told of the right source, names that clash are no
finding, and a source is looked at again only when something about it has changed."""
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = {
    "lib/base/one.cpp": '#include "lib/base/shared.h"\nnamespace { int helper() { return kShared; } }\n'
                        "int one() { return helper(); }\n",
    "lib/base/two.cpp": "namespace { int other() { return 2; } }\nint two() { return other(); }\n",
    "lib/base/three.cpp": "int three() { return 3; }\n",
    "lib/base/shared.h": "#pragma once\ninline constexpr int kShared = 1;\n",
    "tools/a/first.cpp": "int main() {}\n",
    "tools/a/second.cpp": "int main() {}\n",
    "tests/out.cpp": "int Not_Looked_At() { return 1; }\n",
}


class Tidy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name, text in SOURCES.items():
            self.write(name, text)
        (self.root / "tools/lint").mkdir()
        shutil.copy(PROJECT / "tools/lint/tidy", self.root / "tools/lint/tidy")
        shutil.copy(PROJECT / ".clang-tidy", self.root / ".clang-tidy")
        (self.root / "build").mkdir()
        commands = [{"directory": str(self.root / "build"), "file": f"../{name}",
                     "command": f"/usr/bin/c++ -I.. -I{self.root} -std=gnu++20 -include pch.hxx -o {name}.o -c ../{name}"}
                    for name in SOURCES if name.endswith(".cpp")]
        commands.append({"directory": str(self.root / "build"), "file": "../lib/base/kernel.cu",
                         "command": "/usr/local/cuda/bin/nvcc -x cu -c ../lib/base/kernel.cu"})
        (self.root / "build/compile_commands.json").write_text(json.dumps(commands), encoding="utf-8")

    def write(self, name, text):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def tidy(self, code):
        """The findings per source, and how many sources were looked at."""
        done = subprocess.run([sys.executable, str(self.root / "tools/lint/tidy"), str(self.root / "build")],
                              capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        parts = re.split(r"^-- (.*)$", done.stdout, flags=re.MULTILINE)
        looked = int(re.search(r"(\d+) looked at in", done.stdout)[1])
        return dict(zip(parts[1::2], parts[2::2])), looked

    def test_sources_that_are_compiled_together_are_looked_at_each(self):
        together = self.root / "build/lib/CMakeFiles/peal.dir/Unity/unity_0_cxx.cxx"
        names = ("one", "two", "three")
        self.write(together, "".join(f'#include "{self.root}/lib/base/{name}.cpp"\n' for name in names))
        (self.root / "build/compile_commands.json").write_text(json.dumps([
            {"directory": str(self.root / "build"), "file": str(together),
             "command": f"/usr/bin/c++ -I{self.root} -std=gnu++20 -o one.o -c {together}"}]), encoding="utf-8")
        self.write("lib/base/two.cpp", "int Wrong_Name() { return 2; }\n")
        found, looked = self.tidy(1)
        self.assertEqual((list(found), looked), (["lib/base/two.cpp"], 3))

    def test_looks_again_only_at_what_changed(self):
        self.assertEqual(self.tidy(0), ({}, 5))
        self.assertEqual(self.tidy(0), ({}, 0))
        self.write("lib/base/shared.h", "#pragma once\ninline constexpr int kShared = 2;\n")
        self.assertEqual(self.tidy(0), ({}, 1))

    def test_a_finding_is_told_of_its_source_and_again(self):
        self.write("lib/base/two.cpp", "int Two_Things() { return 2; }\n")
        for looked in (5, 1):
            findings, count = self.tidy(1)
            self.assertEqual(count, looked)
            self.assertEqual(list(findings), ["lib/base/two.cpp"])
            self.assertIn("lib/base/two.cpp:1:5: error: invalid case style for function 'Two_Things'",
                          findings["lib/base/two.cpp"])

    def test_a_finding_in_a_header_is_one(self):
        self.write("lib/base/shared.h", SOURCES["lib/base/shared.h"] + "inline int Also() { return 1; }\n")
        self.assertEqual(list(self.tidy(1)[0]), ["lib/base/one.cpp"])

    def test_names_that_clash_are_no_finding(self):
        self.write("lib/base/two.cpp", "namespace { int helper() { return 2; } }\nint two() { return helper(); }\n")
        self.assertEqual(self.tidy(0), ({}, 5))

    def test_what_does_not_compile_is_a_finding(self):
        self.write("lib/base/three.cpp", "int three() { return missing(); }\n")
        findings, _ = self.tidy(1)
        self.assertEqual(list(findings), ["lib/base/three.cpp"])
        self.assertIn("undeclared identifier 'missing'", findings["lib/base/three.cpp"])


if __name__ == "__main__":
    unittest.main()
