"""What bench/peers/run makes of its samples: near and far, medians, ratios, targets, cliffs, the table and the plot."""
import bisect
import os
import statistics
import sys

COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_recv"]
FEWEST = 3  # samples of a state, below which it has no row of its own
NEAR, FAR = 1.6, 2.2  # times the quickest tenth of the probes: below is near, above is far
CLIFF = 1.1  # a size may cost that much more than the next larger power of two
FLOOR_TARGET = 1.25  # peal's time / the floor's, all-reduce between two ranks


def size_text(size):
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def size_of(text):
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1].upper(), 1)
    return int(text[:-1] if unit > 1 else text) * unit


def target_of(collective, type_, size, ranks, memory):
    """Best peer's time / peal's that is asked for. Where nothing is said: no slower than the best peer."""
    few = ranks <= 2
    if collective == "all_reduce" and type_ == "float":
        table = {"registered": [(1 << 10, 1.5, 1.3), (1 << 20, 3, 1.5), (256 << 20, 2.5, 1.5)],
                 "plain": [(1 << 10, 1.3, 1.2), (1 << 20, 1.8, 1.3), (256 << 20, 1.2, 1.2)]}[memory]
        starts = [8, 32 << 10, 8 << 20]
        for start, (end, two, more) in zip(starts, table):
            if start <= size <= end:
                return two if few else more
    if collective in ("reduce_scatter", "all_gather", "broadcast", "all_to_all") and memory == "registered":
        if size in (1 << 20, 64 << 20):
            return 1.5 if few else 1.3
    return 1.0


class Distance:
    """What is near and what is far on this machine: by the quickest tenth of all probes so far, unless told."""

    def __init__(self, near_ns, far_ns):
        self._near_ns, self._far_ns, self._seen = near_ns, far_ns, []

    def saw(self, *probes_ns):
        for probe in probes_ns:
            if probe > 0:
                bisect.insort(self._seen, probe)

    def limits_ns(self):
        quickest = self._seen[len(self._seen) // 10] if self._seen else 0
        return self._near_ns or NEAR * quickest, self._far_ns or FAR * quickest

    def state(self, sample):
        near_ns, far_ns = self.limits_ns()
        if 0 < sample.before < near_ns and 0 < sample.after < near_ns:
            return "near"
        return "far" if sample.before > far_ns and sample.after > far_ns else "mixed"


class Sample:
    """One batch: mean time of a call on the slowest rank, context switches on all, the probe before and after."""

    def __init__(self, seconds, switches, before, after):
        self.us, self.switches, self.before, self.after = seconds * 1e6, switches, before, after


class Entry:
    """A contender's samples of one case, a list per round: a batch that was disturbed may have been tried again."""

    def __init__(self, contender):
        self.contender, self.rounds = contender, []

    def samples(self, distance, state):
        """Of the batches in that state; "all": any."""
        every = [sample for tries in self.rounds for sample in tries]
        return [sample for sample in every if state in ("all", distance.state(sample))]

    def median(self, distance, state, is_crowded):
        """Where the ranks have a CPU each, of the batches without a context switch, or, with too few of them, of the half
        with the fewest. None if there are too few in all."""
        mine = self.samples(distance, state)
        if len(mine) < (1 if state == "all" else FEWEST):
            return None
        if not is_crowded:
            clean = [sample for sample in mine if sample.switches == 0]
            calmest = sorted(mine, key=lambda sample: sample.switches)[:max(FEWEST, len(mine) // 2)]
            mine = clean if len(clean) >= FEWEST else calmest
        return statistics.median(sample.us for sample in mine)


def rows_of(case, entries, distance, is_crowded):
    """A row per state and kind of peal's buffers. `case`: collective, type, bytes and ranks."""
    rows = []
    for memory in ("registered", "plain"):
        peal = next((one for one in entries if one.contender.name == f"peal {memory}"), None)
        if peal is None:
            continue
        made = [row for state in ("near", "far") if (row := _row(case, memory, peal, entries, distance, state, is_crowded))]
        rows += made or [row for row in [_row(case, memory, peal, entries, distance, "all", is_crowded)] if row]
    return rows


def _best(entries, *which):
    times = {one.contender.name: one.median(*which) for one in entries}
    times = {name: time for name, time in times.items() if time is not None}
    name = min(times, key=times.get, default=None)
    return name, times.get(name)


def _row(case, memory, peal, entries, distance, state, is_crowded):
    which = (distance, state, is_crowded)
    time = peal.median(*which)
    peers = [one for one in entries if one.contender.kind == "peer"]
    who, best = _best(peers, *which)
    floor, floor_time = _best([one for one in entries if one.contender.kind == "floor" and memory in one.contender.memory], *which)
    if time is None or (peers and best is None):
        return None
    target = target_of(case["collective"], case["type"], case["bytes"], case["ranks"], memory)
    samples = peal.samples(distance, state)
    return {**case, "state": state, "memory": memory, "pealUs": time, "peer": who, "peerUs": best,
            "ratio": best / time if best else None, "target": target, "floor": floor, "floorUs": floor_time,
            "toFloor": time / floor_time if floor_time else None,
            "pingNs": statistics.median(sample.before for sample in samples), "batches": len(samples),
            "cleanBatches": sum(1 for sample in samples if sample.switches == 0)}


def misses_target(row):
    return row["ratio"] is not None and row["ratio"] < row["target"]


def misses_floor(row):
    return row["toFloor"] is not None and row["collective"] == "all_reduce" and row["ranks"] == 2 and row["toFloor"] > FLOOR_TARGET


HEADER = (f"{'collective':14} {'type':5} {'size':>6} {'ranks':>5} {'state':5} {'ping':>4} {'memory':10} {'peal us':>11} {'peer us':>11} "
          f"{'ratio':>6} {'target':>6}   {'best peer':20} {'floor us':>11} {'/floor':>6}  floor")


def line_of(row):
    def number(value, width, digits):
        return f"{value:{width}.{digits}f}" if value is not None else " " * (width - 1) + "-"
    return (f"{row['collective']:14} {row['type']:5} {size_text(row['bytes']):>6} {row['ranks']:>5} {row['state']:5} "
            f"{row['pingNs']:4.0f} {row['memory']:10} {number(row['pealUs'], 11, 2)} {number(row['peerUs'], 11, 2)} {number(row['ratio'], 6, 2)} "
            f"{row['target']:6.2f} {'<' if misses_target(row) else ' '} {row['peer'] or 'none':20} {number(row['floorUs'], 11, 2)} "
            f"{number(row['toFloor'], 6, 2)}{'!' if misses_floor(row) else ' '} {row['floor'] or ''}").rstrip()


def cliffs_of(case, at_power, at_sizes):
    """For each size below the power of two: the median over the rounds of its time / the power's, in the same round."""
    found = []
    for size, entry in at_sizes:
        pairs = [min(sample.us for sample in one) / min(sample.us for sample in power)
                 for one, power in zip(entry.rounds, at_power.rounds) if one and power]
        if pairs:
            found.append({**case, "memory": next(iter(entry.contender.memory)), "bytes": size, "power": case["bytes"],
                          "costs": statistics.median(pairs)})
    return found


def cliff_line(cliff):
    verdict = f"CLIFF: more than {CLIFF}" if cliff["costs"] > CLIFF else "ok"
    return (f"# {cliff['collective']} {cliff['type']} {cliff['ranks']} ranks {cliff['memory']}: {cliff['bytes']} bytes cost "
            f"{cliff['costs']:.2f} x the time of {size_text(cliff['power'])}  {verdict}")


def worst_first(rows):
    """The rows with a peer, by how far they are from their targets."""
    return sorted((row for row in rows if row["ratio"] is not None), key=lambda row: row["ratio"] / row["target"])


def plot(rows, path, title):
    """Ratios over sizes, a panel per collective. False if there is no matplotlib."""
    try:
        import matplotlib  # only here: everything else works without it
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    shown = [row for row in rows if row["ratio"] is not None and row["type"] == "float"]
    names = [name for name in COLLECTIVES if any(row["collective"] == name for row in shown)]
    if not names:
        print("# nothing to plot: no float rows with a peer", file=sys.stderr)
        return True
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure, panels = pyplot.subplots(lines, columns, figsize=(5.2 * columns, 3.8 * lines), squeeze=False)
    for panel in panels.flat[len(names):]:
        panel.set_visible(False)
    for panel, name in zip(panels.flat, names):
        mine = [row for row in shown if row["collective"] == name]
        for key in sorted({(row["ranks"], row["memory"], row["state"]) for row in mine}):
            points = sorted((row["bytes"], row["ratio"]) for row in mine if (row["ranks"], row["memory"], row["state"]) == key)
            panel.plot(*zip(*points), marker="o", markersize=3, label=f"{key[0]} ranks, {key[1]}, {key[2]}",
                       linestyle="-" if key[1] == "registered" else "--")
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set(xscale="log", yscale="log", title=name, xlabel="bytes", ylabel="best peer's time / peal's")
        panel.grid(True, which="both", alpha=0.3)
        panel.legend(fontsize=6)
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return True


def machine():
    """Where this ran, for the table and the JSON."""
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {"processor": model, "cpus": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 1)}
