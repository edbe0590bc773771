"""Strict JSON for untrusted input, and typed access to object members."""

from __future__ import annotations

import base64
import json
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..errors import ElementError
from ..rules import Requirement

T = TypeVar("T")
D = TypeVar("D")

#: Number of digits of the longest integer permitted, which has 64 bits.
_MAX_DIGITS = 20
_NAMES = {str: "a string", int: "an integer", bool: "a boolean", list: "an array", dict: "an object"}


def load(data: bytes) -> Any:
    """Parse a JSON text without fractions. Raise ElementError for invalid or expensive input."""
    try:
        return json.loads(data.decode(), parse_int=_integer, parse_float=_refused, parse_constant=_refused)
    except RecursionError:
        raise ElementError("the JSON text is nested too deeply", rule=Requirement.SIDE_INFORMATION) from None
    except ValueError as error:
        raise ElementError(f"side information is not valid JSON: {error}", rule=Requirement.SIDE_INFORMATION) from None


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits):,} digits; at most {_MAX_DIGITS} are supported")
    return int(digits)


def _refused(number: str) -> NoReturn:
    raise ValueError(f"{number[:_MAX_DIGITS]} is not an integer")


def shown(key: str) -> str:
    """Return a key as it appears in the path of an error."""
    return f"[{json.dumps(key)}]"


class Members:
    """JSON object whose members are taken one by one; its path is used in errors.

    Raises ElementError for another value.

    Parameters
    ----------
    value : object
        Value from :func:`load`.
    path : str
        Path such as ``tensors["w"].code``; empty for the whole text.
    """

    def __init__(self, value: Any, path: str) -> None:
        if type(value) is not dict:
            raise ElementError(f"expected {_NAMES[dict]}", path=path, rule=Requirement.SIDE_INFORMATION)
        self.values: dict[str, Any] = value
        self.path = path

    def at(self, name: str) -> str:
        """Return the path of a member."""
        return f"{self.path}.{name}" if self.path else name

    def refuse(self, name: str, message: str) -> NoReturn:
        """Raise ElementError about a member."""
        raise ElementError(message, path=self.at(name), rule=Requirement.SIDE_INFORMATION)

    def need(self, name: str, kind: type[T]) -> T:
        """Take a required member. Raise ElementError unless it has exactly this type."""
        if name not in self.values:
            self.refuse(name, "is missing")
        value = self.values.pop(name)
        if type(value) is not kind:  # type() because a bool is an int in Python
            self.refuse(name, f"expected {_NAMES[kind]}")
        return value

    def take(self, name: str, kind: type[T], default: D) -> T | D:
        """Take an optional member."""
        return self.need(name, kind) if name in self.values else default

    def data(self, name: str, width: int) -> bytes:
        """Take items of ``width`` bytes, as written by :func:`text`."""
        text = self.need(name, str)
        try:
            value = base64.b64decode(text, validate=True)
        except ValueError:  # raised by binascii, or for characters beyond ASCII
            self.refuse(name, "is not valid base64")
        if not value or len(value) % width:
            self.refuse(name, f"{len(value):,} bytes are not a whole number of items of {width} bytes")
        return np.frombuffer(value, "u1").reshape(width, -1).T.tobytes()

    def check(self, name: str, value: int, low: int, high: int) -> None:
        """Raise ElementError unless ``low <= value <= high``."""
        if not low <= value <= high:
            self.refuse(name, f"{value} is outside {low}..{high}")

    def close(self) -> None:
        """Raise ElementError if a member was not taken."""
        for name in self.values:
            raise ElementError(
                "is an unknown member", path=self.path + shown(name[:50]), rule=Requirement.SIDE_INFORMATION
            )


def text(data: bytes, width: int) -> str:
    """Encode items of ``width`` bytes in base64, grouped by byte position, which deflates better."""
    return base64.b64encode(np.frombuffer(data, "u1").reshape(-1, width).T.tobytes()).decode()
