"""Operands as C++ expressions, results as C++ assignments, and the modifiers of an instruction."""
from typing import Optional

from .errors import PtxError
from .syntax import (Address, Float, Function, Instruction, Integer, Label, Module, Not, Operand, Register, Sink, Special,
                     Symbol, Variable, Vector)
from .types import NAMES, Type

_SPECIALS = {
    **{f"%{name}.{axis}": f"ptx::{function}('{axis}')"
       for name, function in (("tid", "threadIndex"), ("ntid", "blockThreads"), ("ctaid", "blockIndex"),
                              ("nctaid", "gridBlocks")) for axis in "xyz"},
    "%laneid": "ptx::laneIndex()",
    "%warpid": "ptx::warpIndex()",
    "%clock": "static_cast<uint32_t>(ptx::clockCycles())",
    "%clock64": "ptx::clockCycles()",
    "%globaltimer": "ptx::globalTimerNs()",
    "%globaltimer_lo": "static_cast<uint32_t>(ptx::globalTimerNs())",
    "%lanemask_eq": "(1u << ptx::laneIndex())",
    "%lanemask_lt": "((1u << ptx::laneIndex()) - 1)",
    "%lanemask_le": "((2u << ptx::laneIndex()) - 1)",
    "%lanemask_gt": "~((2u << ptx::laneIndex()) - 1)",
    "%lanemask_ge": "~((1u << ptx::laneIndex()) - 1)",
    "WARP_SZ": "32u",
}


# Device functions of the toolkit's run-time library, and what the simulator has for them.
_LIBRARY = {"__assertfail": "ptx::assertFailed"}


class Modifiers:
    """Those of one instruction. Each must be taken by somebody: `finish` refuses what is left."""

    def __init__(self, instruction: Instruction):
        self._instruction = instruction
        self._left = list(instruction.modifiers)

    def take(self, name: str) -> bool:
        if name in self._left:
            self._left.remove(name)
            return True
        return False

    def oneOf(self, *names: str) -> Optional[str]:
        for name in names:
            if self.take(name):
                return name
        return None

    def demand(self, *names: str) -> str:
        found = self.oneOf(*names)
        if found is None:
            raise self.refuse(f"needs one of {', '.join('.' + name for name in names)}")
        return found

    def ignore(self, *names: str) -> None:
        for name in names:
            self.take(name)

    def type(self) -> Type:
        """The last modifier, a type."""
        if not self._left or self._left[-1] not in NAMES:
            raise self.refuse("does not end with a type the translator knows")
        return Type(self._left.pop())

    def finish(self) -> None:
        if self._left:
            raise self.refuse(f"unknown modifier {', '.join('.' + name for name in self._left)}")

    def refuse(self, why: str) -> PtxError:
        return PtxError(self._instruction.line, f"'{self._instruction.spelled}' is not supported: {why}")


class Expressions:
    """Of one function. Handlers of instructions see nothing else of the emitter."""

    def __init__(self, module: Module, function: Function):
        self._module = module
        self.function = function
        self.usesCarry = False
        self.labels = {statement.name for statement in function.body or [] if isinstance(statement, Label)}
        self.calls = {called.name: functionName(called.name) for called in module.functions.values()
                      if called.body is not None and not called.isEntry}
        self.calls.update({name: helper for name, helper in _LIBRARY.items() if name in module.functions})
        self.line = 0  # of the instruction being translated

    def fail(self, message: str) -> PtxError:
        return PtxError(self.line, message)

    # ---- values ----
    def value(self, operand: Operand, kind: Type) -> str:
        """The operand's bits, as an instruction of type `kind` reads them."""
        if isinstance(operand, Register):
            return self._registerValue(operand, kind)
        if isinstance(operand, Integer):
            return self._integer(operand.value, kind)
        if isinstance(operand, Float):
            if kind.bits != operand.width:
                raise self.fail(f"a literal of {operand.width} bits where {kind.bits} are expected")
            return f"0x{operand.bits:x}{'u' if operand.width == 32 else 'ull'}"
        if isinstance(operand, Special) and operand.name in _SPECIALS:
            return _SPECIALS[operand.name]
        if isinstance(operand, Special):
            raise self.fail(f"'{operand.name}' is neither a register declared here nor a special register known")
        if isinstance(operand, Not):
            return f"!{self.predicate(operand.of)}"
        if isinstance(operand, Symbol):
            if operand.name in _SPECIALS:
                return _SPECIALS[operand.name]
            return self.addressOf(operand)
        raise self.fail(f"operand {operand} cannot be a value")

    def predicate(self, operand: Operand) -> str:
        if isinstance(operand, Not):
            return f"!{self.predicate(operand.of)}"
        if isinstance(operand, Integer):
            return "true" if operand.value else "false"
        if not isinstance(operand, Register) or operand.type.name != "pred":
            raise self.fail(f"expected a predicate, found {operand}")
        return operand.name

    def _registerValue(self, register: Register, kind: Type) -> str:
        if (register.type.name == "pred") != (kind.name == "pred"):
            raise self.fail(f"register '{register.name}' is of type {register.type.name}, not {kind.name}")
        if register.type.size < kind.size:
            raise self.fail(f"register '{register.name}' has {register.type.bits} bits, not {kind.bits}")
        return register.name

    def _integer(self, value: int, kind: Type) -> str:
        if kind.name == "pred":
            return "true" if value else "false"
        masked = value & ((1 << kind.bits) - 1)
        return f"{masked if masked < 10 else hex(masked)}{'ull' if kind.bits == 64 else 'u'}"

    # ---- addresses ----
    def variable(self, name: str) -> Optional[Variable]:
        """The variable that a symbol names, innermost first."""
        if name in self.function.variables:
            return self.function.variables[name]
        for parameter in self.function.parameters + self.function.results:
            if parameter.name == name:
                return parameter
        return self._module.variables.get(name)

    def addressOf(self, symbol: Symbol) -> str:
        """As the symbol's own state space has it."""
        variable = self.variable(symbol.name)
        plus = f" + {symbol.offset}" if symbol.offset else ""
        if variable is not None:
            if variable.space in ("shared", "global", "const"):
                return f"({variableName(variable.name)}(){plus})" if plus else f"{variableName(variable.name)}()"
            return f"(ptx::addressOf({variable.name}){plus})"
        called = self._module.functions.get(symbol.name)
        if called is not None and not called.isEntry:
            return f"ptx::addressOf({functionName(called.name)})"
        raise self.fail(f"nothing is called '{symbol.name}'")

    def spaceOf(self, operand: Operand) -> Optional[str]:
        """State space of a symbol; None for registers."""
        variable = self.variable(operand.name) if isinstance(operand, Symbol) else None
        return variable.space if variable else None

    def address(self, operand: Operand) -> str:
        if not isinstance(operand, Address):
            raise self.fail(f"expected an address, found {operand}")
        if isinstance(operand.base, Register):
            base = f"uint64_t{{{operand.base.name}}}"
        else:
            base = self.value(operand.base, Type("b64"))
        return f"{base} + {operand.offset}" if operand.offset > 0 else (
            f"{base} - {-operand.offset}" if operand.offset < 0 else base)

    # ---- results ----
    def assign(self, target: Operand, kind: Type, expression: str) -> str:
        """Statement that gives `target` a value of type `kind`; wider registers are extended by its sign."""
        if isinstance(target, Sink):
            return f"static_cast<void>({expression});"
        if not isinstance(target, Register):
            raise self.fail(f"{target} cannot be a result")
        if (target.type.name == "pred") != (kind.name == "pred") or target.type.size < kind.size:
            raise self.fail(f"a result of type {kind.name} in register '{target.name}' of type {target.type.name}")
        if kind.kind == "s" and target.type.size > kind.size:
            return f"{target.name} = ptx::extend<ptx::{kind.name}, {target.type.register}>({expression});"
        return f"{target.name} = {expression};"

    def elements(self, operand: Operand, count: int) -> tuple:
        """Of a vector operand; a scalar is a vector of one."""
        found = operand.elements if isinstance(operand, Vector) else (operand,)
        if len(found) != count:
            raise self.fail(f"{len(found)} elements where {count} are expected")
        return found


def bytesType(variable: Variable) -> str:
    return f"ptx::Bytes<{variable.size}, {variable.align}>"


def resultType(function: Function) -> str:
    if len(function.results) > 1:
        raise PtxError(function.line, f"function '{function.name}' with {len(function.results)} results")
    return bytesType(function.results[0]) if function.results else "void"


def signature(function: Function) -> str:
    return f"{resultType(function)}({', '.join(bytesType(variable) for variable in function.parameters)})"


def functionName(name: str) -> str:
    """Device functions are static: a prefix keeps them apart from what the program itself links."""
    return "device_" + name


def variableName(name: str) -> str:
    return "variable_" + name
