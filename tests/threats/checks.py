"""Which check of the product a test stands for: without the check, the test fails (test_checks.py shows it)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Check(NamedTuple):
    """``code``, which occurs once in ``file``, and what would be there if nobody checked.

    ``file`` is relative to nnr_codec, or begins with ``nnr_cli/``.
    """

    file: str
    code: str
    without: str

    @property
    def in_package(self) -> str:
        """The file with its package."""
        return self.file if self.file.startswith("nnr_cli/") else f"nnr_codec/{self.file}"

    def removed_from(self, source: str) -> str:
        """The file's source without the check."""
        assert source.count(self.code) == 1, f"{self.file} has {source.count(self.code)} times: {self.code}"
        return source.replace(self.code, self.without)


def pins(file: str, code: str, without: str | None = None) -> Callable[[F], F]:
    """Say that the test fails where ``code`` is replaced by ``without``; an ``if`` without it is never true.

    In the kernel, ``without`` says PRESENT for what is 0 without the check and 1 with it.
    """
    if without is None:
        keyword, _, condition = code.partition(" ")
        assert keyword in ("if", "elif") and condition.endswith(":"), code
        without = f"{keyword} False:"
    check = Check(file, code, without)

    def register(test: F) -> F:
        test.__dict__.setdefault("checks", []).append(check)
        return test

    return register
