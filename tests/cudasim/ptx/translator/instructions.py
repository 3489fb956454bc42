"""One instruction -> one C++ statement, for all that touch neither memory nor other threads (those: memory.py).

Each handler takes the expressions of its function, the instruction and its modifiers. To add an instruction,
write its helper in arithmetic.h and its handler here, and a row in tests/cudasim/ptx_test/opcodes.py."""
from typing import Callable

from .expressions import Expressions, Modifiers
from .syntax import Address, Instruction, Pair, Symbol, Vector
from .types import Type, unsigned

Handler = Callable[[Expressions, Instruction, Modifiers], str]
HANDLERS: dict[str, Handler] = {}

_U32 = Type("u32")
_PRED = Type("pred")
_ROUNDINGS = {"rn": "Nearest", "rz": "Zero", "rm": "Down", "rp": "Up",
              "rni": "Nearest", "rzi": "Zero", "rmi": "Down", "rpi": "Up"}


def handles(*opcodes: str):
    def register(handler: Handler) -> Handler:
        for opcode in opcodes:
            HANDLERS[opcode] = handler
        return handler
    return register


def call(helper: str, kind: Type, *arguments: str) -> str:
    return f"ptx::{helper}<ptx::{kind.name}>({', '.join(arguments)})"


def operands(to: Expressions, ins: Instruction, count: int) -> list:
    if len(ins.operands) != count:
        raise to.fail(f"'{ins.spelled}' with {len(ins.operands)} operands, not {count}")
    return ins.operands


def _floatOnlyNearest(kind: Type, mods: Modifiers) -> None:
    if kind.kind == "f":
        mods.take("rn")


def _computeCapable(kind: Type, mods: Modifiers) -> None:
    if kind.name in ("f16x2", "bf16x2", "tf32"):
        raise mods.refuse("packed formats have no arithmetic here")


# ---- add, multiply, divide ----
@handles("add", "sub", "addc", "subc")
def _sum(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    _computeCapable(kind, mods)
    _floatOnlyNearest(kind, mods)
    setsCarry, takesCarry = mods.take("cc"), ins.opcode in ("addc", "subc")
    target, a, b = operands(to, ins, 3)
    a, b = to.value(a, kind), to.value(b, kind)
    if setsCarry or takesCarry:
        to.usesCarry = True
        helper = "addCarry" if ins.opcode.startswith("add") else "subBorrow"
        result = call(helper, kind, a, b, "carry" if takesCarry else "false", "carry" if setsCarry else "ignoredCarry")
    else:
        result = call(ins.opcode, kind, a, b)
    if kind.kind == "f" and mods.take("sat"):
        result = call("saturate", kind, result)
    return to.assign(target, kind, result)


def _product(to: Expressions, kind: Type, mods: Modifiers, a, b) -> tuple[Type, str]:
    """a times b, and its type: `.lo`, `.hi` or `.wide` of integers."""
    a, b = to.value(a, kind), to.value(b, kind)
    if kind.kind == "f":
        return kind, call("mul", kind, a, b)
    form = mods.demand("lo", "hi", "wide")
    if form == "wide":
        return Type(f"{kind.kind}{2 * kind.bits}"), call("mulWide", kind, a, b)
    return kind, call("mul" if form == "lo" else "mulHi", kind, a, b)


@handles("mul")
def _multiply(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    _computeCapable(kind, mods)
    _floatOnlyNearest(kind, mods)
    target, a, b = operands(to, ins, 3)
    wide, product = _product(to, kind, mods, a, b)
    if kind.kind == "f" and mods.take("sat"):
        product = call("saturate", kind, product)
    return to.assign(target, wide, product)


@handles("mad")
def _multiplyAdd(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    if kind.kind == "f":
        raise mods.refuse("mad of floating point is not defined by IEEE; nvcc writes fma")
    target, a, b, c = operands(to, ins, 4)
    wide, product = _product(to, kind, mods, a, b)
    return to.assign(target, wide, call("add", wide, product, to.value(c, wide)))


@handles("fma")
def _fusedMultiplyAdd(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    mods.demand("rn")
    if kind.name not in ("f32", "f64"):
        raise mods.refuse("fma of 16 bits rounds once, which the simulator cannot")
    target, *sources = operands(to, ins, 4)
    return to.assign(target, kind, call("fma", kind, *(to.value(source, kind) for source in sources)))


@handles("div", "rem", "rcp", "sqrt")
def _divide(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    if kind.kind == "f":
        mods.demand("rn")
        if kind.name not in ("f32", "f64"):
            raise mods.refuse("only f32 and f64")
    target, *sources = operands(to, ins, 2 if ins.opcode in ("rcp", "sqrt") else 3)
    return to.assign(target, kind, call(ins.opcode, kind, *(to.value(source, kind) for source in sources)))


# ---- sign and order ----
@handles("neg", "abs")
def _sign(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    _computeCapable(kind, mods)
    target, a = operands(to, ins, 2)
    return to.assign(target, kind, call(ins.opcode, kind, to.value(a, kind)))


@handles("copysign")
def _copySign(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, sign, magnitude = operands(to, ins, 3)
    return to.assign(target, kind, call("copysign", kind, to.value(sign, kind), to.value(magnitude, kind)))


@handles("min", "max")
def _order(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    _computeCapable(kind, mods)
    helper = ins.opcode + ("Nan" if mods.take("NaN") else "")
    target, a, b = operands(to, ins, 3)
    return to.assign(target, kind, call(helper, kind, to.value(a, kind), to.value(b, kind)))


_COMPARISONS = {name: name.capitalize() for name in (
    "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")}
_UNSIGNED_COMPARISONS = {"lo": "Lt", "ls": "Le", "hi": "Gt", "hs": "Ge"}
_BOOLEANS = {"and": "&&", "or": "||", "xor": "!="}


def _comparison(to: Expressions, ins: Instruction, mods: Modifiers, kind: Type) -> tuple[str, str]:
    """`a compared with b`, and the boolean operation with a third operand ('' without)."""
    comparison = mods.demand(*_COMPARISONS, *_UNSIGNED_COMPARISONS)
    boolean = mods.oneOf(*_BOOLEANS)
    how = {**_COMPARISONS, **_UNSIGNED_COMPARISONS}[comparison]
    sources = operands(to, ins, 4 if boolean else 3)[1:]
    a, b = to.value(sources[0], kind), to.value(sources[1], kind)
    compared = f"ptx::compare<ptx::{kind.name}, ptx::Compare::{how}>({a}, {b})"
    return compared, f" {_BOOLEANS[boolean]} {to.predicate(sources[2])}" if boolean else ""


@handles("setp")
def _setPredicate(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    compared, boolean = _comparison(to, ins, mods, mods.type())
    target = ins.operands[0]
    if isinstance(target, Pair):  # p|q: q is the opposite comparison
        return (f"{{ const bool holds = {compared}; {to.assign(target.first, _PRED, 'holds' + boolean)} "
                f"{to.assign(target.second, _PRED, '!holds' + boolean)} }}")
    return to.assign(target, _PRED, compared + boolean)


@handles("set")
def _set(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    source, target = mods.type(), mods.type()
    compared, boolean = _comparison(to, ins, mods, source)
    return to.assign(ins.operands[0], target, call("truth", target, compared + boolean))


@handles("selp")
def _select(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, a, b, p = operands(to, ins, 4)
    chosen = f"ptx::select<{kind.register}>({to.predicate(p)}, {to.value(a, kind)}, {to.value(b, kind)})"
    return to.assign(target, kind, chosen)


@handles("slct")
def _selectBySign(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    condition, kind = mods.type(), mods.type()
    target, a, b, c = operands(to, ins, 4)
    zero = f"ptx::compare<ptx::{condition.name}, ptx::Compare::Ge>({to.value(c, condition)}, 0)"
    return to.assign(target, kind, f"ptx::select<{kind.register}>({zero}, {to.value(a, kind)}, {to.value(b, kind)})")


_CLASSES = {"finite": "Finite", "infinite": "Infinite", "number": "Number", "notanumber": "NotANumber",
            "normal": "Normal", "subnormal": "Subnormal"}


@handles("testp")
def _testClass(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    which = _CLASSES[mods.demand(*_CLASSES)]
    target, a = operands(to, ins, 2)
    return to.assign(target, _PRED, f"ptx::testp<ptx::{kind.name}, ptx::Class::{which}>({to.value(a, kind)})")


# ---- bits ----
@handles("and", "or", "xor")
def _logic(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, a, b = operands(to, ins, 3)
    sign = _BOOLEANS[ins.opcode] if kind == _PRED else {"and": "&", "or": "|", "xor": "^"}[ins.opcode]
    return to.assign(target, kind, f"{to.value(a, kind)} {sign} {to.value(b, kind)}")


@handles("not", "cnot")
def _complement(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, a = operands(to, ins, 2)
    a = to.value(a, kind)
    if kind == _PRED:
        return to.assign(target, kind, f"!{a}")
    return to.assign(target, kind, f"static_cast<{kind.register}>({'~' if ins.opcode == 'not' else '!'}{a})")


@handles("shl", "shr")
def _shift(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, a, by = operands(to, ins, 3)
    return to.assign(target, kind, call(ins.opcode, kind, to.value(a, kind), to.value(by, _U32)))


@handles("shf")
def _funnelShift(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    direction = mods.demand("l", "r")
    mode = mods.demand("wrap", "clamp")
    target, low, high, by = operands(to, ins, 4)
    by = to.value(by, _U32)
    by = f"{by} & 31" if mode == "wrap" else f"std::min({by}, 32u)"
    helper = "shfLeft" if direction == "l" else "shfRight"
    return to.assign(target, kind, f"ptx::{helper}({to.value(low, kind)}, {to.value(high, kind)}, {by})")


@handles("popc", "clz", "bfind")
def _count(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    helper = "bfindShift" if mods.take("shiftamt") else ins.opcode
    target, a = operands(to, ins, 2)
    return to.assign(target, _U32, call(helper, kind, to.value(a, kind)))


@handles("brev")
def _reverse(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, a = operands(to, ins, 2)
    return to.assign(target, kind, call("brev", kind, to.value(a, kind)))


@handles("bfe")
def _extractField(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, a, start, length = operands(to, ins, 4)
    return to.assign(target, kind,
                     call("bfe", kind, to.value(a, kind), to.value(start, _U32), to.value(length, _U32)))


@handles("bfi")
def _insertField(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, field, into, start, length = operands(to, ins, 5)
    return to.assign(target, kind, call("bfi", kind, to.value(field, kind), to.value(into, kind),
                                        to.value(start, _U32), to.value(length, _U32)))


@handles("prmt")
def _permute(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, *sources = operands(to, ins, 4)
    return to.assign(target, kind, f"ptx::prmt({', '.join(to.value(source, kind) for source in sources)})")


@handles("lop3")
def _anyLogic(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, *sources = operands(to, ins, 5)
    return to.assign(target, kind, f"ptx::lop3({', '.join(to.value(source, kind) for source in sources)})")


# ---- moves and conversions ----
@handles("mov")
def _move(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    target, source = operands(to, ins, 2)
    if isinstance(target, Vector):
        part = unsigned(kind.bits // len(target.elements))
        parts = [to.assign(element, part, f"static_cast<{part.register}>(whole >> {part.bits * i})")
                 for i, element in enumerate(target.elements)]
        return f"{{ const {kind.register} whole = {to.value(source, kind)}; {' '.join(parts)} }}"
    if isinstance(source, Vector):
        part = unsigned(kind.bits // len(source.elements))
        parts = [f"static_cast<{part.register}>({to.value(element, part)})" for element in source.elements]
        return to.assign(target, kind, f"ptx::pack<{kind.register}>({', '.join(parts)})")
    if isinstance(source, Symbol) and to.spaceOf(source) == "shared" and kind.bits == 32:
        return to.assign(target, kind, f"static_cast<uint32_t>({to.addressOf(source)})")
    return to.assign(target, kind, to.value(source, kind))


@handles("cvta")
def _convertAddress(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    """Only shared addresses differ from generic ones: they count from the start of the block's shared memory."""
    kind = mods.type()
    toSpace = mods.take("to")
    space = (mods.oneOf("shared", "shared::cta") or mods.demand("global", "local", "const", "param")).split("::")[0]
    target, source = operands(to, ins, 2)
    value = to.address(source) if isinstance(source, Address) else to.value(source, kind)
    if space == "shared":
        value = f"ptx::{'genericToShared' if toSpace else 'sharedToGeneric'}({value})"
    return to.assign(target, kind, value)


@handles("isspacep")
def _isSpace(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    space = mods.demand("global", "shared", "local", "const", "param")
    target, address = operands(to, ins, 2)
    return to.assign(target, _PRED, f"ptx::isIn{space.capitalize()}({to.value(address, Type('b64'))})")


@handles("cvt")
def _convert(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    source, target = mods.type(), mods.type()
    rounding = mods.oneOf(*_ROUNDINGS)
    saturated = mods.take("sat")
    if target.name in ("f16x2", "bf16x2"):
        return _convertPair(to, ins, mods, source, target, rounding)
    if target.name == "tf32" or source.name in ("f16x2", "bf16x2", "tf32"):
        raise mods.refuse("this format is not known")
    destination, a = operands(to, ins, 2)
    a, round = to.value(a, source), f"ptx::Round::{_ROUNDINGS[rounding]}" if rounding else None
    names = f"ptx::{target.name}, ptx::{source.name}"
    if source.kind != "f" and target.kind != "f":
        result = f"ptx::integerToInteger{'Sat' if saturated else ''}<{names}>({a})"
    elif source.kind != "f":
        result = f"ptx::integerToFloat<{names}, {round or 'ptx::Round::Nearest'}>({a})"
    elif target.kind != "f":
        if not round:
            raise mods.refuse("needs a rounding")
        result = f"ptx::floatToInteger<{names}, {round}>({a})"
    else:
        if target.size < source.size and not round:
            raise mods.refuse("needs a rounding")
        if target == source and round:
            result = f"ptx::roundToWhole<ptx::{target.name}, {round}>({a})"
        else:
            result = f"ptx::floatToFloat<{names}, {round or 'ptx::Round::Nearest'}>({a})"
        if saturated:
            result = call("saturate", target, result)
    return to.assign(destination, target, result)


def _convertPair(to: Expressions, ins: Instruction, mods: Modifiers, source: Type, target: Type, rounding) -> str:
    """cvt.rn.bf16x2.f32 d, high, low."""
    half = Type(target.name[:-2])
    if source.name != "f32" or rounding not in ("rn", "rz"):
        raise mods.refuse("only .rn and .rz from f32")
    destination, high, low = operands(to, ins, 3)
    parts = [f"ptx::floatToFloat<ptx::{half.name}, ptx::f32, ptx::Round::{_ROUNDINGS[rounding]}>"
             f"({to.value(part, source)})" for part in (low, high)]
    return to.assign(destination, target, f"ptx::pack<uint32_t>({', '.join(parts)})")
