"""Instructions that touch memory, other threads or time -> calls of the helpers in memory.h and threads.h.

State spaces are template arguments of the helpers; what an access means (weak, strong, part of a line) is decided
here, from the modifiers:

  ld.global, st.global                            weak: delayed, stale and checked as the core pleases
  ld/st with .relaxed, .acquire, .release         strong, at the scope that is written
  ld/st.volatile of one element                   strong: relaxed, .sys
  ld/st.volatile.global.v4.u32                    LL: two pairs of data and flag, each whole
  ld/st.volatile.global.v2.u64                    LL128: the lane's part of a line, all lanes of a warp together
"""
from .expressions import Expressions, Modifiers, signature
from .instructions import handles, operands
from .syntax import Instruction, Pair, Register, Sink, Symbol, Vector
from .types import Type

_U32 = Type("u32")
_B32 = Type("b32")
_PRED = Type("pred")
_SPACES = ("global", "shared", "shared::cta", "local", "const", "param", "param::entry", "param::func")
_CACHES = ("ca", "cg", "cs", "lu", "wb", "wt", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
           "L1::evict_last", "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B")
_ORDERS = {"relaxed": "Relaxed", "acquire": "Acquire", "release": "Release", "acq_rel": "AcquireRelease",
           "sc": "AcquireRelease"}
_SCOPES = {"cta": "Block", "gpu": "Device", "sys": "System", "cluster": "Block"}


def _space(mods: Modifiers) -> str:
    return {None: "Generic"}.get(found := mods.oneOf(*_SPACES), (found or "").split("::")[0].capitalize())


def _vectorLength(mods: Modifiers) -> int:
    found = mods.oneOf("v2", "v4")
    return int(found[1:]) if found else 1


def _strength(to: Expressions, mods: Modifiers) -> tuple[str, str]:
    """Order and scope of an access ('' and '' when weak)."""
    if mods.take("volatile") or mods.take("cv"):
        return "Relaxed", "System"
    if mods.take("weak"):
        return "", ""
    order = mods.oneOf("relaxed", "acquire", "release")
    return (_ORDERS[order], _SCOPES[mods.demand(*_SCOPES)]) if order else ("", "")


# ---- load and store ----
@handles("ld", "ldu", "st")
def _access(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind, length, space = mods.type(), _vectorLength(mods), _space(mods)
    isVolatile = "volatile" in ins.modifiers
    order, scope = _strength(to, mods)
    isNonCoherent = mods.take("nc")
    mods.ignore(*_CACHES)
    isLoad = ins.opcode != "st"
    first, second = operands(to, ins, 2)
    value, where = (first, second) if isLoad else (second, first)
    address, elements = to.address(where), to.elements(value, length)
    if space in ("Local", "Const", "Param"):
        order = ""  # nobody else writes these
    if length > 1 and order:
        if not isVolatile or space != "Global" or (length, kind.bits) not in ((2, 64), (4, 32)):
            raise mods.refuse("vectors are strong only as LL pairs (volatile.global.v4.u32) and parts of LL128 lines "
                              "(volatile.global.v2.u64)")
        helper = "LinePart" if length == 2 else "Flagged"
        return _load(to, kind, elements, f"ptx::load{helper}({address})") if isLoad else (
            f"ptx::store{helper}({address}, {{{_values(to, kind, elements)}}});")
    names = f"ptx::Space::{space}, ptx::{kind.name}"
    if order:
        names += f", ptx::Order::{order}, ptx::Scope::{scope}"
        if isLoad:
            return to.assign(elements[0], kind, f"ptx::loadStrong<{names}>({address})")
        return f"ptx::storeStrong<{names}>({address}, {to.value(elements[0], kind)});"
    if isNonCoherent:
        if space != "Global":
            raise mods.refuse(".nc is of .global only")
        return _load(to, kind, elements, f"ptx::loadNonCoherent<ptx::{kind.name}, {length}>({address})")
    if isLoad:
        return _load(to, kind, elements, f"ptx::load<{names}, {length}>({address})")
    return f"ptx::store<{names}, {length}>({address}, {{{_values(to, kind, elements)}}});"


def _load(to: Expressions, kind: Type, elements: tuple, call: str) -> str:
    if len(elements) == 1:
        return to.assign(elements[0], kind, f"{call}[0]")
    parts = [to.assign(element, kind, f"loaded[{i}]") for i, element in enumerate(elements)
             if not isinstance(element, Sink)]
    return f"{{ const auto loaded = {call}; {' '.join(parts)} }}"


def _values(to: Expressions, kind: Type, elements: tuple) -> str:
    return ", ".join(f"static_cast<{kind.register}>({to.value(element, kind)})" for element in elements)


@handles("prefetch", "prefetchu", "applypriority", "discard")
def _hint(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    if ins.opcode == "discard":
        raise mods.refuse("it destroys data")
    mods.ignore("global", "local", "L1", "L2", "L2::evict_last", "L2::evict_normal", "L2::128B")
    return ";"


# ---- atomics ----
_OPERATIONS = {"add": "Add", "and": "And", "or": "Or", "xor": "Xor", "min": "Min", "max": "Max", "inc": "Inc",
               "dec": "Dec", "exch": "Exchange", "cas": "Cas"}


@handles("atom", "red")
def _atomic(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind, space = mods.type(), _space(mods)
    operation = mods.demand(*_OPERATIONS)
    order = _ORDERS[mods.oneOf("relaxed", "acquire", "release", "acq_rel") or "relaxed"]
    scope = _SCOPES[mods.oneOf(*_SCOPES) or "gpu"]
    if space not in ("Global", "Shared", "Generic"):
        raise mods.refuse("atomics are of global and shared memory")
    if kind.size < 4 and operation != "cas":
        raise mods.refuse("atomics of 16 bits")
    if kind.kind == "f":
        if not (operation == "add" and kind.name in ("f32", "f64")):
            raise mods.refuse("only add of f32 and f64")
        mods.take("rn")
    target, address, *values = ins.operands if ins.opcode == "atom" else [Sink(), *ins.operands]
    values = [to.value(value, kind) for value in values]
    if len(values) != (2 if operation == "cas" else 1):
        raise to.fail(f"'{ins.spelled}' with {len(ins.operands)} operands")
    call = (f"ptx::atomic<ptx::Space::{space}, ptx::{kind.name}, ptx::Atomic::{_OPERATIONS[operation]}, "
            f"ptx::Order::{order}, ptx::Scope::{scope}>({to.address(address)}, {', '.join(values)})")
    return to.assign(target, kind, call)


@handles("fence", "membar")
def _fence(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    if ins.opcode == "membar":
        scope = {"cta": "Block", "gl": "Device", "sys": "System"}[mods.demand("cta", "gl", "sys")]
        return f"ptx::fence<ptx::Scope::{scope}>();"
    mods.oneOf("acq_rel", "sc")
    return f"ptx::fence<ptx::Scope::{_SCOPES[mods.demand(*_SCOPES)]}>();"


# ---- threads of the block and of the warp ----
@handles("bar", "barrier")
def _barrier(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    if mods.take("warp"):
        mods.demand("sync")
        (mask,) = operands(to, ins, 1)
        return f"ptx::syncWarp({to.value(mask, _B32)});"
    mods.ignore("cta", "aligned")
    form = mods.demand("sync", "arrive", "red")
    if form != "red":
        barrier, *threads = ins.operands
        count = to.value(threads[0], _U32) if threads else "0"
        return f"ptx::{'syncBlock' if form == 'sync' else 'arriveBlock'}({to.value(barrier, _U32)}, {count});"
    operation = {"and": "And", "or": "Or", "popc": "Count"}[mods.demand("and", "or", "popc")]
    kind = mods.type()
    target, barrier, *threads, p = ins.operands
    count = to.value(threads[0], _U32) if threads else "0"
    call = (f"ptx::syncBlockReduce<peal::cudasim::Reduction::{operation}>({to.value(barrier, _U32)}, {count}, "
            f"{to.predicate(p)})")
    return to.assign(target, kind, call if operation == "Count" else f"{call} != 0")


@handles("shfl")
def _shuffle(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    mods.demand("sync")
    mode = {"up": "Up", "down": "Down", "bfly": "Butterfly", "idx": "Index"}[mods.demand("up", "down", "bfly", "idx")]
    target, value, lane, clamp, mask = operands(to, ins, 5)
    call = (f"ptx::shuffle<ptx::Shuffle::{mode}>({to.value(value, kind)}, {to.value(lane, _U32)}, "
            f"{to.value(clamp, _U32)}, {to.value(mask, _U32)})")
    if isinstance(target, Pair):
        return (f"{{ const auto moved = {call}; {to.assign(target.first, kind, 'moved.value')} "
                f"{to.assign(target.second, _PRED, 'moved.inRange')} }}")
    return to.assign(target, kind, f"{call}.value")


@handles("vote")
def _vote(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    mods.demand("sync")
    form = mods.demand("ballot", "any", "all", "uni")
    target, p, mask = operands(to, ins, 3)
    ballot, mask = f"ptx::ballot({to.value(mask, _U32)}, {to.predicate(p)})", to.value(mask, _U32)
    if form == "ballot":
        return to.assign(target, kind, ballot)
    result = {"any": "votes != 0", "all": f"votes == ({mask})", "uni": f"votes == 0 || votes == ({mask})"}[form]
    return f"{{ const uint32_t votes = {ballot}; {to.assign(target, kind, result)} }}"


@handles("match")
def _match(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    raise mods.refuse("the simulator has no such operation of a warp")


@handles("activemask")
def _activeMask(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    """Which lanes run together is up to the device: one lane alone is always a right answer."""
    kind = mods.type()
    (target,) = operands(to, ins, 1)
    return to.assign(target, kind, "(1u << ptx::laneIndex())")


@handles("elect")
def _elect(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    raise mods.refuse("the simulator has no such operation of a warp")


@handles("nanosleep")
def _sleep(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    kind = mods.type()
    (duration,) = operands(to, ins, 1)
    return f"ptx::sleep({to.value(duration, kind)});"


# ---- control ----
@handles("trap", "brkpt")
def _trap(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    return "ptx::trap();"


@handles("ret", "exit")
def _return(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    mods.ignore("uni")
    if ins.opcode == "exit" and not to.function.isEntry:
        raise mods.refuse("exit inside a device function")
    results = to.function.results
    return f"return {results[0].name};" if results else "return;"


@handles("call")
def _call(to: Expressions, ins: Instruction, mods: Modifiers) -> str:
    """call{.uni} (result), function, (arguments){, prototype}: all are .param variables."""
    mods.ignore("uni")
    rest = list(ins.operands)
    result = rest.pop(0).elements if isinstance(rest[0], Vector) else ()
    called = rest.pop(0)
    arguments = rest.pop(0).elements if rest and isinstance(rest[0], Vector) else ()
    passed = []
    for argument in arguments:
        variable = to.variable(argument.name) if isinstance(argument, Symbol) else None
        if variable is None or variable.space != "param":
            raise to.fail(f"argument {argument} of a call is not a .param variable")
        passed.append(argument.name)
    if isinstance(called, Register):
        function = _indirect(to, called, rest)
    elif isinstance(called, Symbol) and called.name in to.calls:
        function = to.calls[called.name]
    else:
        raise to.fail(f"call of '{called.name if isinstance(called, Symbol) else called}', which nothing here defines")
    target = f"{result[0].name} = " if result else ""
    return f"{target}{function}({', '.join(passed)});"


def _indirect(to: Expressions, called: Register, rest: list) -> str:
    name = rest[0].name if rest and isinstance(rest[0], Symbol) else ""
    if name not in to.function.prototypes:
        raise to.fail("an indirect call without a prototype")
    return f"ptx::functionAt<{signature(to.function.prototypes[name])}>({called.name})"
