"""Requests and bytes for reading from a server: ``python -m benchmarks.remote``, a table for docs/guides/remote.md.

The models have matrices of 128 x 256 and vectors of 256 parameters in turn. Requests and bytes, with the headers of
responses, are counted by an HTTP server on this machine. The tensor is the matrix in the middle.
"""

from __future__ import annotations

import numpy as np

import nnr_codec as nnr
from tests.range_server import RangeServer, serving


def model(count: int) -> dict[str, np.ndarray]:
    """Return a model of this many tensors, half of them matrices."""
    rng = np.random.default_rng(0)
    return {
        f"encoder.layer.{k // 20}.block.{k // 2 % 10}.{'bias' if k % 2 else 'weight'}": rng.normal(
            0, 0.05, 256 if k % 2 else (128, 256)
        ).astype("f4")
        for k in range(count)
    }


def counts(server: RangeServer) -> str:
    """Return the cells with the requests and the bytes since the last call."""
    cells = f"{len(server.requests):,} | {server.sent:,}"
    server.reset()
    return cells


def main() -> None:
    """Print the table."""
    columns = "tensors | index | file, bytes | list: requests | bytes | then one tensor: requests | bytes | unit, bytes"
    print(f"| {columns} | all tensors: requests | bytes |\n|" + 10 * "--:|")
    for count in (200, 2000):
        tensors = model(count)
        for index in (False, True):
            data = nnr.encode(tensors, effort=1, index=index)
            with serving({"model.nnr": data}) as server, nnr.open(f"{server.url}/model.nnr") as file:
                listing, name = counts(server), list(file)[count // 2]
                file[name]
                one, size = counts(server), file.info[name].nbytes
                nnr.decode(f"{server.url}/model.nnr")
                cells = f"{count:,} | {'yes' if index else 'no'} | {len(data):,} | {listing} | {one} | {size:,}"
                print(f"| {cells} | {counts(server)} |")


if __name__ == "__main__":
    main()
