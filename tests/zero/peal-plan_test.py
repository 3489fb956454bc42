"""The command peal-plan: cases of zero-vectors.json through its flags, the table, and wrong command lines.

    peal-plan_test.py PROGRAM VECTORS
"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM, VECTORS = sys.argv[1], sys.argv[2]
with open(VECTORS, encoding="utf-8") as vectors:
    CASES = {case["id"]: case for case in json.load(vectors)}


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


def plan(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Cases(unittest.TestCase):
    def near(self, actual, printed):
        """Equal to half a unit of the last digit of what the case prints."""
        text = repr(printed)
        decimals = len(text.split(".")[1]) if "." in text and "e" not in text else 0
        self.assertAlmostEqual(actual, printed, delta=0.50001 * 10**-decimals + 1e-12 * abs(printed))

    def test_memory_of_thirteen_billion(self):
        expected = CASES["M04"]["expected"]
        stages = plan("-p", "13B", "-n", 32, "-g", 8)["stages"]
        for name, stage in {"ddp": "0", "z1": "1", "z2": "2", "z3": "3", "hsdp_G8": "hsdp"}.items():
            self.near(stages[stage]["memory"]["modelStates"], expected[name])

    def test_fp32_without_master(self):
        stages = plan("-p", 1000, "-n", 4, "--weight-bytes", 4, "--gradient-bytes", 4, "--optimizer-bytes", 8)
        self.assertEqual(stages["stages"]["1"]["memory"]["modelStates"], 8 * 1000 + 8 * 1000 // 4)

    def test_units_of_stage_three(self):
        def buffers(*arguments):
            memory = plan("-p", 1000, "-n", 4, *arguments)["stages"]["3"]["memory"]
            self.assertEqual(memory["total"], sum(memory[name] for name in (
                "modelStates", "gradientBuffers", "unitBuffers", "activations")))
            return memory["unitBuffers"], memory["gradientBuffers"]
        self.assertEqual(buffers("--units", 4), (1500, 1500))  # three buffers of 250 elements
        self.assertEqual(buffers("--units", 2), (2000, 2000))  # no more buffers than units
        self.assertEqual(buffers("--layers", 4), (1500, 1500))
        note = "leave out its buffers"
        self.assertIn(note, run("-p", "1000", "-n", "4").stdout)
        self.assertNotIn(note, run("-p", "1000", "-n", "4", "--units", "1").stdout)

    def test_activations(self):
        inputs, expected = CASES["A01"]["inputs"], CASES["A01"]["expected"]
        made = plan("-p", "13B", "-n", 32, "--sequence", inputs["s"], "--hidden", inputs["h"], "--sequences",
                    inputs["b"], "--layers", inputs["L"])
        self.near(made["stages"]["0"]["memory"]["activations"] / 1e9, expected["total_GB"])

    def test_communication(self):
        inputs, expected = CASES["C06"]["inputs"], CASES["C06"]["expected"]
        command = ["-p", inputs["P"], "-n", inputs["N"], "-g", 8, "--bandwidth", inputs["W"],
                   "--group-bandwidth", inputs["NVL"]]
        stages = plan(*command, "--replica-sum-bytes", 0)["stages"]  # as published
        self.near(stages["3"]["communication"]["bytesSent"] / 1e9, expected["z3_GB"])
        self.near(stages["3"]["time"]["networkSeconds"], expected["z3_s"])
        self.near(stages["hsdp"]["communication"]["groupBytesSent"] / 1e9, expected["hsdp_nvl_GB"])
        self.near(stages["hsdp"]["time"]["groupSeconds"], expected["hsdp_nvl_s"])
        self.near(stages["hsdp"]["time"]["networkSeconds"], expected["hsdp_net_s"])

        # peal's engine: 4 bytes one way, 2 the other.
        own = plan(*command)["stages"]["hsdp"]["communication"]
        self.assertAlmostEqual(own["bytesSent"], 1.5 * stages["hsdp"]["communication"]["bytesSent"])

    def test_the_reason_is_what_was_compared(self):
        command = ("-p", "13B", "-n", 32, "-g", 8, "--memory", "80GB", "--units", 40)
        made = plan(*command, "--bandwidth", "400Gbit", "--group-bandwidth", "450GB", "--latency", "5us")
        self.assertEqual(made["input"]["networkBytesPerSecond"], 5e10)
        self.assertEqual(made["input"]["latencySeconds"], 5e-6)
        chosen = made["stages"][made["recommended"]]
        spent = {stage: row["time"]["networkSeconds"] + row["time"]["groupSeconds"]
                 for stage, row in made["stages"].items() if row["memory"]["fits"]}
        self.assertEqual(min(spent, key=spent.get), made["recommended"])
        self.assertRegex(made["reason"], r"^It spends least time on communication of the stages that fit in 80 GB, ")
        self.assertIn(f"{1e3 * spent[made['recommended']]:.4g} ms a step, for "
                      f"{chosen['communication']['bytesSent'] / 1e9:.4g} GB sent between groups", made["reason"])
        self.assertRegex(plan(*command)["reason"], r"^It communicates least of the stages that fit in 80 GB, ")

    def test_activations_that_nobody_gave(self):
        note = "Totals leave out activations: add --activations"
        for arguments in ((), ("--layers", 32)):
            table = run("-p", "7B", "-n", 64, *arguments).stdout
            self.assertRegex(table, r"activations +not given +not given")
            self.assertIn(note, table)
        for arguments in (("--activations", "1GB"), ("--layers", 32, "--hidden", 4096, "--sequence", 2048)):
            table = run("-p", "7B", "-n", 64, *arguments).stdout
            self.assertNotIn("not given", table)
            self.assertNotIn(note, table)

    def test_micro_batches_and_calls(self):
        expected = CASES["C03"]["expected"]
        made = plan("-p", "1M", "-n", 8, "-m", CASES["C03"]["inputs"]["m"], "--units", 1)
        self.assertEqual(made["stages"]["3"]["communication"]["allGathers"], expected["all_gathers_per_layer"])
        self.assertEqual(made["stages"]["3"]["communication"]["reduceScatters"],
                         expected["reduce_scatters_per_layer"])
        self.assertEqual(made["stages"]["2"]["communication"]["elements"], 9e6)
        each = plan("-p", "1M", "-n", 8, "-m", 8, "--reduce-each")
        self.assertEqual(each["stages"]["0"]["communication"]["elements"], 16e6)
        kept = plan("-p", "1M", "-n", 8, "--no-reshard")
        self.assertEqual(kept["stages"]["3"]["communication"]["elements"], 2e6)

    def test_link_classes_of_a_described_cluster(self):
        described = {"format": "peal-topology-1", "insideNode": {"gigabytesPerSecond": 400},
                     "nodes": [{"count": 4, "gpus": [{}] * 8,
                                "nics": [{"rdma": f"mlx5_{i}", "speedMbps": 400000} for i in range(8)] +
                                        [{"interface": "eno1", "speedMbps": 1000, "addresses": ["10.0.0.1/24"]}]}]}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cluster.json"
            path.write_text(json.dumps(described), encoding="utf-8")
            made = plan("-p", "1B", "--topology", path, "-g", 8)
            self.assertEqual(made["input"]["ranks"], 32)
            self.assertEqual(made["cluster"], {"nodes": 4, "ranksPerNode": 8, "insideBytesPerSecond": 4e11,
                                               "betweenBytesPerSecond": 5e10})
            stage, hsdp = made["stages"]["2"], made["stages"]["hsdp"]
            # 4 GB of bf16 gradients and weights: 7/8 of each inside, and of the eighth 3/4 between nodes, twice.
            self.assertAlmostEqual(stage["links"]["betweenBytes"], 2 * 2e9 / 8 * 3 / 4)
            self.assertAlmostEqual(stage["links"]["insideBytes"], 2 * 2e9 * 7 / 8)
            self.assertAlmostEqual(stage["links"]["betweenSeconds"], stage["links"]["betweenBytes"] / 5e10)
            self.assertAlmostEqual(stage["links"]["insideSeconds"], stage["links"]["insideBytes"] / 4e11)
            for row in (stage, hsdp):
                self.assertAlmostEqual(sum(row["links"][key] for key in ("insideBytes", "betweenBytes")),
                                       row["communication"]["bytesSent"] + row["communication"]["groupBytesSent"])
            # Shard groups are nodes: all of the group's bytes stay inside.
            self.assertAlmostEqual(hsdp["links"]["insideBytes"], hsdp["communication"]["groupBytesSent"])
            # Groups of two nodes: of the 15 shards that a rank sends, one leaves the node.
            wide = plan("-p", "1B", "--topology", path, "-g", 16)["stages"]["hsdp"]
            self.assertAlmostEqual(wide["links"]["betweenBytes"], wide["communication"]["groupBytesSent"] / 15 +
                                   wide["communication"]["bytesSent"])
            # Groups of four, two in a node: of a rank's 7 other replicas one is in its node.
            small = plan("-p", "1B", "--topology", path, "-g", 4)["stages"]["hsdp"]
            self.assertAlmostEqual(small["links"]["insideBytes"], small["communication"]["groupBytesSent"] +
                                   small["communication"]["bytesSent"] * 4 / 7)
            table = run("-p", "1B", "--topology", path).stdout
            self.assertRegex(table, r"Sent per rank, 4 x 8 ranks")
            self.assertRegex(table, r"bytes between nodes +375.0 M")
            part = plan("-p", "1B", "--topology", path, "-n", 4)
            self.assertEqual((part["cluster"]["nodes"], part["cluster"]["ranksPerNode"]), (1, 4))
            self.assertEqual(part["stages"]["1"]["links"]["betweenBytes"], 0)
            for wrong, words in ((("-n", 20), "--ranks 20 do not fill nodes of the topology: it has 4 of 8 ranks"),
                                 (("-n", 64), "it has 4 of 8 ranks"), (("-g", 6), "--group 6 lies unevenly")):
                done = run("-p", "1B", "--topology", path, *wrong)
                self.assertEqual(done.returncode, 2)
                self.assertIn(words, done.stderr)
            path.write_text(json.dumps({"format": "peal-topology-1", "nodes": [{"name": "cpu"}]}), encoding="utf-8")
            self.assertIn('node cpu has no GPUs and does not say "ranks"',
                          run("-p", "1B", "--topology", path).stderr)
            path.write_text("{}", encoding="utf-8")
            self.assertIn("cluster.json.format", run("-p", "1B", "--topology", path).stderr)

    def test_overlap(self):
        inputs = CASES["T01"]["inputs"]
        made = plan("-p", "1B", "-n", 8, "--flops", inputs["F"], "--bandwidth", inputs["W"])
        self.near(made["stages"]["2"]["time"]["tokensToHide"], CASES["T01"]["expected"]["T"] * 7 / 8)
        wide = plan("-p", "1B", "-n", 8, "--flops", inputs["F"], "--bandwidth", inputs["W"], "--reduce-bytes", 4)
        self.near(wide["stages"]["0"]["time"]["tokensToHide"], 2 * CASES["T01"]["expected"]["T"] * 7 / 8)

    def test_computing(self):
        inputs, expected = CASES["T08"]["inputs"], CASES["T08"]["expected"]
        made = plan("-p", "13B", "-n", 8, "-t", inputs["T"], "--flops", "400T")
        self.near(made["computeSeconds"], expected["step_s"])
        self.near(made["backwardSeconds"], expected["bwd_s"])
        self.near(made["flops"], expected["flops"])

    def test_recommendation(self):
        self.assertEqual(plan("-p", "70B", "-n", 128, "--memory", "80GB")["recommended"], "3")
        self.assertIsNone(plan("-p", "70B", "-n", 8, "--memory", "80GB")["recommended"])


class CommandLine(unittest.TestCase):
    def test_table(self):
        done = run("-p", "13B", "-n", 32, "-g", 8, "--memory", "80GB", "--bandwidth", "50GB")
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("208.0 G", "56.88 G", "31.69 G", "6.500 G", "26.00 G", "75.56 G", "HSDP", "Recommended:"):
            self.assertIn(text, done.stdout)
        one = run("-p", "13B", "-n", 32, "-s", 2)
        self.assertIn("31.69 G", one.stdout)
        self.assertNotIn("stage 3", one.stdout.split("Recommended")[0])

    def test_help(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("--parameters", done.stdout)

    def test_wrong_command_lines(self):
        for arguments, said in (
                ((), "--parameters"),
                (("-p", "7X", "-n", 8), "7X"),
                (("-p", "1e20", "-n", 8), "more than 1e+18"),
                (("-p", "7B", "-n", 0), "ranks is 0"),
                (("-p", "7B", "-n", 8, "-g", 3), "group of 3 does not divide"),
                (("-p", "7B", "-n", 8, "-s", "4"), "--stage 4"),
                (("-p", "7B", "-n", 8, "-s", "hsdp"), "--group"),
                (("-p", "7B", "-n", 8, "--rank", 8), "rank is 8"),
                (("-p", "7B", "-n", 8, "--activations", "1GB", "--layers", 3), "--layers"),
                (("-p", "7B", "-n", 8, "--memory", "80"), "--memory 80 is 80 bytes; is 80GB meant?"),
                (("-p", "7B", "-n", 8, "--latency", "5h"), '--latency: "5h" is not a quantity; write it like 5us'),
                (("-p", "7B", "-n", 8, "--no-such-flag"), "no-such-flag")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
