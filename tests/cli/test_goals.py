"""Tests of nnr encode: goals, and --dry-run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnr_cli.params import Size

import nnr_codec as nnr

from .support import CHECK, DIGITS, NAMES, SUMMARY, call, weights

Capture = pytest.CaptureFixture[str]

OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    (["--quality", "35.5"], {"quality": 35.5}),
    (["--snr", "30"], {"snr": 30.0}),
    (["--max-error", "1e-3"], {"max_error": 0.001}),
    (["--target-size", "1kB"], {"target_size": 1000}),
    (["--target-ratio", "0.25"], {"target_ratio": 0.25}),
    (["--preset", "small"], {"quality": 30.0}),
    (["--preset", "balanced"], {"quality": 40.0}),
    (["--preset", "fine"], {"quality": 60.0}),
    (["--preset", "fine", "--snr", "20"], {"snr": 20.0}),
    (["--preset", "lora", "--rule", "v:qp=-20"], {"preset": "lora", "rules": [nnr.Rule("v", qp=-20)]}),
    (["--rule", "*.weight:snr=20.5"], {"rules": (nnr.Rule("*.weight", snr=20.5),)}),
    (
        ["--qp=-20", "--rule", "*.bias:max-error=1e-2", "--rule", "a*:quality=20,fine_vectors=no"],
        {"qp": -20, "rules": (nnr.Rule("*.bias", max_error=0.01), nnr.Rule("a*", quality=20.0, fine_vectors=False))},
    ),
]


@pytest.mark.parametrize(("arguments", "fields"), OPTIONS, ids=[" ".join(a) for a, _ in OPTIONS])
def test_options_equal_the_library(npz: Path, capsys: Capture, arguments: list[str], fields: dict[str, Any]) -> None:
    result = call(capsys, "encode", npz, "-o", "x.nnr", *arguments)
    assert result.code == 0
    assert Path("x.nnr").read_bytes() == nnr.encode(npz, **fields)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("2500000", 2_500_000),
        ("2.5MB", 2_500_000),
        ("2.5M", 2_500_000),
        ("17B", 17),
        ("300kB", 300_000),
        ("300KB", 300_000),
        ("1.5 KiB", 1536),
        ("2MiB", 2 << 20),
        ("2Mi", 2 << 20),
        ("0.1GB", 100_000_000),
        (".5GiB", 1 << 29),
        ("0.29MB", 290_000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize(
    "text", ["", "B", "MB", "-1", "1e6", "2,5MB", "1TB", "1mb", "1iB", "0x10", "1 2", "٣MB", "nan"]
)
def test_invalid_sizes(npz: Path, capsys: Capture, text: str) -> None:
    result = call(capsys, "encode", npz, "-o", "x.nnr", f"--target-size={text}")
    assert result.code == 2
    assert "is not a size such as 2500000, 2.5MB or 300KiB" in result.err
    assert not Path("x.nnr").exists()


def test_a_ratio_in_percent(npz: Path, capsys: Capture) -> None:
    for ratio, target in ("15%", "a.nnr"), ("0.15", "b.nnr"):
        assert call(capsys, "encode", npz, "-o", target, "--target-ratio", ratio).code == 0
    assert Path("a.nnr").read_bytes() == Path("b.nnr").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--qp", "1", "--snr", "3"], "Error: --qp and --snr cannot be combined; choose one"),
        (
            ["--target-size", "1kB", "--target-ratio", "0.1"],
            "Error: --target-size and --target-ratio cannot be combined",
        ),
        (["--lossless", "--quality", "50"], "--lossless keeps every bit, so --quality has no effect"),
        (["--lossless", "--target-size", "1MB"], "so --target-size has no effect"),
        (["--lossless", "--qp", "-20"], "--lossless keeps every bit, so --qp has no effect"),
        (
            ["--lossless", "--dq"],
            "--lossless keeps every bit, so --dependent-quantization has no effect",
        ),
        (["--profile", "0", "--row-skipping"], "Error: --row-skipping requires --profile 1"),
        (["--quality", "101"], "Error: --quality 101 is outside 0..100"),
        (["--qp", "999"], "Error: --qp 999 is outside -504..511 of --qp-density 2"),
        (["--snr=-3"], "Error: --snr -3 is outside 0..3000"),
        (["--snr", "nan"], "Error: --snr must be a finite number, got nan"),
        (["--max-error", "0"], "Error: --max-error must be above 0, got 0; use --lossless to keep every bit"),
        (["--max-error", "x"], "'x' is not a number"),
        (["--target-ratio", "x%"], "'x%' is not a ratio such as 0.1 or 10%"),
        (["--target-ratio", "15"], "Error: --target-ratio 15 is above 1; 15 % is 0.15"),
        (["--target-ratio", "0"], "Error: --target-ratio must be above 0, got 0.0"),
        (["--target-size", "0"], "Error: --target-size must be at least 1 byte, got 0"),
        (["--rule", "*:snr=x"], "snr must be a number, got 'x'"),
        (["--rule", "*:snr=3,qp=3"], "qp and snr cannot be combined"),
        (["--rule", "*:qp=3", "--rule", "a*:rate=99"], "Error: --rule 'a*': rate 99 is outside 0..16"),
        (["--rule", "*:target_size=3"], "unknown key 'target_size'"),
        (["--json"], "--json requires --dry-run"),
        (["--dry-run", "--check"], "--dry-run and --check cannot be combined"),
        (["--dry-run", "--report", "r.json"], "--dry-run and --report cannot be combined"),
    ],
)
def test_wrong_goals(npz: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    result = call(capsys, "encode", npz, "-o", "x.nnr", *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("Error: ") == 1
    assert not Path("x.nnr").exists()


def test_a_target_out_of_reach(npz: Path, capsys: Capture) -> None:
    result = call(capsys, "encode", npz, "-o", "x.nnr", "--target-size", "20B")
    assert result.code == 3
    assert result.err.startswith("nnr: error: the model takes ")
    assert result.err.count("\n") == 1
    assert not Path("x.nnr").exists()


def test_the_target_of_the_example(capsys: Capture) -> None:
    result = call(capsys, "encode", DIGITS, "-o", "digits.nnr", "--target-size", "20kB", "--check")
    summary, check = result.err.splitlines(keepends=True)[-2:]
    assert SUMMARY.fullmatch(summary)
    assert CHECK.fullmatch(check)
    assert 19_800 <= Path("digits.nnr").stat().st_size <= 20_000


def test_check_confirms_the_goal(capsys: Capture) -> None:
    np.savez("m.npz", w=weights(1, (60, 70)), v=weights(2, (50, 40), 3.0))
    found = CHECK.search(call(capsys, "encode", "m.npz", "-o", "m.nnr", "--snr", "37", "--check").err)
    assert found
    assert 37 <= float(found["snr"]) < 37.5
    found = CHECK.search(call(capsys, "encode", "m.npz", "-fo", "m.nnr", "--max-error", "0.004", "--check").err)
    assert found
    assert 0.0039 < float(found["error"]) <= 0.004


# ------------------------------------------------------------------------------------------------ --dry-run
def test_a_dry_run_writes_nothing(capsys: Capture) -> None:
    for arguments in ([], ["-o", "x.nnr"], ["-o", "-"], ["-o", "no/such/folder"]):
        result = call(capsys, "encode", DIGITS, "--dry-run", *arguments)
        assert (result.code, result.err) == (0, "")
        lines = result.out.splitlines()
        assert lines[0].split() == ["name", "parameters", "before", "bytes", "bits/par", "SNR", "dB"]
        assert len(lines) == 2 + len(nnr.load(DIGITS).tensors)
        assert lines[-1].startswith("16 tensors, estimated: 228,968 -> ")
        assert not list(Path().iterdir())


def test_json_of_a_dry_run(capsys: Capture) -> None:
    result = call(capsys, "encode", DIGITS, "--dry-run", "--json", "--preset", "small")
    found = json.loads(result.out)
    size = len(nnr.encode(DIGITS, quality=30.0))
    assert found["bytes"] == pytest.approx(size, rel=0.03)
    assert found["parameters"] == sum(one["parameters"] for one in found["tensors"]) == 57_242
    assert found["source_bytes"] == 4 * 57_242
    assert found["bits_per_parameter"] == pytest.approx(8 * found["bytes"] / 57_242, abs=1e-4)
    by_name = {one["name"]: one for one in found["tensors"]}
    assert list(by_name) == list(nnr.load(DIGITS).tensors)
    one = by_name["fc1/weight"]
    assert one["bits_per_parameter"] == pytest.approx(8 * one["bytes"] / one["parameters"], abs=1e-4)
    assert found["bytes"] > sum(one["bytes"] for one in found["tensors"])
    loss = nnr.compare_models(nnr.load(DIGITS), nnr.decode(nnr.encode(DIGITS, quality=30.0))).loss
    assert found["matrices_snr_db"] == pytest.approx(loss.matrices, abs=0.5)
    assert found["vectors_snr_db"] == pytest.approx(loss.vectors, abs=0.5)
    assert found["zeroed"] == pytest.approx(loss.zeroed, rel=0.1)


def test_a_dry_run_of_standard_input_and_odd_models(
    npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .test_encode import feed

    feed(monkeypatch, npz.read_bytes())
    assert call(capsys, "encode", "-", "--dry-run").code == 0
    Path("m.nnef").mkdir()
    Path("m.nnef/graph.nnef").write_text(
        "version 1.0;\ngraph g( x ) -> ( y )\n{\n    x = external<scalar>(shape = [1]);\n    y = relu(x);\n}\n"
    )
    result = call(capsys, "encode", "m.nnef", "--dry-run")
    assert result.out.splitlines()[-1].startswith("0 tensors, estimated: 0 -> ")
    nnr.save({name: weights(k, (4, 5)) for k, name in enumerate(NAMES)}, "names.npz")
    lines = call(capsys, "encode", "names.npz", "--dry-run").out.splitlines()
    assert [line.split("   ")[0].rstrip() for line in lines[1:-1]] == [
        name.split("   ")[0].rstrip() for name in NAMES.values()
    ]


def test_a_dry_run_of_a_bad_model(capsys: Capture) -> None:
    np.savez("m.npz", bad=np.array([[1j, 0], [0, 0]], "c8"))
    result = call(capsys, "encode", "m.npz", "--dry-run")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("nnr: error: ")
