"""Draw curves of runs of the Flower app: ``python plot_flower.py float32=plain.json nnr_codec=nnr.json -o X.svg``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from train import Row, plot


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy by bytes and by rounds.")
    parser.add_argument("runs", nargs="+", metavar="NAME=FILE", help="file that server.py wrote (results=FILE)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="SVG")
    arguments = parser.parse_args()
    rows = {}
    for name, _, file in (run.partition("=") for run in arguments.runs):
        found = json.loads(Path(file).read_text(encoding="utf-8"))
        rows[name] = [Row(row["accuracy"], row["uplink_wire"], 0.0) for row in found if row["round"]]
    plot(rows, arguments.output)


if __name__ == "__main__":
    main()
