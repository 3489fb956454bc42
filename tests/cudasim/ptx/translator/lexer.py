"""PTX text -> tokens. Words keep their dots (`ld.global.u32`, `%tid.x`, `.reg`), as in PTX itself."""
import re
from typing import NamedTuple

from .errors import PtxError


class Token(NamedTuple):
    kind: str  # word, number, string or the character itself
    text: str
    line: int


_TOKEN = re.compile(
    r"""
    (?P<skip>(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/|\#[^\n]*)+)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d*(?:[eE][-+]?\d+)?|\d+U?)
  | (?P<word>[%$.A-Za-z_](?:[\w$.]|::)*)
  | (?P<punctuation>[{}()\[\]<>,;:=+\-|!@*~&])
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(text: str) -> list[Token]:
    result, position, line = [], 0, 1
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            break
        kind, spelled, position = match.lastgroup, match.group(), match.end()
        if kind == "skip":
            line += spelled.count("\n")
        else:
            result.append(Token(spelled if kind == "punctuation" else kind, spelled, line))
    if position != len(text):
        raise PtxError(line, f"unexpected character {text[position]!r}")
    # Several, so that looking ahead needs no bounds.
    return result + [Token("end", "end of file", line)] * 3
