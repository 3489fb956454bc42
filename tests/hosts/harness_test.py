#!/usr/bin/python3
"""The pretended hosts themselves: tools/hosts/hosts.py. Run from anywhere, with nothing but Python."""
import os
import signal
import subprocess
import sys
import time
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools", "hosts"))
import hosts  # noqa: E402 (found by the line above)

SKIPPED = 77  # the exit status that CMakeLists.txt names
LISTEN = ("import socket; server = socket.create_server(('', 5000)); print('ready', flush=True); "
          "peer = server.accept()[0]; print(sum(iter(lambda: len(peer.recv(1 << 20)), 0)))")
SEND = "import socket, sys; socket.create_connection((sys.argv[1], 5000)).sendall(bytes(int(sys.argv[2])))"


class Harness(unittest.TestCase):
    def test_names_and_addresses(self):
        with hosts.Hosts(3) as made:
            self.assertEqual(made.tool(2, "hostname").strip(), "host2")
            self.assertIn(made.address(1), made.tool(0, "getent", "ahostsv4", "host1"))
            addresses = made.tool(1, "ip", "-br", "-4", "address")
            self.assertIn("10.87.0.2/24", addresses)
            self.assertNotIn("10.87.0.1/", addresses)

    def test_bytes_are_counted(self):
        with hosts.Hosts(2, rate="1gbit") as made:
            listener = made.start(1, ["python3", "-c", LISTEN], stdout=subprocess.PIPE, text=True)
            self.assertEqual(listener.stdout.readline(), "ready\n")
            before = made.sent_bytes(0)
            size = 4 << 20
            made.start(0, ["python3", "-c", SEND, "host1", str(size)]).wait()
            self.assertEqual(listener.communicate()[0], f"{size}\n")
            self.assertAlmostEqual((made.sent_bytes(0) - before) / size, 1.0, delta=0.02)

    def test_a_remote_shell_for_mpirun(self):
        with hosts.Hosts(2) as made:
            program, variables = made.remote_shell()
            environment = {**os.environ, **variables}
            done = subprocess.run([program, "-x", "host1", "hostname; exit 3"], capture_output=True, text=True,
                                  env=environment, check=False)
            self.assertEqual((done.returncode, done.stdout), (3, "host1\n"))
            done = subprocess.run([program, "host9", "true"], capture_output=True, text=True, env=environment, check=False)
            self.assertEqual((done.returncode, done.stderr), (255, "no host host9\n"))

    def test_places(self):
        self.assertEqual(hosts.places((2, 1), "node"), [0, 0, 1])
        self.assertEqual(hosts.places((3, 1), "robin"), [0, 1, 0, 0])

    def test_nothing_outlives_a_killed_owner(self):
        script = (f"import sys; sys.path.insert(0, {os.path.dirname(hosts.__file__)!r}); import hosts, time\n"
                  "with hosts.Hosts(2) as made:\n"
                  "    started = made.start(1, ['sleep', '1000'])\n"
                  "    print(*[one.pid for one in made._sleepers], started.pid, flush=True)\n"
                  "    time.sleep(1000)")
        owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        pids = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
        end = time.monotonic() + 60
        while any(os.path.exists(f"/proc/{pid}/ns/net") and self.runs(pid) for pid in pids):
            self.assertLess(time.monotonic(), end, "processes are left")
            time.sleep(0.02)

    @staticmethod
    def runs(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
        except FileNotFoundError:
            return False


if __name__ == "__main__":
    reason = hosts.unavailable()
    if reason:
        print(f"skipped: hosts cannot be made: {reason}")
        sys.exit(SKIPPED)
    unittest.main()
