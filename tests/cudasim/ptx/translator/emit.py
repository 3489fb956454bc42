"""Module -> C++ file: storage of variables, device functions, and each kernel under its mangled name.

A kernel takes its parameters by value as the host passes them: numbers as such, a struct as ptx::Bytes of the same
size and alignment. Structs of more than 16 bytes travel in memory whatever they hold, so the two agree; smaller ones
travel in registers chosen by their fields, which PTX does not tell, and are refused."""
import re

from . import memory  # noqa: F401  (registers its handlers)
from .errors import PtxError
from .expressions import Expressions, Modifiers, bytesType, functionName, resultType, variableName
from .instructions import HANDLERS
from .liveness import readBeforeWritten
from .syntax import Float, Function, Instruction, Integer, Label, Module, Register, Symbol, Variable
from .types import Type

_INDENT = "  "
_LARGEST_IN_REGISTERS = 16


def _isStruct(variable: Variable) -> bool:
    return variable.type.name == "b8" and variable.count != 1


class Emitter:
    def __init__(self, module: Module, source: str):
        self._module = module
        self._source = source
        self._lines: list[str] = []

    def emit(self) -> str:
        module = self._module
        self._lines = [
            f"// Translated from {self._source} by tests/cudasim/ptx/ptx2cpp.py. Do not edit.",
            '#include "tests/cudasim/ptx/ptx.h"', "", "namespace ptx = peal::cudasim::ptx;", "namespace {", ""]
        defined = [function for function in module.functions.values() if function.body is not None]
        for function in defined:
            if not function.isEntry:
                self._lines.append(f"{self._head(function)};")
        self._variables()
        bodies = [self._function(function) for function in defined]
        self._sharedLayout(defined)
        for function, body in zip(defined, bodies):
            if function.isEntry:
                self._lines += ["}  // namespace", *body, "namespace {"]
            else:
                self._lines += body
        self._lines.append("}  // namespace")
        return "\n".join(self._lines) + "\n"

    # ---- variables of the module ----
    def _variables(self) -> None:
        self._lines += [f"uint64_t {variableName(variable.name)}();" for variable in self._module.variables.values()
                        if variable.space in ("global", "const")]  # their initial values may name each other
        for variable in self._module.variables.values():
            if variable.space not in ("global", "const"):
                continue
            if variable.count is None:
                raise PtxError(variable.line, f"variable '{variable.name}' is defined elsewhere")
            name = variableName(variable.name)
            self._lines += [
                f"uint64_t {name}() {{",
                f"{_INDENT}static const uint64_t address = [] {{",
                f"{_INDENT * 2}const uint64_t at = ptx::moduleVariable({variable.size}, "
                f"{{{self._initialBytes(variable)}}});",
                *(f"{_INDENT * 2}ptx::putAddress(at, {offset}, {value});"
                  for offset, value in self._initialAddresses(variable)),
                f"{_INDENT * 2}return at;", f"{_INDENT}}}();", f"{_INDENT}return address;", "}"]

    @staticmethod
    def _initialBytes(variable: Variable) -> str:
        data = bytearray()
        for value in variable.initial:
            if isinstance(value, Float):
                data += value.bits.to_bytes(variable.type.size, "little")
            elif isinstance(value, Integer):
                data += (value.value & ((1 << variable.type.bits) - 1)).to_bytes(variable.type.size, "little")
            else:
                data += bytes(variable.type.size)
        return ", ".join(map(str, data))

    def _initialAddresses(self, variable: Variable) -> list[tuple[int, str]]:
        nowhere = Expressions(self._module, Function("", False, [], [], variable.line))
        nowhere.line = variable.line
        return [(i * variable.type.size, nowhere.addressOf(value)) for i, value in enumerate(variable.initial)
                if isinstance(value, Symbol)]

    def _sharedLayout(self, defined: list[Function]) -> None:
        """Offsets in a block's shared memory. What kernels declare for themselves overlaps from kernel to kernel;
        dynamic memory comes behind."""
        module, at = self._module, 0
        common = [v for v in module.variables.values() if v.space == "shared" and v.count is not None]
        for function in defined:
            if not function.isEntry:
                common += [v for v in function.variables.values() if v.space == "shared"]
        declarations: list[str] = []

        def place(variables, start: int) -> int:
            for variable in variables:
                start = _roundUp(start, variable.align)
                declarations.append(f"constexpr uint64_t {variableName(variable.name)}() {{ return {start}; }}")
                start += variable.size
            return start

        at = place(common, 0)
        most = at
        for function in defined:
            if function.isEntry:
                own = [v for v in function.variables.values() if v.space == "shared"]
                most = max(most, place(own, at))
        for variable in module.variables.values():
            if variable.space == "shared" and variable.count is None:
                declarations.append(
                    f"uint64_t {variableName(variable.name)}() {{ return ptx::dynamicSharedOffset(); }}")
        if declarations:
            self._lines += [f"constexpr uint64_t kStaticShared = {_roundUp(most, 128)};", *declarations]

    # ---- functions ----
    def _head(self, function: Function) -> str:
        if function.isEntry:
            parameters = ", ".join(f"{self._entryType(v)} {v.name}" for v in function.parameters)
            return f'extern "C" void {function.name}({parameters})'
        parameters = ", ".join(f"{bytesType(v)} {v.name}" for v in function.parameters)
        return f"[[maybe_unused]] {resultType(function)} {functionName(function.name)}({parameters})"

    def _entryType(self, parameter: Variable) -> str:
        if not _isStruct(parameter):
            return parameter.type.parameter
        if parameter.size <= _LARGEST_IN_REGISTERS:
            raise PtxError(parameter.line, f"parameter '{parameter.name}' is a struct of {parameter.size} bytes: how the "
                           "host passes it depends on its fields, which PTX does not tell; make it larger than "
                           f"{_LARGEST_IN_REGISTERS} bytes or pass its fields")
        return bytesType(parameter)

    def _function(self, function: Function) -> list[str]:
        to = Expressions(self._module, function)
        statements = self._statements(function, to)
        poisoned = {register.name for register in readBeforeWritten(function)}
        lines = [self._head(function) + " {"]
        if function.isEntry:
            lines.append(f"{_INDENT}ptx::enterKernel({self._usesShared(function)}, {function.maxThreads or 0});")
        lines += [f"{_INDENT}{declaration}" for declaration in _registerDeclarations(function, poisoned)]
        if to.usesCarry:
            lines.append(f"{_INDENT}[[maybe_unused]] bool carry = false, ignoredCarry = false;")
        for variable in function.variables.values():
            if variable.space == "local":
                lines.append(f"{_INDENT}alignas({variable.align}) unsigned char {variable.name}[{variable.size}];")
            elif variable.space == "param":
                lines.append(f"{_INDENT}{bytesType(variable)} {variable.name};")
        lines += [f"{_INDENT}{bytesType(variable)} {variable.name};" for variable in function.results]
        return lines + statements + ["}"]

    def _usesShared(self, function: Function) -> str:
        anywhere = [*self._module.variables.values()]
        for other in self._module.functions.values():
            anywhere += other.variables.values()
        return "kStaticShared" if any(variable.space == "shared" for variable in anywhere) else "0"

    def _statements(self, function: Function, to: Expressions) -> list[str]:
        assert function.body is not None
        lines: list[str] = []
        passed: set[str] = set()  # labels before this statement: a branch to one of them closes a loop
        for statement in function.body:
            if isinstance(statement, Label):
                lines.append(f"{statement.name}:;")
                passed.add(statement.name)
            else:
                to.line = statement.line
                lines.append(f'#line {statement.line} "{self._source}"')
                lines.append(_INDENT + self._guarded(statement, to, passed))
        return lines

    def _guarded(self, ins: Instruction, to: Expressions, passed: set[str]) -> str:
        translated = self._instruction(ins, to, passed)
        if ins.predicate is None:
            return translated
        return f"if ({to.predicate(ins.predicate)}) {{ {translated} }}"

    def _instruction(self, ins: Instruction, to: Expressions, passed: set[str]) -> str:
        mods = Modifiers(ins)
        if ins.opcode == "bra":
            mods.ignore("uni")
            (target,) = ins.operands
            if not isinstance(target, Symbol) or target.name not in to.labels:
                raise to.fail(f"branch to {target}, which is no label")
            translated = _branch(target.name, passed)
        elif ins.opcode == "brx":
            mods.ignore("idx", "uni")
            translated = self._jumpTable(ins, to, passed)
        elif ins.opcode in HANDLERS:
            translated = HANDLERS[ins.opcode](to, ins, mods)
        else:
            raise PtxError(ins.line, f"'{ins.spelled}' is not supported: unknown instruction")
        mods.finish()
        return translated

    @staticmethod
    def _jumpTable(ins: Instruction, to: Expressions, passed: set[str]) -> str:
        index, table = ins.operands
        if not isinstance(table, Symbol) or table.name not in to.function.branchTargets:
            raise to.fail("brx.idx without its .branchtargets")
        cases = " ".join(f"case {i}: {_branch(target, passed)}"
                         for i, target in enumerate(to.function.branchTargets[table.name]))
        return f"switch ({to.value(index, Type('u32'))}) {{ {cases} default: ptx::trap(); }}"


def _branch(target: str, passed: set[str]) -> str:
    return f"{{ ptx::backEdge(); goto {target}; }}" if target in passed else f"goto {target};"


def _registerDeclarations(function: Function, poisoned: set[str]) -> list[str]:
    byType: dict[str, list[str]] = {}
    for register in sorted(function.registers.values(), key=_naturalOrder):
        kind = register.type.register
        initial = f" = ptx::kPoison<{kind}>" if register.name in poisoned else ""
        byType.setdefault(kind, []).append(register.name + initial)
    return [f"[[maybe_unused]] {kind} {', '.join(names)};" for kind, names in byType.items()]


def _naturalOrder(register: Register) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", register.name)]


def _roundUp(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def emit(module: Module, source: str) -> str:
    return Emitter(module, source).emit()
