"""PTX types. A register is a plain unsigned integer of its width in C++ (`uint32_t r1`), whatever PTX calls it;
instructions say how its bits are read. So nothing is ever punned through a pointer."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Type:
    name: str  # u32, f16x2, pred ...

    @property
    def kind(self) -> str:
        """'u', 's', 'b' (bits), 'f' (floating point) or 'p' (predicate)."""
        if self.name in ("bf16", "bf16x2", "tf32"):
            return "f"
        return self.name[0]

    @property
    def size(self) -> int:
        return _SIZES[self.name]

    @property
    def bits(self) -> int:
        return self.size * 8

    @property
    def register(self) -> str:
        """C++ type of a register that holds it."""
        return "bool" if self.name == "pred" else f"uint{self.bits}_t"

    @property
    def helper(self) -> str:
        """Name of its type in ptx.h, which template arguments take."""
        return self.name

    @property
    def parameter(self) -> str:
        """C++ type of a kernel's parameter, so that it travels as the host passes it."""
        return {"f32": "float", "f64": "double"}.get(self.name, f"uint{self.bits}_t")


_SIZES = {
    **{f"{kind}{bits}": bits // 8 for kind in "usb" for bits in (8, 16, 32, 64)},
    "pred": 1, "f16": 2, "bf16": 2, "f32": 4, "tf32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4,
}
NAMES = frozenset(_SIZES)


def unsigned(bits: int) -> Type:
    return Type(f"u{bits}")
