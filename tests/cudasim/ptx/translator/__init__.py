"""Translates what `nvcc -ptx` writes into C++ that runs on the simulator (tests/cudasim).

  syntax.py        what a PTX module consists of
  lexer.py         text -> tokens
  parser.py        tokens -> syntax
  types.py         PTX types and their C++ counterparts
  instructions.py  one instruction -> one C++ statement, over the helpers of ptx.h; memory.py: those that touch memory
  liveness.py      which registers may be read before they are written
  emit.py          module -> C++ file
"""
