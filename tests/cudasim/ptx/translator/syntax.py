"""What a PTX module consists of. Names of registers, labels and function-scope variables are already unique
within their function: the parser resolves the scopes of `{ }`."""
from dataclasses import dataclass, field
from typing import Optional, Union

from .types import Type


# ---- operands ----
@dataclass(frozen=True)
class Register:
    name: str  # C++ identifier
    type: Type


@dataclass(frozen=True)
class Special:
    name: str  # %tid.x, %globaltimer ...


@dataclass(frozen=True)
class Integer:
    value: int


@dataclass(frozen=True)
class Float:
    bits: int
    width: int  # of the literal: 32 or 64


@dataclass(frozen=True)
class Symbol:
    """A variable, a parameter, a function or a label: `name` as PTX spells it."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Sink:
    """`_`: a result nobody wants."""


@dataclass(frozen=True)
class Not:
    of: "Operand"


@dataclass(frozen=True)
class Address:
    base: "Operand"
    offset: int


@dataclass(frozen=True)
class Vector:
    """{a, b, ...} of vector accesses and mov; (a, b, ...) of calls."""

    elements: tuple


@dataclass(frozen=True)
class Pair:
    """d|p: two results."""

    first: "Operand"
    second: "Operand"


Operand = Union[Register, Special, Integer, Float, Symbol, Sink, Not, Address, Vector, Pair]


# ---- statements ----
@dataclass
class Label:
    name: str
    line: int


@dataclass
class Instruction:
    opcode: str  # without modifiers: ld
    modifiers: list[str]  # global, v4, u32
    operands: list[Operand]
    line: int
    predicate: Optional[Operand] = None  # Register or Not(Register)

    @property
    def spelled(self) -> str:
        return ".".join([self.opcode, *self.modifiers])


@dataclass
class Variable:
    space: str  # global, const, shared, local, param
    type: Type
    name: str
    align: int
    count: Optional[int]  # elements; None: extern array of unknown size
    initial: list = field(default_factory=list)  # Integer, Float, Symbol
    line: int = 0

    @property
    def size(self) -> int:
        return self.type.size * (self.count or 0)


@dataclass
class Function:
    name: str
    isEntry: bool
    parameters: list[Variable]
    results: list[Variable]
    line: int
    maxThreads: Optional[int] = None  # .maxntid or .reqntid
    body: Optional[list[Union[Label, Instruction]]] = None  # None: declared only
    registers: dict[str, Register] = field(default_factory=dict)  # those used
    variables: dict[str, Variable] = field(default_factory=dict)  # of the body, by unique name
    branchTargets: dict[str, list[str]] = field(default_factory=dict)
    prototypes: dict[str, "Function"] = field(default_factory=dict)


@dataclass
class Module:
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
