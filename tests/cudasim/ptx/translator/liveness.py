"""Which registers may be read before they are written: only those are given a value at the start of a function,
a poison that a wrong program shows. All others are plain declarations, which compile quickly."""
from .syntax import Address, Function, Instruction, Label, Not, Operand, Pair, Register, Symbol, Vector

# Instructions whose first operand is not a result.
_NO_RESULT = {"st", "red", "bra", "brx", "bar", "barrier", "fence", "membar", "ret", "exit", "trap", "nanosleep",
              "prefetch", "prefetchu", "brkpt", "discard", "applypriority"}


def _registers(operand: Operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, Not):
        return _registers(operand.of)
    if isinstance(operand, Address):
        return _registers(operand.base)
    if isinstance(operand, Vector):
        return [register for element in operand.elements for register in _registers(element)]
    if isinstance(operand, Pair):
        return _registers(operand.first) + _registers(operand.second)
    return []


def hasResult(instruction: Instruction) -> bool:
    if instruction.opcode in ("bar", "barrier"):
        return "red" in instruction.modifiers
    if instruction.opcode == "call":
        return False
    return instruction.opcode not in _NO_RESULT


def successors(function: Function, at: int, labels: dict[str, int]) -> list[int]:
    """Statements that may follow the one at index `at`."""
    assert function.body is not None
    statement, following = function.body[at], [at + 1] if at + 1 < len(function.body) else []
    if isinstance(statement, Label):
        return following
    if statement.opcode == "bra" and isinstance(statement.operands[0], Symbol):
        target = [labels[statement.operands[0].name]] if statement.operands[0].name in labels else []
        return target + following if statement.predicate else target
    if statement.opcode == "brx" and isinstance(statement.operands[1], Symbol):
        return [labels[name] for name in function.branchTargets.get(statement.operands[1].name, [])]
    if statement.opcode in ("ret", "exit", "trap") and statement.predicate is None:
        return []
    return following


def readBeforeWritten(function: Function) -> list[Register]:
    """Registers live at the function's entry, by backward data flow over bit sets."""
    assert function.body is not None
    number = {name: i for i, name in enumerate(function.registers)}
    labels = {statement.name: i for i, statement in enumerate(function.body) if isinstance(statement, Label)}
    uses, kills, follow = [], [], []
    for at, statement in enumerate(function.body):
        used = killed = 0
        if isinstance(statement, Instruction):
            sources, results = statement.operands, []
            if hasResult(statement) and statement.operands:
                sources, results = statement.operands[1:], [statement.operands[0]]
            if statement.predicate is not None:
                sources = [*sources, statement.predicate]
            for source in sources:
                for register in _registers(source):
                    used |= 1 << number[register.name]
            if statement.predicate is None:
                for result in results:
                    for register in _registers(result):
                        killed |= 1 << number[register.name]
        uses.append(used)
        kills.append(killed)
        follow.append(successors(function, at, labels))
    live, changed = [0] * len(uses), True
    while changed:
        changed = False
        for at in range(len(uses) - 1, -1, -1):
            after = 0
            for successor in follow[at]:
                after |= live[successor]
            before = uses[at] | (after & ~kills[at])
            if before != live[at]:
                live[at], changed = before, True
    atEntry = live[0] if live else 0
    return [register for name, register in function.registers.items() if atEntry >> number[name] & 1]
