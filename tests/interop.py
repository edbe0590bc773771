"""Bitstreams of bitstream_vectors/interop with their decoded values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnr_codec.model import Array

ROOT = Path(__file__).resolve().parents[1] / "bitstream_vectors" / "interop"


@dataclass(frozen=True)
class Stream:
    """Bitstream of another encoder.

    Parameters
    ----------
    id : str
        Such as ``v2/incr_tca_dq/02`` or ``levels/tcm_dq_1``.
    path : Path
    before : tuple of Path
        The bitstreams that are decoded before it, with state.
    """

    id: str
    path: Path
    before: tuple[Path, ...] = ()

    @property
    def data(self) -> bytes:
        """The bitstream."""
        return self.path.read_bytes()

    @property
    def values(self) -> dict[str, Array]:
        """The tensors as decoded by the codec that wrote the bitstream."""
        return _load(self.path.with_suffix(".npz"))

    @property
    def levels(self) -> dict[str, Array]:
        """QuantParam of each tensor; only for ``levels/`` streams."""
        return _load(self.path.with_name(f"{self.path.stem}_levels.npz"))


def _load(path: Path) -> dict[str, Array]:
    with np.load(path) as file:
        return dict(file)


def _rounds(version: str) -> list[Stream]:
    streams = []
    for case in sorted((ROOT / f"nncodec-{version}").iterdir()):
        paths = sorted(case.glob("*.nnr"))
        streams += [
            Stream(f"{version}/{case.name}/{path.stem}", path, tuple(paths[:k])) for k, path in enumerate(paths)
        ]
    return streams


def _levels() -> list[Stream]:
    folder = ROOT / "nncodec-levels"
    streams = []
    for path in sorted(folder.glob("*.nnc")):
        family, _, number = path.stem.rpartition("_")
        is_update = family in ("tcm_dq", "tcm_nodq", "hdsp")
        before = tuple(folder / f"{family}_{k}.nnc" for k in range(int(number))) if is_update else ()
        streams.append(Stream(f"levels/{path.stem}", path, before))
    return streams


ROUNDS = _rounds("v1") + _rounds("v2")
LEVELS = _levels()
ALL = ROUNDS + LEVELS
BY_ID = {stream.id: stream for stream in ALL}
