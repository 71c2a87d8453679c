"""The types of properties, parameters and expressions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from omnigraph.core.values import INTEGER_BOUNDS, NUMERIC, Scalar

MAX_VECTOR_DIMENSION = 2**31 - 1  # Arrow counts the items of a fixed-size list in 32 bits

# The original implementation publishes these names in lint reports; tools read them.
_KINDS = {
    Scalar.STRING: "string",
    Scalar.BLOB: "blob",
    Scalar.BOOL: "bool",
    Scalar.I32: "int",
    Scalar.U32: "int",
    Scalar.I64: "bigint",
    Scalar.U64: "bigint",
    Scalar.F32: "float",
    Scalar.F64: "float",
    Scalar.DATE: "date",
    Scalar.DATETIME: "datetime",
    Scalar.VECTOR: "vector",
}


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar, a list of scalars, an enum (a String with a closed, sorted set of values) or a vector."""

    scalar: Scalar
    is_list: bool = False
    nullable: bool = False
    enum: tuple[str, ...] = ()
    dimension: int = 0

    def __post_init__(self) -> None:
        assert not self.enum or (self.scalar is Scalar.STRING and not self.is_list)
        # Sorted, so that two enums with the same values are equal in whatever order they were written.
        assert self.enum == tuple(sorted(set(self.enum)))
        assert (self.dimension > 0) == (self.scalar is Scalar.VECTOR)
        assert not (self.is_list and self.scalar in (Scalar.BLOB, Scalar.VECTOR))

    def __str__(self) -> str:
        text: str = self.scalar
        if self.enum:
            text = f"enum({', '.join(self.enum)})"
        elif self.dimension:
            text = f"Vector({self.dimension})"
        elif self.is_list:
            text = f"[{self.scalar}]"
        return f"{text}?" if self.nullable else text

    @property
    def is_numeric(self) -> bool:
        return not self.is_list and self.scalar in NUMERIC

    @property
    def is_integer(self) -> bool:
        return not self.is_list and self.scalar in INTEGER_BOUNDS

    @property
    def is_string(self) -> bool:
        return not self.is_list and self.scalar is Scalar.STRING

    @property
    def is_vector(self) -> bool:
        return self.scalar is Scalar.VECTOR

    @property
    def is_blob(self) -> bool:
        return self.scalar is Scalar.BLOB

    @property
    def is_comparable(self) -> bool:
        """Return whether values of the type can be compared and ordered."""
        return not (self.is_list or self.is_vector or self.is_blob)

    @property
    def element(self) -> Type:
        """Return the type of one element of a list."""
        return Type(self.scalar)

    def same_shape(self, other: Type) -> bool:
        """Return whether the two types are equal apart from nullability."""
        return replace(self, nullable=False) == replace(other, nullable=False)

    def accepts(self, other: Type) -> bool:
        """Return whether values of the two types can be compared: same list-ness, and same scalar or both numbers."""
        if self.is_list != other.is_list or self.dimension != other.dimension:
            return False
        # Numbers of different types compare by value; assignments check the range on top.
        return self.scalar is other.scalar or (self.scalar in NUMERIC and other.scalar in NUMERIC)

    def describe(self) -> dict[str, object]:
        """Describe the type for lint reports and stored query listings."""
        kind = _KINDS[self.scalar]
        shape: dict[str, object] = {"kind": "list", "item_kind": kind} if self.is_list else {"kind": kind}
        if self.dimension:
            shape["vector_dim"] = self.dimension
        return {**shape, "nullable": self.nullable}


STRING = Type(Scalar.STRING)
BOOL = Type(Scalar.BOOL)
I64 = Type(Scalar.I64)
F64 = Type(Scalar.F64)
DATE = Type(Scalar.DATE)
DATETIME = Type(Scalar.DATETIME)
