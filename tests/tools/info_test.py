"""peal-info as a person runs it: tables, JSON, help, a wrong option, a wrong configuration."""
import json
import os
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)


def run(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PEAL_")}
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=30, check=False,
                          env={**environment, **variables})


class PealInfo(unittest.TestCase):
    def test_tables(self):
        result = run()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        words = [line.split() for line in result.stdout.splitlines()]
        self.assertRegex(result.stdout, r"^peal \d+\.\d+\.\d+\n")
        self.assertIn(["shm", "yes"], [line[:2] for line in words])
        self.assertIn(["verbs", "no", "not", "built", "into", "this", "version"], words)
        self.assertIn(["PEAL_PORT", "0", "default"], words)
        self.assertIn(["PEAL_SECRET", "not", "set", "default"], words)

    def test_origin_and_secrets(self):
        result = run(PEAL_SLOTS="8", PEAL_SECRET="correct horse")
        words = [line.split() for line in result.stdout.splitlines()]
        self.assertIn(["PEAL_SLOTS", "8", "environment"], words)
        self.assertIn(["PEAL_SECRET", "(hidden)", "environment"], words)
        self.assertNotIn("correct horse", result.stdout + run("--json", PEAL_SECRET="correct horse").stdout)

    def test_config_explains_every_knob(self):
        knobs = json.loads(run("--json").stdout)["configuration"]["knobs"]
        self.assertGreater(len(knobs), 5)
        text = run("--config").stdout
        for knob in knobs:
            self.assertIn(f"{knob['name']} = ", text)
            self.assertIn(knob["help"], text)
        self.assertIn("legal auto|ring", text)
        self.assertNotIn("transports", text)

    def test_json(self):
        info = json.loads(run("--json").stdout)
        self.assertEqual([part["name"] for part in info["transports"] if part["found"]], ["shm"])
        self.assertEqual(json.loads(run("--config", "--json").stdout), info["configuration"])

    def test_a_wrong_configuration_is_told_and_an_error(self):
        for arguments in ((), ("--config",), ("--json",)):
            result = run(*arguments, PEAL_PORT="-1")
            self.assertEqual(result.returncode, 2)
            self.assertIn('PEAL_PORT="-1" is not a whole number from 0 to 65535', result.stderr)
            self.assertIn("PEAL_TIMEOUT_MS", result.stdout)

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            result = subprocess.run([PROGRAM], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30,
                                    check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write the output: No space left on device", result.stderr)

    def test_help_and_wrong_options(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("--config", result.stdout)
        for wrong in ("--confg", "extra"):
            result = run(wrong)
            self.assertEqual(result.returncode, 2)
            self.assertIn(wrong, result.stderr)
            self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main()
