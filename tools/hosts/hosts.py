#!/usr/bin/python3
"""Several hosts on one machine: network namespaces on a switch, with links that may be slowed down.

Used by tests/hosts and bench/peers, and by hand, as root or under `unshare --user --map-root-user`:

    tools/hosts/hosts.py --ranks 3,1 --rate 1gbit -- build/release/bench/all_reduce_perf -b 1K -e 1M

Every host has a name of its own (host0, host1, ...), which all resolve, the address 10.87.0.(1 + index) on eth0, and
a loopback interface. A host is a process that sleeps in new namespaces: when it ends, the kernel removes them with
all their links. It ends with the process that made it, be that killed, so nothing is left behind.

Needs Debian's iproute2, util-linux and hostname. Where hosts cannot be made, `unavailable()` says why.
"""
import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SUBNET = "10.87.0."
ROOT_PORT = 12917
# Jumbo frames: with ordinary ones headers alone are 4.5% of what the interface counters see.
MTU = 9000
TOOL_LIMIT_S = 20  # of an `ip` or `tc` command

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    """For a child between fork and exec."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class HostsError(Exception):
    """Hosts could not be made or used; the text is what the tool said."""


def _tool(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False)
    if done.returncode != 0:
        raise HostsError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def unavailable():
    """Why hosts cannot be made here, or None."""
    for program in ("unshare", "nsenter", "mount", "hostname", "ip", "tc"):
        if shutil.which(program) is None:
            return f"there is no program {program} (Debian: iproute2, util-linux, mount, hostname)"
    try:
        with Hosts(2, rate="1gbit"):
            return None
    except HostsError as error:
        return str(error)


class Hosts:
    """A context: the hosts exist between entry and exit.

    rate: of each host's link in each direction, in tc's words ("1gbit"); None: as fast as it goes."""

    def __init__(self, count, rate=None):
        self.count = count
        self.rate = rate
        self._switch = None
        self._sleepers = []

    def __enter__(self):
        try:
            self._switch = self._sleeper()
            self._on_switch("ip", "link", "add", "switch", "mtu", str(MTU), "type", "bridge", "forward_delay", "0")
            self._on_switch("ip", "link", "set", "switch", "up")
            for index in range(self.count):
                self._add(index)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in [*self._sleepers, self._switch]:
            if process is not None:
                process.kill()
                process.communicate()
        self._sleepers, self._switch = [], None

    def address(self, index):
        return f"{SUBNET}{1 + index}"

    def start(self, index, command, **options):
        """subprocess.Popen on that host. What it starts ends with this process."""
        return subprocess.Popen([*self._enter(self._sleepers[index]), *command], preexec_fn=die_with_parent, **options)

    def tool(self, index, *command):
        """Runs a command on that host and returns what it prints."""
        return _tool(*self._enter(self._sleepers[index]), *command)

    def sent_bytes(self, index):
        """What eth0 of that host has sent since it exists, headers included."""
        return json.loads(self.tool(index, "ip", "-s", "-j", "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"]

    def set_link(self, index, up):
        """Plugs the cable of a host in or out."""
        self._on_switch("ip", "link", "set", f"port{index}", "up" if up else "down")

    def remote_shell(self):
        """What mpirun takes for ssh: a program that is given a host's name and a command; and what it must find in the
        environment."""
        where = " ".join(f"host{i}={process.pid}" for i, process in enumerate(self._sleepers))
        return os.path.join(os.path.dirname(os.path.abspath(__file__)), "remote-shell"), {"HOSTS_PROCESSES": where}

    def _sleeper(self):
        """A process in new namespaces. Returns when they exist."""
        ready, theirs = os.pipe()
        names = "".join(f"\\n{self.address(i)} host{i}" for i in range(self.count))
        # The file lives in a file system that only this namespace has; the bind keeps it when its folder is gone.
        script = ("mount -t tmpfs hosts /mnt && "
                  f"printf '127.0.0.1 localhost{names}\\n' >/mnt/hosts && mount --bind /mnt/hosts /etc/hosts && "
                  f"umount --lazy /mnt && echo up >/proc/self/fd/{theirs} && exec sleep infinity")
        process = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sh", "-c", script], pass_fds=[theirs],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=die_with_parent)
        os.close(theirs)
        with os.fdopen(ready, encoding="ascii") as end:
            said = end.readline()
        if said != "up\n":
            raise HostsError(f"namespaces: {process.communicate()[1].strip()}")
        return process

    @staticmethod
    def _enter(process):
        return ["nsenter", "--target", str(process.pid), "--net", "--uts", "--mount", f"--wd={os.getcwd()}", "--"]

    def _on_switch(self, *command):
        return _tool(*self._enter(self._switch), *command)

    def _add(self, index):
        process = self._sleeper()
        self._sleepers.append(process)
        self._on_switch("ip", "link", "add", f"port{index}", "mtu", str(MTU), "type", "veth", "peer", "name", "eth0",
                        "mtu", str(MTU), "netns", str(process.pid))
        self._on_switch("ip", "link", "set", f"port{index}", "master", "switch", "up")
        self.tool(index, "hostname", f"host{index}")
        self.tool(index, "ip", "link", "set", "lo", "up")
        self.tool(index, "ip", "address", "add", f"{self.address(index)}/24", "dev", "eth0")
        self.tool(index, "ip", "link", "set", "eth0", "up")
        if self.rate is not None:
            # The burst is what the link carries at full speed after a pause: small beside any measurement.
            shape = ["root", "tbf", "rate", self.rate, "burst", "256kb", "latency", "20ms"]
            self.tool(index, "tc", "qdisc", "add", "dev", "eth0", *shape)
            self._on_switch("tc", "qdisc", "add", "dev", f"port{index}", *shape)


def clean_environment(**more):
    """Without what a launcher or a setting of the caller would change."""
    kept = {name: value for name, value in os.environ.items()
            if not re.match(r"PEAL_|UCX_|NCCL_|OMPI_|PMI|SLURM_|RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_", name)}
    kept.update(more)
    return kept


def places(per_host, order):
    """The host of each rank. order: "node" (host0's ranks first) or "robin" (one rank to each host in turn)."""
    if order == "node":
        return [host for host, count in enumerate(per_host) for _ in range(count)]
    turns = [(turn, host) for host, count in enumerate(per_host) for turn in range(count)]
    return [host for _, host in sorted(turns)]


def run_ranks(hosts, per_host, command, *, order="node", limit_s=100, **environment):
    """Runs one rank per place, started by plain variables. Returns a CompletedProcess of each."""
    where = places(per_host, order)
    ranks = []
    for rank, host in enumerate(where):
        variables = clean_environment(PEAL_RANK=str(rank), PEAL_SIZE=str(len(where)), PEAL_ROOT=f"host{where[0]}:{ROOT_PORT}",
                                      PEAL_LOCAL_RANK=str(where[:rank].count(host)),
                                      PEAL_LOCAL_SIZE=str(where.count(host)), **environment)
        out, err = tempfile.TemporaryFile(mode="w+"), tempfile.TemporaryFile(mode="w+")
        ranks.append((hosts.start(host, command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables), out, err))
    done = []
    end = time.monotonic() + limit_s
    for process, out, err in ranks:
        try:
            code = process.wait(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None  # it hung
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read())
            stream.close()
        done.append(subprocess.CompletedProcess(command, code, *texts))
    return done


def main():
    parser = argparse.ArgumentParser(description="Runs a program on several hosts, which are network namespaces.")
    parser.add_argument("--ranks", default="1,1", help="ranks of each host, separated by commas")
    parser.add_argument("--rate", help="of each link in each direction, as tc says it: 1gbit")
    parser.add_argument("--order", choices=["node", "robin"], default="node", help="how ranks are laid on hosts")
    parser.add_argument("command", nargs="+", help="after --")
    arguments = parser.parse_args()
    per_host = [int(text) for text in arguments.ranks.split(",")]
    try:
        with Hosts(len(per_host), arguments.rate) as hosts:
            own = {name: value for name, value in os.environ.items() if re.match(r"PEAL_|UCX_", name)}
            done = run_ranks(hosts, per_host, arguments.command, order=arguments.order, limit_s=3600, **own)
    except HostsError as error:
        sys.exit(f"hosts: {error}")
    for rank, one in enumerate(done):
        sys.stdout.write(one.stdout)
        sys.stderr.writelines(f"[{rank}] {line}\n" for line in one.stderr.splitlines())
        if one.returncode != 0:
            sys.stderr.write(f"[{rank}] exit status {one.returncode}\n")
    sys.exit(0 if all(one.returncode == 0 for one in done) else 1)


if __name__ == "__main__":
    main()
