#!/usr/bin/env python3
"""make_opcodes.py opcodes.inc OUT.ptx: one kernel that runs the instructions of every row and stores each result.

  opcodes(in, out, count): thread i of the grid reads the words a, b and c at in + 24 * i and writes row r's result at
  out + 8 * (r * count + i)."""
import re
import sys
from pathlib import Path

ROW = re.compile(r'^(?:ROW|FLOAT)\(((?:\s*"[^"]*")+),\s*(\d+), (\d+), (\d+), (\d+),', re.MULTILINE)
SETP = re.compile(r'^SETP\("(\w+)", "(\w+)", (\d+),(.*)\)$', re.MULTILINE)

HEAD = """.version 9.0
.target sm_80
.address_size 64

.visible .entry opcodes(.param .u64 in, .param .u64 out, .param .u32 count)
{
  .reg .pred %p<4>;
  .reg .b16 %a16, %b16, %c16, %d16;
  .reg .b32 %a32, %b32, %c32, %d32, %t<4>, %i, %count;
  .reg .b64 %a64, %b64, %c64, %d64, %u<4>, %in, %out, %row;
  mov.u32 %t1, %ctaid.x;
  mov.u32 %t2, %ntid.x;
  mov.u32 %t3, %tid.x;
  mad.lo.u32 %i, %t1, %t2, %t3;
  ld.param.u32 %count, [count];
  setp.ge.u32 %p1, %i, %count;
  @%p1 ret;
  ld.param.u64 %in, [in];
  ld.param.u64 %out, [out];
  mul.wide.u32 %u1, %i, 24;
  add.u64 %in, %in, %u1;
  mul.wide.u32 %u1, %i, 8;
  add.u64 %out, %out, %u1;
  mul.wide.u32 %row, %count, 8;
  ld.global.u64 %a64, [%in];
  ld.global.u64 %b64, [%in+8];
  ld.global.u64 %c64, [%in+16];
"""
NARROWER = "".join(f"  cvt.u{bits}.u64 %{name}{bits}, %{name}64;\n" for name in "abc" for bits in (16, 32))


def body(number: int, text: str, bits: list[str]) -> str:
    for name, width in zip("dabc", bits):
        text = text.replace("{" + name + "}", f"%{name}{width}")
    text = text.replace("{n}", str(number))
    if not (text.startswith("{") or text.endswith(":")):
        text += ";"
    widened = "" if bits[0] == "64" else f"  cvt.u64.u{bits[0]} %d64, %d{bits[0]};\n"
    return f"  {text}\n{widened}  st.global.u64 [%out], %d64;\n  add.u64 %out, %out, %row;\n"


def main() -> int:
    source, target = map(Path, sys.argv[1:3])
    inc = source.read_text(encoding="utf-8")
    inc = SETP.sub(lambda m: f'ROW("setp.{m[1]}.{m[2]} %p1, {{a}}, {{b}}; selp.u32 {{d}}, 1, 0, %p1", 32, {m[3]}, {m[3]}, '
                             f'0,{m[4]})', inc)
    rows = [("".join(re.findall(r'"([^"]*)"', match[1])), list(match.groups()[1:])) for match in ROW.finditer(inc)]
    text = HEAD + NARROWER + "".join(body(i, *row) for i, row in enumerate(rows)) + "  ret;\n}\n"
    target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
