"""The dependency check accepts what DESIGN.md allows and names each seeded violation, with file and line."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "tools/lint/check-dependencies"

CLEAN = {
    "include/peal/peal.h": "#include <stddef.h>\n",
    "lib/base/result.h": '#include <string>\n#include "peal/peal.h"\n',
    "lib/base/config.cpp": 'char* read() { return std::getenv("PEAL_X"); }\n',
    "lib/memory/registry.h": '#include "lib/base/result.h"\n',
    "lib/reduce/reduce.h": '#include "peal/peal.h"\n',
    "lib/executor/host/port.cpp": '#include "algorithms/ring.h"\n#include "transports/transport.h"\n'
                                  '#include "lib/reduce/reduce.h"\n#include <thread>\n',
    "lib/comm/comm.cpp": '#include "transports/shm/shm.h"\n#include "lib/executor/host/port.h"\n',
    "lib/executor/host/port.h": "",
    "lib/zero/adamw.cpp": '#include "peal/peal.h"\n#include "lib/reduce/reduce.h"\n',
    "transports/transport.h": '#include "lib/base/result.h"\n',
    "transports/shm/shm.h": '#include "transports/transport.h"\n#include "lib/memory/registry.h"\n',
    "transports/verbs/verbs.h": '#include "transports/transport.h"\n',
    "algorithms/ring.h": "#include <cstddef>\n",
    "algorithms/record/check.cpp": '#include "algorithms/ring.h"\n#include <vector>\n',
    "algorithms/record/check.h": '#include "algorithms/record/trace.h"\n',
    "algorithms/record/trace.h": "",
    "tools/common/table.h": "",
    "tools/info/main.cpp": '#include "peal/peal.h"\n#include "tools/common/table.h"\n#include <CLI/CLI.hpp>\n',
    "bench/perf.cpp": '#include "peal/peal.h"\n#include <nlohmann/json.hpp>\n',
    "tests/unit/a_test.cpp": '#include "lib/comm/comm.h"\n#include <gtest/gtest.h>\n',
    "lib/comm/comm.h": "",
}

# File, line that is put in front of it, and words of the expected sentence.
SEEDED = [
    ("lib/base/result.h", '#include "lib/reduce/reduce.h"', "lib/base may not include lib/reduce/reduce.h"),
    ("lib/memory/registry.h", '#include "lib/comm/comm.h"', "lib/memory may not include"),
    ("lib/reduce/reduce.h", '#include "lib/memory/registry.h"', "lib/reduce may not include"),
    ("lib/executor/host/port.cpp", '#include "transports/shm/shm.h"', "lib/executor may not include"),
    ("lib/executor/host/port.cpp", '#include "lib/comm/comm.h"', "lib/executor may not include"),
    ("lib/zero/adamw.cpp", '#include "lib/comm/comm.h"', "lib/zero may not include"),
    ("transports/shm/shm.h", '#include "transports/verbs/verbs.h"', "transports/shm may not include"),
    ("transports/shm/shm.h", '#include "lib/comm/comm.h"', "transports/shm may not include"),
    ("algorithms/ring.h", "#include <thread>", "may not include <thread>"),
    ("algorithms/ring.h", "#include <sys/socket.h>", "may not include <sys/socket.h>"),
    ("algorithms/ring.h", '#include "lib/base/result.h"', "algorithms may not include"),
    ("transports/transport.h", '#include "transports/shm/shm.h"', "transports may not include"),
    ("algorithms/ring.h", '#include "algorithms/record/check.h"', "algorithms may not include"),
    ("algorithms/ring.h", '#include "peal/peal.h"', "algorithms may not include"),
    ("tools/info/main.cpp", '#include "lib/base/result.h"', "tools/info may not include"),
    ("bench/perf.cpp", "  #  include \"lib/comm/comm.h\"", "bench may not include"),
    ("include/peal/peal.h", '#include "lib/base/result.h"', "include/peal may not include"),
    ("include/peal/peal.h", "#include <fmt/format.h>", "may not use fmt/format.h"),
    ("lib/comm/comm.cpp", "#include <nlohmann/json.hpp>", "may not use nlohmann/json.hpp"),
    ("lib/comm/comm.cpp", "#include <hwloc.h>", "may not use hwloc.h"),
    ("lib/comm/comm.cpp", '#include "port.h"', "there is no port.h"),
    ("lib/comm/comm.cpp", 'int x = atoi(getenv("PEAL_X"));', "getenv"),
    ("tools/info/main.cpp", 'int x = atoi(std::getenv("PEAL_X"));', "getenv"),
    ("tests/unit/a_test.cpp", '#include "peal/peal.hpp"\n#include "lib/comm/comm.h"', "both the C++ face"),
    ("tests/unit/a_test.cpp", '#include "lib/comm/comm.h"\n#include "peal/element.hpp"', "both the C++ face"),
    ("lib/novel/a.cpp", "#include <vector>", "has no row in the table"),
]


def run(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True, timeout=60,
                              check=False)


class CheckDependencies(unittest.TestCase):
    def test_accepts_a_clean_tree(self):
        result = run(CLEAN)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn(f"{len(CLEAN)} files, 0 violations", result.stdout)

    def test_names_each_seeded_violation(self):
        for file, line, sentence in SEEDED:
            with self.subTest(file=file, line=line):
                result = run({**CLEAN, file: line + "\n" + ("" if chr(10) in line else CLEAN.get(file, ""))})
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn(f"{file}:{1 + line.count(chr(10))}: ", result.stdout)
                self.assertIn(sentence, result.stdout)
                self.assertIn(" 1 violations", result.stdout)

    def test_counts_all_violations(self):
        bad = '#include "lib/comm/comm.h"\n'
        result = run({**CLEAN, "lib/base/a.h": bad, "lib/reduce/b.h": "\n" + bad})
        self.assertIn("lib/base/a.h:1: ", result.stdout)
        self.assertIn("lib/reduce/b.h:2: ", result.stdout)
        self.assertIn(" 2 violations", result.stdout)

    def test_an_empty_tree_is_a_fault(self):
        self.assertEqual(run({}).returncode, 1)


if __name__ == "__main__":
    unittest.main()
