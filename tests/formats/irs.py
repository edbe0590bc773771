"""OpenVINO IRs for tests: small XML texts, and files of constants."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

#: Bits of an item of each element type; strings have no size.
BITS = {
    **{"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8, "f8e8m0": 8, "f4e2m1": 4, "nf4": 4},
    **{"i64": 64, "i32": 32, "i16": 16, "i8": 8, "i4": 4, "u64": 64, "u32": 32, "u16": 16, "u8": 8},
    **{"u6": 6, "u4": 4, "u3": 3, "u2": 2, "u1": 1, "boolean": 8},
}
#: Names of numpy and ml_dtypes for readable types.
DTYPES = {
    **{"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "boolean": "bool"},
    **{"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "i4": "int4", "u4": "uint4", "u2": "uint2"},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


def const(name: str, offset: int | str, size: int | str, type: str = "f32", shape: Iterable[int] | str = "") -> str:
    """Return a Const layer."""
    extents = shape if isinstance(shape, str) else ", ".join(map(str, shape))
    return (
        f'<layer id="0" name="{name}" type="Const" version="opset1">'
        f'<data element_type="{type}" shape="{extents}" offset="{offset}" size="{size}"/>'
        '<output><port id="0" precision="FP32"/></output></layer>'
    )


def around(name: str, *bodies: tuple[str, list[str]], type: str = "If") -> str:
    """Return a layer with bodies of layers."""
    inner = "".join(f"<{tag}><layers>{''.join(layers)}</layers></{tag}>" for tag, layers in bodies)
    return f'<layer id="1" name="{name}" type="{type}" version="opset8"><data some="thing"/>{inner}</layer>'


def ir(*layers: str, version: object = 11) -> bytes:
    """Return the XML of a net."""
    head = f'<?xml version="1.0"?>\n<net name="m" version="{version}">\n\t<layers>\n'
    return f"{head}{''.join(layers)}\n\t</layers>\n\t<edges/>\n\t<rt_info/>\n</net>\n".encode()


def put(folder: Path, xml: bytes, weights: bytes, name: str = "m") -> Path:
    """Write both files; return the path of the XML."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.bin").write_bytes(weights)
    path = folder / f"{name}.xml"
    path.write_bytes(xml)
    return path


def pair(path: Path) -> tuple[bytes, bytes]:
    """Return the contents of the XML and the weights at a path."""
    return path.read_bytes(), path.with_suffix(".bin").read_bytes()
