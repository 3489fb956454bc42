#!/usr/bin/python3
"""Collectives, launchers, traffic and faults between hosts: hosts_test.py FOLDER-OF-THE-BENCHES PEAL-TRAIN PEAL-CKPT

Every host is a network namespace (hosts.py), so ranks on different ones talk through the network only. Skipped, with
the reason, where hosts cannot be made.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools", "hosts"))
import hosts  # noqa: E402 (found by the line above)
from hosts import Hosts, clean_environment, run_ranks  # noqa: E402

BENCHES = ""
TRAIN = ""
CKPT = ""
TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train", "us-constitution.txt")
LIMIT_S = 100

COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "gather", "scatter",
               "sendrecv"]
LAYOUTS = [(1, 1), (2, 2), (2, 2, 2), (3, 3), (3, 1)]

SKIPPED = 77  # the exit status that CMakeLists.txt names


def bench(collective):
    return os.path.join(BENCHES, collective + "_perf")


class HostsTest(unittest.TestCase):
    def assert_right(self, done):
        """Every rank ended well, and rank 0's table has no wrong element."""
        for rank, one in enumerate(done):
            self.assertEqual(one.returncode, 0, f"rank {rank}: {one.stdout}\n{one.stderr}")
        self.assertRegex(done[0].stdout, r"Out of bounds values : 0 OK")
        self.assertRegex(done[0].stdout, r"(?m)^ +\d+ +\d+ ")  # there are rows


class Collectives(HostsTest):
    def check_layout(self, per_host, order):
        with Hosts(len(per_host)) as made:
            for collective in COLLECTIVES:
                with self.subTest(collective=collective, per_host=per_host, order=order):
                    sizes = ["-b", "8", "-e", "600K", "-f", "41", "-n", "2", "-w", "1"]
                    self.assert_right(run_ranks(made, per_host, [bench(collective), *sizes], order=order))

    def test_by_node(self):
        for per_host in LAYOUTS:
            self.check_layout(per_host, "node")

    def test_round_robin(self):
        for per_host in [(2, 2), (3, 1)]:
            self.check_layout(per_host, "robin")

    def test_by_a_ring_between_nodes(self):
        # On four nodes, of which one is larger than the others: more than one turn.
        with Hosts(4) as made:
            for collective in ("all_reduce", "all_gather"):
                self.assert_right(run_ranks(made, (2, 1, 1, 1), [bench(collective), "-b", "4", "-e", "600K", "-f", "387", "-n", "2",
                                                                 "-w", "1"], PEAL_ALGO="hierarchical_ring"))

    def test_by_each_network(self):
        for network in ("tcp", "ucx"):
            with self.subTest(network), Hosts(2) as made:
                done = run_ranks(made, (2, 1), [bench("all_reduce"), "-b", "8", "-e", "2M", "-f", "64", "-n", "2"],
                                 PEAL_TRANSPORT=network)
                if network == "ucx" and re.search(r"ucx: .*(without UCX|libucp)", done[0].stderr):
                    self.skipTest(done[0].stderr)
                self.assert_right(done)

    def test_low_precision_and_deterministic(self):
        with Hosts(2) as made:
            for environment in ({}, {"PEAL_DETERMINISTIC": "1"}):
                command = [bench("all_reduce"), "-d", "bfloat16", "-o", "avg", "-b", "2", "-e", "300K", "-f", "53", "-n", "2"]
                self.assert_right(run_ranks(made, (2, 1), command, **environment))


class Launchers(HostsTest):
    COMMAND = ["-b", "1K", "-e", "64K", "-f", "8", "-n", "2"]

    def launched(self, *command):
        """What a launcher's ranks on two hosts printed."""
        # Both launchers refuse root, or lack a terminal, in their own ways.
        environment = clean_environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                        OMPI_MCA_rmaps_base_oversubscribe="1")
        with Hosts(2) as made:
            shell, variables = made.remote_shell()
            launcher = made.start(0, [part.replace("SHELL", shell) for part in command], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**environment, **variables})
            out, err = launcher.communicate(timeout=LIMIT_S)
            self.assertEqual(launcher.returncode, 0, f"{out}\n{err}")
            return out

    def run_launcher(self, *command):
        out = self.launched(*command)
        self.assertRegex(out, r"Out of bounds values : 0 OK")
        self.assertRegex(out, r"on +host0 ")
        self.assertRegex(out, r"on +host1 ")

    def test_training_under_open_mpi(self):
        if hosts.shutil.which("mpirun.openmpi") is None:
            self.skipTest("Open MPI's mpirun is not installed (Debian package openmpi-bin)")
        self.assert_trained("openmpi", 2, self.launched(
            "mpirun.openmpi", "--mca", "plm_rsh_agent", "SHELL", "-H", "host0:1,host1:1", "-n", "2", *self.train_command()))

    @staticmethod
    def train_command():
        return [TRAIN, "--text", TEXT, "--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch", "2",
                "--steps", "3", "--stage", "2", "--eval-every", "0"]

    def assert_trained(self, launcher, ranks, out):
        """What the launcher's ranks printed ends with the weights of ranks that peal-train starts itself."""
        alone = subprocess.run([*self.train_command(), "--ranks", str(ranks)], capture_output=True, text=True,
                               timeout=LIMIT_S, check=True, env=clean_environment()).stdout
        weights = r"(?m)^weights [0-9a-f]{16} .*$"
        self.assertIn(f"ranks: {ranks} ({launcher})", out)
        self.assertEqual(re.findall(weights, out), re.findall(weights, alone))
        self.assertEqual(len(re.findall(weights, alone)), 1, alone)

    def test_open_mpi(self):
        if hosts.shutil.which("mpirun.openmpi") is None:
            self.skipTest("Open MPI's mpirun is not installed (Debian package openmpi-bin)")
        self.run_launcher("mpirun.openmpi", "--mca", "plm_rsh_agent", "SHELL", "-H", "host0:2,host1:2", "-n", "4",
                          bench("all_reduce"), *self.COMMAND)

    def test_mpich(self):
        if hosts.shutil.which("mpirun.mpich") is None:
            self.skipTest("MPICH's mpirun is not installed (Debian package mpich)")
        self.run_launcher("mpirun.mpich", "-launcher", "ssh", "-launcher-exec", "SHELL", "-hosts", "host0:2,host1:2",
                          "-n", "4", "-genv", "MASTER_ADDR", "host0", "-genv", "MASTER_PORT", "29500",
                          bench("all_reduce"), *self.COMMAND)

    def test_plain_variables_over_ssh(self):
        # The README's line: a shell that starts each rank on its host.
        command = " ".join([bench("all_reduce"), *self.COMMAND])
        line = ("for r in 0 1; do SHELL host$r PEAL_RANK=$r PEAL_SIZE=2 PEAL_ROOT=host0:29400 " + command + " & done; wait")
        out = self.launched("sh", "-c", line)
        self.assertRegex(out, r"Out of bounds values : 0 OK")
        self.assertRegex(out, r"on +host0 ")
        self.assertRegex(out, r"on +host1 ")

    def started_with(self, of_rank, command):
        """The ends of four ranks on two hosts, each started with the variables of its launcher."""
        with Hosts(2) as made:
            ranks = [made.start(host, command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=clean_environment(**of_rank(rank, host, rank % 2)))
                     for rank, host in enumerate([0, 0, 1, 1])]
            done = []
            for rank in ranks:
                out, err = rank.communicate(timeout=LIMIT_S)
                done.append(subprocess.CompletedProcess([], rank.returncode, out, err))
            return done

    def check_variables(self, launcher, of_rank):
        self.assert_right(self.started_with(of_rank, [bench("all_reduce"), *self.COMMAND]))
        trained = self.started_with(of_rank, self.train_command())
        self.assertEqual([(one.returncode, one.stderr) for one in trained], [(0, "")] * 4)
        self.assertEqual([one.stdout for one in trained[1:]], [""] * 3)
        self.assert_trained(launcher, 4, trained[0].stdout)

    def under_torchrun(self, *command):
        """What two agents on two hosts print, with two ranks each. torchrun says which of them has rank 0."""
        # What it writes to its error output is kept and shown: without these two Debian's version fails by itself.
        torchrun = ["torchrun", "--nnodes", "2", "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint",
                    "host0:29500", "-r", "2", "-t", "2", "--no_python", *command]
        with Hosts(2) as made, tempfile.TemporaryDirectory() as folder:
            agents = [made.start(host, torchrun, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, env=clean_environment(TMPDIR=folder)) for host in range(2)]
            said = [agent.communicate(timeout=LIMIT_S) for agent in agents]
            self.assertEqual([agent.returncode for agent in agents], [0, 0], said)
            return said[0][0] + said[1][0]

    def test_torchrun(self):
        if hosts.shutil.which("torchrun") is None:
            self.skipTest("torchrun is not installed (Debian package python3-torch)")
        out = self.under_torchrun(bench("all_reduce"), *self.COMMAND)
        self.assertRegex(out, r"Out of bounds values : 0 OK")
        self.assertRegex(out, r"on +host0 ")
        self.assertRegex(out, r"on +host1 ")
        self.assert_trained("torchrun", 4, self.under_torchrun(*self.train_command()))

    def test_torchruns_variables(self):
        self.check_variables("torchrun", lambda rank, host, local: {
            "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "host0", "MASTER_PORT": "29500"})

    def test_srun(self):
        """Where this machine belongs to a Slurm cluster; its ranks are not in the hosts that are made here."""
        if hosts.shutil.which("srun") is None:
            self.skipTest("srun is not installed (Debian package slurm-client)")
        srun = ["srun", "--immediate=5", "-n", "2", "--overcommit"]
        try:
            probe = subprocess.run([*srun, "true"], capture_output=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            self.skipTest(f"srun starts nothing here: it neither ran nor gave up in {LIMIT_S} s")
        if probe.returncode != 0:
            self.skipTest("srun starts nothing here: no cluster answers")
        done = subprocess.run([*srun, *self.train_command()], capture_output=True, text=True, timeout=LIMIT_S, check=False,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assert_trained("slurm", 2, done.stdout)

    def test_slurms_variables(self):
        self.check_variables("slurm", lambda rank, host, local: {
            "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_NTASKS": "4",
            "SLURM_LOCALID": str(local), "SLURM_NODEID": str(host), "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
            "SLURM_STEP_NODELIST": "host[0-1]"})


class Containers(HostsTest):
    def test_ranks_in_other_namespaces_of_a_host_share_memory(self):
        # As a container that keeps the host's network: its processes see neither rank 0's ids nor its mounts.
        container = "unshare --pid --uts --ipc --mount --fork --kill-child --"
        isolated = ["sh", "-c", f'[ $PEAL_RANK = 0 ] && exec "$@"; exec {container} '
                                'sh -c \'hostname elsewhere; exec "$@"\' sh "$@"', "sh"]
        with Hosts(1) as made:
            for registered in ("0", "1"):
                with self.subTest(registered=registered):
                    done = run_ranks(made, (2,), [*isolated, bench("all_reduce"), "-b", "8", "-e", "2M", "-f", "64", "-n", "2",
                                                  "-R", registered], PEAL_LOG="info")
                    self.assert_right(done)
                    self.assertRegex(done[0].stdout, r"on +host0 ")
                    self.assertRegex(done[0].stdout, r"on +elsewhere ")
                    self.assertRegex(done[0].stderr, r"shared memory with 1 peers, 0 of them in this process")


class Traffic(HostsTest):
    def wire_bytes(self, per_host, size, calls, collective="all_reduce", **environment):
        """Bytes that each host's interface sent for each call, start and warm-up taken off: the difference of a long
        and a short run."""
        def sent(iterations):
            with Hosts(len(per_host)) as made:
                command = [bench(collective), "-b", str(size), "-e", str(size), "-n", str(iterations), "-w", "1", "-c", "0",
                           "-R", "1"]
                done = run_ranks(made, per_host, command, **environment)
                for one in done:
                    self.assertEqual(one.returncode, 0, one.stderr)
                return [made.sent_bytes(index) for index in range(len(per_host))]
        short, long = sent(1), sent(1 + calls)
        # The bench measures out of place and in place: twice the calls.
        return [(b - a) / (2 * calls) for a, b in zip(short, long)]

    def test_hierarchical_all_reduce_sends_each_shard_once(self):
        size = 4 << 20
        for per_host, algorithm in [((2, 2), "hierarchical"), ((4, 4), "hierarchical"), ((2, 2, 2), "hierarchical_ring")]:
            # Every element goes once each way: 2 (R - 1)/R x S from each node.
            share = 2 * (len(per_host) - 1) / len(per_host)
            for sent in self.wire_bytes(per_host, size, 4, PEAL_ALGO=algorithm):
                self.assertAlmostEqual(sent / size / share, 1.0, delta=0.03, msg=f"{per_host}, {algorithm}")


class Faults(HostsTest):
    LONG = ["-b", "64K", "-e", "64K", "-n", "1000000", "-w", "1", "-c", "0"]

    def start_two(self, made, **environment):
        variables = {"PEAL_SIZE": "2", "PEAL_ROOT": f"host0:{hosts.ROOT_PORT}", "PEAL_LOCAL_RANK": "0",
                     "PEAL_LOCAL_SIZE": "1", **environment}
        return [made.start(host, [bench("all_reduce"), *self.LONG], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, env=clean_environment(PEAL_RANK=str(host), **variables))
                for host in range(2)]

    @staticmethod
    def await_traffic(made, least_bytes):
        before = made.sent_bytes(1)
        end = time.monotonic() + LIMIT_S
        while made.sent_bytes(1) < before + least_bytes:
            if time.monotonic() > end:
                raise AssertionError("no traffic: the ranks did not start")
            time.sleep(0.05)

    def test_a_killed_rank_is_named_by_the_others(self):
        with Hosts(2) as made:
            ranks = self.start_two(made)
            self.await_traffic(made, 1 << 20)
            # nsenter has become the bench.
            ranks[1].send_signal(signal.SIGKILL)
            _, err = ranks[0].communicate(timeout=60)
            self.assertNotEqual(ranks[0].returncode, 0)
            self.assertRegex(err, r"rank 1")
            ranks[1].communicate()

    def test_a_link_that_is_down_for_a_second_costs_only_time(self):
        with Hosts(2) as made:
            ranks = self.start_two(made)
            self.await_traffic(made, 1 << 20)
            made.set_link(1, up=False)
            time.sleep(1)
            made.set_link(1, up=True)
            self.await_traffic(made, 8 << 20)
            gave_up = [rank.poll() for rank in ranks]
            for rank in ranks:
                rank.kill()
            self.assertEqual(gave_up, [None, None], [rank.communicate()[1] for rank in ranks])

    def test_a_host_that_vanishes_is_noticed(self):
        with Hosts(2) as made:
            ranks = self.start_two(made)
            self.await_traffic(made, 1 << 20)
            made.set_link(1, up=False)
            _, err = ranks[0].communicate(timeout=60)
            self.assertNotEqual(ranks[0].returncode, 0)
            self.assertRegex(err, r"rank 1")
            ranks[1].kill()
            ranks[1].communicate()

    def test_no_way_to_the_other_node_is_explained(self):
        with Hosts(2) as made:
            # Rank 0 gives up at once and opens no root; the other waits for one.
            done = run_ranks(made, (1, 1), [bench("all_reduce"), "-b", "8", "-e", "8"], PEAL_INTERFACE="wlan7",
                             PEAL_INIT_TIMEOUT_MS="2000")
            self.assertNotEqual(done[0].returncode, 0)
            self.assertRegex(done[0].stderr, r"wlan7")
            self.assertRegex(done[0].stderr, r"eth0")  # what there is


class Training(HostsTest):
    MODEL = ["--text", TEXT, "--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--batch", "2", "--steps",
             "6", "--accumulate", "2", "--log-every", "1", "--eval-every", "3", "--sample", "20"]
    # All ranks share the state, or each host holds a replica (HSDP), or each pair of ranks on different hosts does.
    WAYS = {"stage 2": ("node", "--stage", "2"),
            "stage 3": ("node", "--stage", "3"),
            "HSDP of stage 1": ("node", "--stage", "1", "--shard-group", "2"),
            "HSDP of stage 2, sums once a step": ("node", "--stage", "2", "--shard-group", "2", "--accumulate-locally"),
            "HSDP of stage 3": ("node", "--stage", "3", "--shard-group", "2"),
            "HSDP of stage 3, groups over hosts": ("robin", "--stage", "3", "--shard-group", "2")}

    def train(self, where, per_host, order, *command):
        """What a run made: losses, norms, weights and masters; its checkpoint; bytes sent between groups."""
        metrics, saved = (os.path.join(self.folder, f"{name}-{self.runs}") for name in ("metrics", "saved"))
        self.runs += 1
        done = run_ranks(where, per_host, [*command, "--metrics", metrics, "--save", saved], order=order)
        for one in done:
            # 0 says, too, that elements and bytes in and between groups, and all arenas, are the planner's.
            self.assertEqual(one.returncode, 0, one.stderr)
        with open(metrics, encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        bits = [[record.get(name) for name in ("event", "loss", "gradientNorm", "text", "heldOutLoss", "weights", "masters")]
                for record in records if record["event"] in ("step", "heldOut", "sample", "end")]
        self.assertEqual(len([one for one in bits if one[0] == "step"]), 6, bits)
        return bits, saved, records[-1]["betweenGroups"]

    def test_two_hosts_give_the_bits_of_one(self):
        self.runs = 0
        flat = None
        with Hosts(2) as made, Hosts(1) as single, tempfile.TemporaryDirectory() as self.folder:
            for name, (order, *way) in self.WAYS.items():
                with self.subTest(name):
                    command = [TRAIN, *self.MODEL, *way]
                    two, two_saved, between = self.train(made, (2, 2), order, *command)
                    # The same nodes, pretended on one machine.
                    host = "$((PEAL_RANK / 2))" if order == "node" else "$((PEAL_RANK % 2))"
                    one, one_saved, _ = self.train(single, (4,), "node", "sh", "-c",
                                                   f'export PEAL_HOST_ID=h{host}; exec "$@"', "sh", *command)
                    self.assertEqual(two, one)
                    # Moments, too.
                    compared = subprocess.run([CKPT, "compare", two_saved, one_saved], capture_output=True, text=True,
                                              timeout=LIMIT_S, check=False)
                    self.assertEqual(compared.returncode, 0, f"{compared.stdout}\n{compared.stderr}")
                    if "--shard-group" in way:
                        self.assertGreater(between["bytesSent"], 0)
                    if "--accumulate-locally" not in way:
                        # Neither stages nor groups change the bits.
                        flat = flat or two
                        self.assertEqual(two, flat)


if __name__ == "__main__":
    reason = hosts.unavailable()
    if reason:
        print(f"skipped: hosts cannot be made: {reason}")
        sys.exit(SKIPPED)
    CKPT = os.path.abspath(sys.argv.pop(3))
    TRAIN = os.path.abspath(sys.argv.pop(2))
    BENCHES = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
