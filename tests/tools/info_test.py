"""peal-info as a person runs it: tables, JSON, topology, help, a wrong option, a wrong configuration."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

PROGRAM = sys.argv.pop(1)


def run(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PEAL_")}
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env={**environment, **variables})


def dgx():
    """A described machine: two packages, four PCI switches with two GPUs and two NICs each, one Ethernet card."""
    gpus, nics = [], []
    for i in range(8):
        branch = i // 2
        place = {"bridges": f"pci0000:{branch + 1}0/0000:{branch + 1}0:01.0", "numaNode": i // 4}
        peers = ",".join(str(k) for k in range(8) if k != i)
        gpus.append({"name": "NVIDIA H200", "memoryBytes": 141 << 30, "pci": f"0000:{branch + 1}{2 + i % 2}:00.0",
                     "peers": peers, **place})
        nics.append({"rdma": f"mlx5_{i}", "kind": "infiniband", "speedMbps": 400000, "driver": "mlx5_core",
                     "pci": f"0000:{branch + 1}{4 + i % 2}:00.0", **place})
    nics.append({"interface": "eno1", "speedMbps": 1000, "addresses": ["10.0.0.1/24"]})
    nics.append({"interface": "lo", "kind": "loopback"})
    packages = [{"id": p, "model": "Intel(R) Xeon(R) Platinum 8480C", "cpus": f"{56 * p}-{56 * p + 55}"}
                for p in range(2)]
    return {"format": "peal-topology-1",
            "nodes": [{"name": "dgx & <co>", "count": 4, "packages": packages, "allowedCpus": "0-55",
                       "numaNodes": [{"cpus": p["cpus"], "memoryBytes": 1 << 40} for p in packages],
                       "caches": [{"level": 3, "bytes": 105 << 20, "cpus": p["cpus"]} for p in packages] +
                                 [{"level": 2, "bytes": 2 << 20, "cpus": str(cpu)} for cpu in range(112)],
                       "cores": [{"cpus": str(cpu)} for cpu in range(112)], "gpus": gpus, "nics": nics,
                       "pciDevices": [{"kind": "storage", "pci": "0000:55:00.0", "bridges": "pci0000:50",
                                       "numaNode": 0}]}]}


class Topology(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.described = self.folder / "dgx.json"
        self.described.write_text(json.dumps(dgx()), encoding="utf-8")

    def test_this_machine_as_a_tree(self):
        result = run("--topology")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        allowed = sorted(os.sched_getaffinity(0))
        self.assertRegex(result.stdout.splitlines()[0], rf": CPUs? {allowed[0]}(-|,| ).*allowed")
        self.assertIn("NIC lo", result.stdout)
        self.assertIn("idle: reaches this machine only", result.stdout.replace("\n", " "))

    def test_binding_is_respected(self):
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            self.skipTest("this machine allows a single processor: there is nothing to leave out")
        result = subprocess.run([PROGRAM, "--topology", "--json"], capture_output=True, text=True, timeout=60,
                                check=True, preexec_fn=lambda: os.sched_setaffinity(0, {allowed[-1]}))
        self.assertEqual(json.loads(result.stdout)["nodes"][0]["allowedCpus"], str(allowed[-1]))

    def test_what_is_written_is_read(self):
        written = self.folder / "machine.json"
        for source in ((), ("--from", str(self.described))):
            first = run("--topology", "--json", *source)
            self.assertEqual((first.returncode, first.stderr), (0, ""))
            written.write_text(first.stdout, encoding="utf-8")
            self.assertEqual(run("--from", str(written), "--json").stdout, first.stdout)
            self.assertEqual(run("--topology", "--json", PEAL_TOPOLOGY_FILE=str(written)).stdout, first.stdout)

    def test_a_described_machine_as_a_tree(self):
        result = run("--from", str(self.described))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = result.stdout.splitlines()
        self.assertTrue(lines[0].startswith("dgx & <co> (one of 4 alike): CPUs 0-55 allowed"))
        self.assertLessEqual(max(len(line) for line in lines), 100)
        text = " ".join(result.stdout.translate({ord(c): " " for c in "│├└─"}).split())
        for words in ("package 1: Intel(R) Xeon(R) Platinum 8480C, CPUs 56-111, not allowed",
                      "56 cores: each L2 2 MiB, CPUs 0-55", "PCI bridge 0000:20:01.0", "storage 0000:55:00.0",
                      "GPU 3: NVIDIA H200, 141 GiB, 0000:23:00.0, peers 0-2,4-7, rail 3",
                      "NIC mlx5_3 port 1: infiniband 400 Gbit/s, mlx5_core 0000:25:00.0, rail 3 for GPU 3",
                      "idle: has no RDMA, and mlx5_0 has"):
            self.assertIn(words, text)

    def test_a_drawing_holds_every_object(self):
        drawing = self.folder / "dgx.svg"
        result = run("--from", str(self.described), "--svg", str(drawing))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        root = xml.etree.ElementTree.parse(drawing).getroot()
        svg = "{http://www.w3.org/2000/svg}"
        self.assertEqual(root.tag, svg + "svg")
        groups = [group for group in root.iter(svg + "g")]
        count = {name: sum(group.get("class") == name for group in groups)
                 for name in ("node", "package", "numa", "cache", "core", "gpu", "nic", "device")}
        self.assertEqual(count, {"node": 1, "package": 2, "numa": 2, "cache": 2, "core": 112, "gpu": 8, "nic": 10,
                                 "device": 1})
        texts = [text.text for text in root.iter(svg + "text")]
        self.assertIn("dgx & <co> (one of 4 alike)", texts)
        self.assert_inside_and_apart(root, svg)

    def assert_inside_and_apart(self, root, svg):
        """Every box lies in the one around it, and boxes side by side do not touch."""
        def outline(group):
            rect = group.find(svg + "rect")
            x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
            return x, y, x + width, y + height

        def look(group):
            children = group.findall(svg + "g")
            if group.tag == svg + "g":
                for child in children:
                    (x0, y0, x1, y1), (a0, b0, a1, b1) = outline(group), outline(child)
                    self.assertTrue(x0 < a0 and y0 < b0 and a1 < x1 and b1 < y1, child.findtext(svg + "title"))
            for i, one in enumerate(children):
                for other in children[:i]:
                    (x0, y0, x1, y1), (a0, b0, a1, b1) = outline(one), outline(other)
                    self.assertTrue(x1 <= a0 or a1 <= x0 or y1 <= b0 or b1 <= y0)
                look(one)

        look(root)

    def test_wrong_files_and_options(self):
        broken = self.folder / "broken.json"
        broken.write_text('{"format": "peal-topology-1", "nodes": [{"gpu": []}]}', encoding="utf-8")
        for result in (run("--from", str(broken)), run("--topology", PEAL_TOPOLOGY_FILE=str(broken))):
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(f'{broken}.nodes[0]: "gpu" is not known there', result.stderr)
        result = run("--from", str(self.folder / "none.json"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("none.json cannot be read: No such file", result.stderr)
        result = run("--svg", str(self.folder / "no-folder/x.svg"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("x.svg: No such file or directory", result.stderr)
        self.assertEqual(run("--topology", "--config").returncode, 2)
        result = run("--svg", str(self.folder / "x.bmp"))
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("x.bmp\": the topology is drawn as SVG, so the name must end in .svg.", result.stderr)
        self.assertFalse((self.folder / "x.bmp").exists())


class PealInfo(unittest.TestCase):
    def test_tables(self):
        result = run()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        words = [line.split() for line in result.stdout.splitlines()]
        self.assertRegex(result.stdout, r"^peal \d+\.\d+\.\d+\n")
        self.assertIn(["shm", "yes"], [line[:2] for line in words])
        self.assertTrue([line for line in words if line[:1] == ["verbs"] and line[1] in ("yes", "no") and line[2:]],
                        "whether there is a device, and why")
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
        self.assertIn("shm", [part["name"] for part in info["transports"] if part["found"]])
        self.assertEqual(json.loads(run("--config", "--json").stdout), info["configuration"])

    def test_explains_a_choice(self):
        call = ("--explain", "all_reduce", "4M", "--nodes", "2", "--ranks-per-node", "4")
        result = run(*call)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("all_reduce of 4194304 bytes on 2 nodes of 4 ranks", result.stdout)
        self.assertIn("links (assumed, not measured)", result.stdout)
        self.assertIn("hierarchicalAllReduce", result.stdout)
        self.assertRegex(result.stdout, r"chosen: hierarchical: hierarchical is predicted to be [\d.]+ times as fast")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "links")
            with open(path, "w", encoding="ascii") as file:
                file.write("".join(f"{where}_{what} 1\n" for where in ("inside", "between")
                                   for what in ("latency_us", "gap_us", "us_per_byte")))
            answer = json.loads(run(*call, "--json", PEAL_TUNER_FILE=path, PEAL_ALGO="ring", PEAL_TRANSPORT="tcp").stdout)
        self.assertTrue(answer["links"]["measured"])
        self.assertEqual((answer["chosen"], answer["reason"]), ("ring", "PEAL_ALGO=ring forces it; between nodes over tcp"))
        times = [candidate["predictedUs"] for candidate in answer["candidates"]]
        self.assertEqual(times, sorted(times))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cluster.json")
            with open(path, "w", encoding="ascii") as file:
                json.dump({"format": "peal-topology-1", "betweenNodes": {"gigabytesPerSecond": 2, "latencyUs": 3},
                           "nodes": [{"name": "a", "count": 2, "ranks": 4}]}, file)
            answer = json.loads(run(*call, "--json", PEAL_TOPOLOGY_FILE=path).stdout)
        self.assertEqual((answer["links"]["measured"], answer["links"]["described"]), (False, True))
        self.assertAlmostEqual(answer["links"]["between"]["usPerByte"], 1 / 8000)
        self.assertIn("PEAL_TOPOLOGY_FILE describes", answer["reason"])
        # One rank on each node: cut as a communicator cuts it, for what carries it there.
        apart = ("--explain", "all_reduce", "16M", "--nodes", "2", "--ranks-per-node", "1", "--json")
        answer = json.loads(run(*apart, PEAL_TRANSPORT="tcp").stdout)
        self.assertEqual((answer["chosen"], answer["candidates"][0]["chunkBytes"]), ("two_shot", 2 * 262144))
        self.assertNotIn("hierarchical", [candidate["algorithm"] for candidate in answer["candidates"]])
        self.assertIn("between nodes over tcp, where 2 messages of 262144 bytes", answer["reason"])
        self.assertIn("between nodes over tcp;", json.loads(run(*call, "--json", PEAL_TRANSPORT="tcp").stdout)["reason"])
        deterministic = run(*call, PEAL_DETERMINISTIC="1", PEAL_ALGO="tree")
        self.assertIn("legal are: one_shot, two_shot", deterministic.stderr)
        for wrong in (("all_to_all", "1K"), ("all_reduce", "many")):
            result = run("--explain", *wrong)
            self.assertEqual(result.returncode, 2)
            self.assertIn(wrong[0] if wrong[1] == "1K" else wrong[1], result.stderr)

    def test_explains_that_ranks_outnumber_processors(self):
        crowd = str(len(os.sched_getaffinity(0)) + 1)
        for ranks, size, chosen in ((crowd, "32K", "one_shot"), ("2", "32K", "one_shot"), ("2", "64K", "two_shot")):
            answer = json.loads(run("--explain", "all_reduce", size, "--ranks-per-node", ranks, "--json").stdout)
            self.assertEqual(answer["chosen"], chosen if ranks == "2" or int(ranks) <= 8 else "two_shot")
            self.assertEqual("of more ranks than there are processors" in answer["reason"], ranks == crowd)

    def test_explains_a_choice_on_gpus(self):
        call = ("--explain", "all_reduce", "1M", "--ranks-per-node", "8", "--gpu-path")
        text = run(*call, "nvlink")
        self.assertEqual((text.returncode, text.stderr), (0, ""))
        self.assertIn("all_reduce of 1048576 bytes on 1 node of 8 ranks on GPUs", text.stdout)
        self.assertIn("path nvlink (assumed, not measured)", text.stdout)
        self.assertRegex(text.stdout, r"algorithm +protocol +channels +predicted us +chunk bytes +function\n")
        self.assertRegex(text.stdout, r"two_shot +ll128 +\d+ +[\d.]+ +\d+ +twoShotAllReduce\n")
        self.assertRegex(text.stdout, r"chosen: two_shot: two_shot by ll128 is predicted to be [\d.]+ times as fast as the "
                                      r"next, two_shot by simple; on one node auto sums in the order of ranks")
        for path, protocols in (("same_device", 3), ("nvlink", 3), ("pcie", 2), ("host_memory", 2)):
            answer = json.loads(run(*call, path, "--json").stdout)
            rows = answer["candidates"]
            self.assertEqual(len({row["protocol"] for row in rows}), protocols)
            self.assertEqual(len({(row["algorithm"], row["protocol"]) for row in rows}), len(rows))
            times = [row["predictedUs"] for row in rows]
            self.assertEqual(times, sorted(times))
            self.assertEqual(answer["chosen"], rows[0]["algorithm"])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "links")
            with open(path, "w", encoding="ascii") as file:
                file.write("".join(f"{where}_{what} 1\n" for where in ("inside", "between")
                                   for what in ("latency_us", "gap_us", "us_per_byte")) + "gpu_ll128_us 50\n")
            answer = json.loads(run(*call, "nvlink", "--json", PEAL_TUNER_FILE=path).stdout)
        self.assertTrue(answer["gpus"]["fromFile"])
        self.assertEqual(answer["gpus"]["cost"]["ll128Us"], 50)
        self.assertNotEqual(answer["candidates"][0]["protocol"], "ll128")
        nodes = run("--explain", "all_reduce", "16M", "--nodes", "2", "--ranks-per-node", "4", "--gpu-path", "nvlink")
        self.assertRegex(nodes.stdout, r"hierarchical +simple ")
        self.assertNotIn(" ll128 ", nodes.stdout.split("candidates")[1])
        self.assertIn("legal are: simple, ll.", run(*call, "pcie", PEAL_PROTOCOL="ll128").stderr)
        self.assertIn("PEAL_ALGO=ring forces the algorithm", run(*call, "pcie", PEAL_ALGO="ring").stdout)
        for wrong in (("sky",), ("nvlink", "--nodes", "10")):
            result = run(*call, *wrong)
            self.assertEqual(result.returncode, 2)
            self.assertIn("no path between GPUs" if wrong == ("sky",) else "80 ranks: a communicator on GPUs has at most",
                          result.stderr)

    def test_a_misspelt_collective_is_told_the_right_one(self):
        for wrong, right in (("allreduce", "all_reduce"), ("ReduceScatter", "reduce_scatter"), ("bcast", None)):
            result = run("--explain", wrong, "1K")
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(f'"{wrong}" is none of all_reduce, ', result.stderr)
            self.assertEqual(result.stderr.endswith(f" Was {right} meant?\n"), right is not None, result.stderr)

    def test_a_wrong_configuration_is_told_and_an_error(self):
        for arguments in ((), ("--config",), ("--json",)):
            result = run(*arguments, PEAL_PORT="-1")
            self.assertEqual(result.returncode, 2)
            self.assertIn('PEAL_PORT="-1" is not a whole number from 0 to 65535', result.stderr)
            self.assertIn("PEAL_TIMEOUT_MS", result.stdout)

    def test_a_misspelt_variable_is_told(self):
        result = run(PEAL_SLOTBYTES="65536")
        self.assertEqual((result.returncode, result.stderr),
                         (0, "peal-info: the environment sets PEAL_SLOTBYTES, which peal does not know: it has no "
                             "effect. Was PEAL_SLOT_BYTES meant?\n"))

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            result = subprocess.run([PROGRAM], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
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
            self.assertEqual(result.stderr, f'peal-info: it knows no "{wrong}". Try peal-info --help.\n')
            self.assertEqual(result.stdout, "")
        self.assertEqual(run("--confg", "--jsn").stderr,
                         'peal-info: it knows no "--confg" and no "--jsn". Try peal-info --help.\n')


if __name__ == "__main__":
    unittest.main(verbosity=2)
