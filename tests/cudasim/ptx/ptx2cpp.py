#!/usr/bin/env python3
"""ptx2cpp.py IN.ptx OUT.cpp: translates a PTX file, as nvcc writes it, to C++ for the simulator.

What it does not know ends it with a message that names the file, the line and the instruction."""
import sys
from pathlib import Path

from translator.emit import emit
from translator.errors import PtxError
from translator.parser import parse


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, target = map(Path, arguments)
    try:
        translated = emit(parse(source.read_text(encoding="utf-8")), str(source))
    except PtxError as error:
        print(f"{source}:{error.line}: error: {error.message}", file=sys.stderr)
        return 1
    target.write_text(translated, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
