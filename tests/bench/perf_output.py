"""Reads what a bench prints, the way scripts written for nccl-tests do.

It knows only nccl-tests' rules: lines that start with # are comments, except for the two closing ones; every
other line is a row of 13 fields (14 and 15 with -S).
"""
import dataclasses
import re


@dataclasses.dataclass
class Half:
    """One half of a row: out of place or in place."""
    time_us: float
    algbw: float
    busbw: float
    wrong: int | None  # None where N/A is printed


@dataclasses.dataclass
class Row:
    size: int
    count: int
    type: str
    redop: str
    root: int
    out_of_place: Half
    in_place: Half
    timestamp: str


@dataclasses.dataclass
class Output:
    rows: list
    comments: list
    out_of_bounds: int
    out_of_bounds_verdict: str
    avg_busbw: float
    avg_busbw_verdict: str
    devices: list

    def comment_with(self, start):
        found = [line for line in self.comments if line.startswith(start)]
        if not found:
            raise AssertionError(f'no line starts with "{start}"')
        return found[0]


def parse_half(fields):
    wrong = None if fields[3] == "N/A" else int(float(fields[3]))
    return Half(float(fields[0]), float(fields[1]), float(fields[2]), wrong)


def parse_row(line):
    fields = line.split()
    if len(fields) not in (13, 15):
        raise AssertionError(f"a row of {len(fields)} fields: {line}")
    return Row(int(fields[0]), int(fields[1]), fields[2], fields[3], int(fields[4]), parse_half(fields[5:9]),
               parse_half(fields[9:13]), " ".join(fields[13:]))


def only_match(pattern, text):
    found = re.findall(pattern, text, re.MULTILINE)
    if len(found) != 1:
        raise AssertionError(f"{len(found)} lines match {pattern}")
    return found[0]


def parse(text):
    lines = text.splitlines()
    bounds = only_match(r"^# Out of bounds values : (\d+) (\w+)$", text)
    average = only_match(r"^# Avg bus bandwidth    : (\S+) ?(\w*)$", text)
    devices = re.findall(r"^#\s+Rank\s+(\d+) Group\s+(\d+) Pid\s+(\d+) on\s+(\S+) device\s+(\d+) \[(.*)\] (.*)$", text,
                         re.MULTILINE)
    return Output(rows=[parse_row(line) for line in lines if line and not line.startswith("#")],
                  comments=[line for line in lines if line.startswith("#")], out_of_bounds=int(bounds[0]),
                  out_of_bounds_verdict=bounds[1], avg_busbw=float(average[0]), avg_busbw_verdict=average[1],
                  devices=devices)
