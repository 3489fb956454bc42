"""The contenders of bench/peers/run: how each is installed, built, started and asked.

A contender runs as one set of processes for all cases of a number of ranks. They sleep until they are asked for a
batch, so that contenders can take turns within one run. driver.h has the commands.
"""
import contextlib
import ctypes
import functools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PACKAGES = {"Open MPI": ["openmpi-bin", "libopenmpi-dev"], "MPICH": ["mpich", "libmpich-dev"], "gloo": ["libgloo-dev"]}
TARGETS = ["driver_peal", "driver_floor", "peers_common", "peers_limits"]
START_LIMIT_S = 30
ANSWER_LIMIT_S = 120

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A contender did not start, died or gave a wrong result; the text says what was seen."""


def _child():
    """Between fork and exec: nothing is left behind if this program is killed."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def niceness(value):
    """Runs this program and all that it starts at that niceness, 0 for no change. Negative ones need root.

    Under Linux's autogroup a process's own niceness counts only within its session: that of the session is set too, and
    set back, since the session is the caller's shell's."""
    os.nice(value)
    path, before = "/proc/self/autogroup", None
    if value != 0 and os.path.exists(path):
        with open(path, encoding="ascii") as file:
            before = file.read().split()[-1]
        _write(path, str(value))
    try:
        yield
    finally:
        if before is not None:
            _write(path, before)


def _write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


# ---- installing and building -----------------------------------------------------------------------------------------


def install(say):
    """Debian's packages of the peers, where root and apt-get are there. Says what it did or could not do."""
    wanted = [package for packages in PACKAGES.values() for package in packages]
    listed = ""
    if shutil.which("dpkg-query"):
        listed = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *wanted],
                                capture_output=True, text=True, check=False).stdout
    missing = [package for package in wanted if f"installed {package}\n" not in listed.replace("not-installed", "-")]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(f"not installed, which needs root and apt-get: {' '.join(missing)}")
        return
    say(f"installing {' '.join(missing)}")
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "check": False,
             "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    subprocess.run(["apt-get", "update", "-qq"], **quiet)
    done = subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], **quiet)
    if done.returncode != 0:
        say(f"apt-get could not install them: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")


def build_peal(build):
    """peal, its driver and the floors' in the build folder, configured first if need be."""
    if not os.path.exists(os.path.join(build, "CMakeCache.txt")):
        subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        "-DPEAL_BUILD_TESTS=OFF", "-DPEAL_CUDA=OFF"], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(["cmake", "--build", build, "--target", *TARGETS], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-3000:]}{done.stderr}cannot build peal in {build}")


def _is_current(program, sources):
    return os.path.exists(program) and all(os.path.getmtime(program) >= os.path.getmtime(one) for one in sources)


def _compile(command, source, program, common, libraries):
    """None, or why there is no such program."""
    source = os.path.join(HERE, source)
    headers = [os.path.join(HERE, name) for name in ("driver.h", "case.h", "control.h", "platform.h")]
    if _is_current(program, [source, common, *headers]):
        return None
    try:
        done = subprocess.run([command, "-std=c++20", "-O3", "-march=native", "-I", ROOT, source, common, "-o", program,
                               *libraries], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"there is no {command}"
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    return f"its driver does not compile: {(errors or ['no reason given'])[0]}"


def peer_drivers(build, families, say):
    """The drivers of these peers, by family; says of each that cannot be built why."""
    folder = os.path.join(build, "bench", "peers")
    common = os.path.join(folder, "libpeers_common.a")
    recipes = {"Open MPI": ("mpicxx.openmpi", "driver_mpi.cpp", []), "MPICH": ("mpicxx.mpich", "driver_mpi.cpp", []),
               "gloo": ("g++", "driver_gloo.cpp", ["-lgloo", "-lpthread"])}
    built = {}
    for family in families:
        compiler, source, libraries = recipes[family]
        program = os.path.join(folder, "driver_" + family.replace(" ", "").lower())
        reason = _compile(compiler, source, program, common, libraries)
        if reason is None:
            built[family] = program
        else:
            say(f"without {family}: {reason} (Debian: {' '.join(PACKAGES[family])})")
    return built


# ---- contenders ------------------------------------------------------------------------------------------------------


class Contender:
    """One entrant: `kind` is peal, peer or floor; `memory` says for which of peal's buffers a floor stands."""

    def __init__(self, name, kind, memory, start):
        self.name, self.kind, self.memory, self.start = name, kind, memory, start


def _each_rank(ranks, command_of, environment_of=lambda rank: {}):
    """One process per rank."""
    started = []
    for rank in range(ranks):
        started.append(_popen(command_of(rank), environment_of(rank)))
    return started


def _popen(command, more=None):
    """Of a process group of its own, but in this session: Linux schedules sessions as groups (autogroup), and a rank that
    yields passes its CPU only within its session. Ranks of one launcher share one, so all contenders' ranks do."""
    said = tempfile.TemporaryFile(mode="w+")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                               env={**os.environ, **(more or {})}, process_group=0, preexec_fn=_child)
    process.said = said
    return process


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _peal(build, memory):
    program = os.path.join(build, "bench", "peers", "driver_peal")

    def start(ranks, control, meeting):
        root = f"127.0.0.1:{_free_port()}"
        return _each_rank(ranks, lambda rank: [program, memory, control, meeting],
                          lambda rank: {"PEAL_RANK": str(rank), "PEAL_SIZE": str(ranks), "PEAL_ROOT": root})
    return Contender(f"peal {memory}", "peal", {memory}, start)


def _floor(build, variant, memory):
    program = os.path.join(build, "bench", "peers", "driver_floor")
    return Contender(f"floor {variant}", "floor", memory, lambda ranks, control, meeting: _each_rank(
        ranks, lambda rank: [program, variant, str(rank), str(ranks), control, meeting]))


def _open_mpi(name, program, flags):
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return Contender(name, "peer", set(), lambda ranks, control, meeting: [_popen(
        ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", *flags, "-n", str(ranks), program, control, meeting],
        as_root)])


def _mpich(program):
    return Contender("MPICH", "peer", set(), lambda ranks, control, meeting: [_popen(
        ["mpiexec.mpich", "-n", str(ranks), program, control, meeting])])


def _gloo(name, program, algorithm):
    def start(ranks, control, meeting):
        store = control + ".store"
        os.mkdir(store)
        return _each_rank(ranks, lambda rank: [program, algorithm, str(rank), str(ranks), "127.0.0.1", store, control, meeting])
    return Contender(name, "peer", set(), start)


PEERS = ["Open MPI", "Open MPI coll/sm", "Open MPI pml ucx", "MPICH", "gloo ring", "gloo halving-doubling"]
OPEN_MPI_FLAGS = {"Open MPI": [],
                  "Open MPI coll/sm": ["--mca", "coll_sm_priority", "100", "--mca", "coll_sm_fragment_size", "65536"],
                  "Open MPI pml ucx": ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]}


def make_contenders(build, peers, floors, say):
    """peal with both kinds of buffers, the peers of that list that can be built, and the floors."""
    made = [_peal(build, "registered"), _peal(build, "plain")]
    if floors:
        made += [_floor(build, "shared", {"registered"}), _floor(build, "shared-nt", {"registered"}),
                 _floor(build, "staged", {"registered", "plain"}), _floor(build, "readv", {"plain"})]
    families = [family for family in PACKAGES if any(name.startswith(family) for name in peers)]
    drivers = peer_drivers(build, families, say)
    for name in peers:
        family = next(one for one in PACKAGES if name.startswith(one))
        if family not in drivers:
            continue
        if family == "Open MPI":
            made.append(_open_mpi(name, drivers[family], OPEN_MPI_FLAGS[name]))
        elif family == "MPICH":
            made.append(_mpich(drivers[family]))
        else:
            made.append(_gloo(name, drivers[family], name.split(" ")[1].replace("-", "_")))
    return made


# ---- running ones ----------------------------------------------------------------------------------------------------


SHARED = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
PREFIX = "peal-peers-"


@functools.lru_cache(maxsize=None)
def _clear_stale():
    """Removes what a killed coordinator left: folders whose name has the id of a process that is gone. A living one's
    disappear at its first answer, when all ranks have mapped what is in them."""
    for name in os.listdir(SHARED):
        owner = name[len(PREFIX):].split("-", 1)[0] if name.startswith(PREFIX) else ""
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            shutil.rmtree(os.path.join(SHARED, name), ignore_errors=True)


class Session:
    """A contender's processes at one number of ranks. A context manager: they end with it, whatever happens."""

    def __init__(self, contender, ranks):
        self.contender, self.ranks = contender, ranks
        _clear_stale()
        self._folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=SHARED)
        self._processes, self._line, self._buffer = [], None, b""
        try:
            self._line = self._meet(os.path.join(self._folder, "meeting"))
        except BaseException:
            self.close()
            raise

    def _meet(self, path):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            self._processes = self.contender.start(self.ranks, os.path.join(self._folder, "control"), path)
            deadline = time.monotonic() + START_LIMIT_S
            while not select.select([listener], [], [], 0.05)[0]:
                self._require_alive()
                if time.monotonic() > deadline:
                    raise Failed(f"it did not start within {START_LIMIT_S} s")
            return listener.accept()[0]

    def _require_alive(self):
        for process in self._processes:
            if process.poll() is not None:
                raise Failed(self._last_words(process))

    @staticmethod
    def _last_words(process):
        process.said.seek(0)
        lines = [line for line in process.said.read().splitlines() if line.strip(" -*")]
        return f"exit status {process.returncode}{': ' if lines else ''}{' '.join(lines[:3])[:300]}"

    def ask(self, command):
        """The words of the answer to a command."""
        try:
            self._line.sendall(command.encode() + b"\n")
            deadline = time.monotonic() + ANSWER_LIMIT_S
            while b"\n" not in self._buffer:
                if not select.select([self._line], [], [], 1)[0]:
                    self._require_alive()
                    if time.monotonic() > deadline:
                        raise Failed(f"no answer to '{command}' within {ANSWER_LIMIT_S} s")
                    continue
                came = self._line.recv(4096)
                if not came:
                    time.sleep(0.2)  # let it die
                    self._require_alive()
                    raise Failed(f"it went away after '{command}'")
                self._buffer += came
        except OSError as error:
            self._require_alive()
            raise Failed(f"{error} at '{command}'") from None
        shutil.rmtree(self._folder, ignore_errors=True)  # all ranks have it mapped: nothing is left behind, whatever ends this
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode().split()

    def close(self):
        """Asks it to leave, and ends what has not left after a moment."""
        if self._line is not None:
            try:
                self._line.sendall(b"quit\n")
            except OSError:
                pass
        deadline = time.monotonic() + (5 if self._line is not None else 0)
        for process in self._processes:
            try:
                process.wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.said.close()
        if self._line is not None:
            self._line.close()
        shutil.rmtree(self._folder, ignore_errors=True)
