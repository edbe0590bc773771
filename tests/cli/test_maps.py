"""Performance maps on the command line: nnr encode --map, nnr decode --sparsify and --prune, nnr ls --maps."""

from __future__ import annotations

import json
import shlex
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.performance import PruningRow, SparsificationRow

from ..builder import Bitstream, ndu
from .support import DIGITS, call, process, weights

pytestmark = pytest.mark.medium

Capture = pytest.CaptureFixture[str]

#: Prints the share of zeros in a model's weights, twice that for one class, and nothing for another one.
SCRIPT = """
import sys
import numpy as np
print("progress", file=sys.stderr)
print("some more")
with open("names.txt", "a") as file:
    print(sys.argv[1:], file=file)
with np.load(sys.argv[-1]) as model:
    arrays = [model[name] for name in ("a.weight", "b.weight")]
zeros = 1 - sum(map(np.count_nonzero, arrays)) / sum(array.size for array in arrays)
print(zeros / 2, "-", zeros)
print()
"""


def command(text: str = SCRIPT) -> str:
    """Return the command that runs a script, with an argument that contains a blank."""
    Path("a script.py").write_text(text)
    return shlex.join([sys.executable, "a script.py", "an option"])


def zeros(model: nnr.Model) -> float:
    arrays = [np.asarray(model[name]) for name in ("a.weight", "b.weight")]
    return 1 - sum(map(np.count_nonzero, arrays)) / sum(array.size for array in arrays)


def f4(value: float) -> float:
    return float(np.float32(value))


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    """Return the bitstream of `mapped`, which takes several processes, after it was made."""
    return {}


@pytest.fixture
def mapped(npz: Path, capsys: Capture, made: dict[str, bytes]) -> Path:
    """Write ``mapped.nnr``, with a sparsification map."""
    path = Path("mapped.nnr")
    if not made:
        arguments = ["--map", "sparsification=0,0.05,0.1", "--evaluate", command(), "--metric", "zeros", "--qp=-24"]
        result = call(capsys, "encode", npz, "-o", path, *arguments)
        assert (result.code, result.err.count("\n")) == (0, 1)
        made["mapped.nnr"] = path.read_bytes()
    path.write_bytes(made["mapped.nnr"])
    return path


# ------------------------------------------------------------------------------------------------ encoding
def test_a_command_measures(mapped: Path) -> None:
    decoded = nnr.decode(nnr.encode("model.npz", qp=-24))
    rows = []
    for threshold in (0.0, f4(0.05), f4(0.1)):
        share = zeros(nnr.reduce(decoded, [nnr.Step("sparsify", threshold=threshold)]).model)
        rows.append(SparsificationRow(threshold, f4(1 - share), f4(share / 2), 0b01, (f4(share),)))
    maps = nnr.PerformanceMaps(nnr.SparsificationMap(tuple(rows)))
    want = nnr.Performance(performance_metric_type="zeros", metric_type_performance_map_valid_flag=True, maps=maps)
    assert nnr.open(mapped).performance == want
    assert mapped.read_bytes() == nnr.encode("model.npz", qp=-24, performance=want)
    assert not nnr.verify(mapped).violations
    calls = [line.strip() for line in Path("names.txt").read_text().splitlines()]
    assert len(calls) == 3
    for line in calls:
        option, name = json.loads(line.replace("'", '"'))
        assert option == "an option"
        assert Path(name).name == "model.npz" and Path(name).is_absolute() and not Path(name).exists()


@pytest.mark.slow
def test_the_real_command(npz: Path) -> None:
    arguments = ["--map", "sparsification=0.1", "--map", "unification", "--evaluate", command(), "-v"]
    done = process("encode", npz, "-o", "mapped.nnr", *arguments)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("accuracy ") for line in done.stderr.splitlines()) > 4
    assert "progress" not in done.stderr
    maps = nnr.open("mapped.nnr").performance.maps
    assert maps.sparsification is not None and maps.unification is not None
    assert len(maps.sparsification.rows) == 1 < len(maps.unification.rows)
    done = process("decode", "mapped.nnr", "-o", "thin.npz", "--sparsify", "0.1")
    assert done.returncode == 0, done.stderr
    assert zeros(nnr.load("thin.npz")) > 0.5


def test_the_model_is_given_in_its_own_format(capsys: Capture) -> None:
    script = (
        "import sys, nnr_codec as nnr\n"
        "model = nnr.load(sys.argv[-1], format='nnef')\n"
        "print(len(model.tensors), len(model.topology.data))"
    )
    arguments = ["--map", "sparsification=0.1", "--evaluate", command(script)]
    result = call(capsys, "encode", DIGITS, "-o", "mapped.nnr", *arguments)
    assert result.code == 0, result.err
    (row,) = nnr.open("mapped.nnr").performance.maps.sparsification.rows  # type: ignore[union-attr]
    model = nnr.load(DIGITS)
    assert model.topology is not None
    assert row.nn_accuracy == len(model.tensors)


def test_standard_input(npz: Path, capsys: Capture) -> None:
    arguments = ["--map", "sparsification=0.1", "--evaluate", command()]
    with npz.open("rb") as file:
        done = process("encode", "-", "-o", "mapped.nnr", *arguments, stdin=file)
    assert done.returncode == 0, done.stderr
    assert "model.npz" in Path("names.txt").read_text()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; print('oh\\nno', file=sys.stderr); sys.exit(3)", "exited with code 3: no\n"),
        ("import os; os.kill(os.getpid(), 9)", "ended by signal 9\n"),
        ("print()", "got ''\n"),
        ("print('a word')", "the last line of"),
        ("print('0.5 a')", "got '0.5 a'\n"),
        ("print('- 0.5')", "got '- 0.5'\n"),
        ("print('nan')", "an evaluation must return a finite number"),
        ("print(*[0.5] * 40)", "only the last 32 classes"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\x1b[31m')", "the last line of"),
    ],
)
def test_a_command_that_fails(npz: Path, capsys: Capture, script: str, message: str) -> None:
    arguments = ["--map", "sparsification=0.1", "--evaluate", command(script)]
    result = call(capsys, "encode", npz, "-o", "mapped.nnr", *arguments)
    assert result.code == 3
    assert message in result.err
    assert result.err.count("\n") == 1 and "\x1b" not in result.err
    assert not Path("mapped.nnr").exists()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_that_prints_much(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    """Only the end of the output is kept."""
    monkeypatch.setattr("nnr_cli.maps.KEPT", 1 << 20)
    script = (
        f"import sys\nfor _ in range(200): print(*['x' * 99] * 1000, sep='\\n', file=sys.{stream})\nprint('0.5 0.25')"
    )
    arguments = ["--map", "sparsification=0.1", "--evaluate", command(script)]
    tracemalloc.start()
    try:
        result = call(capsys, "encode", npz, "-o", "mapped.nnr", *arguments)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.code == 0, result.err
    (row,) = nnr.open("mapped.nnr").performance.maps.sparsification.rows  # type: ignore[union-attr]
    assert (row.nn_accuracy, row.class_accuracies) == (0.5, (0.25,))
    assert peak < 200 * 1000 * 100 / 2


def test_the_end_of_a_line_is_no_accuracy(npz: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number in the truncated beginning of a long line would be wrong."""
    monkeypatch.setattr("nnr_cli.maps.KEPT", 100)
    arguments = ["--map", "sparsification=0.1", "--evaluate", command("print('0.25', '0.125 ' * 200, end='')")]
    result = call(capsys, "encode", npz, "-o", "mapped.nnr", *arguments)
    assert result.code == 3
    assert "got ''" in result.err


def test_a_command_that_does_not_exist(npz: Path, capsys: Capture) -> None:
    result = call(capsys, "encode", npz, "-o", "mapped.nnr", "--map", "pruning", "--map", "sparsification=0.1")
    assert result.code == 2 and "--map and --evaluate require each other" in result.err
    result = call(
        capsys, "encode", npz, "-o", "mapped.nnr", "--map", "sparsification=0.1", "--evaluate", "./no-such-command -x"
    )
    assert result.code == 5
    assert "./no-such-command" in result.err and result.err.count("\n") == 1
    assert not Path("mapped.nnr").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--evaluate", "true"], "--map and --evaluate require each other"),
        (["--metric", "top-1"], "--metric requires --map or --validation-performance"),
        (["--validation-performance", "0.9"], "--validation-performance requires --metric"),
        (["--base-model-id", "x", "--profile", "0"], "--base-model-id requires --profile 1"),
        (["--map", "sparsify", "--evaluate", "true"], "unknown map 'sparsify'; choose from sparsification"),
        (["--map", "pruning", "--map", "pruning=0.1", "--evaluate", "true"], "map 'pruning' is given twice"),
        (["--map", "pruning=0.1,", "--evaluate", "true"], "must be numbers"),
        (["--map", "pruning=", "--evaluate", "true"], "must be numbers"),
        (["--map", "pruning", "--evaluate", "python 'x"], "--evaluate: no closing quotation"),
        (["--map", "pruning", "--evaluate", " "], "--evaluate must not be empty"),
        (["--map", "pruning", "--evaluate", "true", "--dry-run"], "--dry-run and --map cannot be combined"),
        (["--map", "pruning", "--evaluate", "true", "--metric", ""], "--metric must not be empty"),
        (
            ["--map", "pruning", "--evaluate", "true", "--metric", "x", "--profile", "0"],
            "--metric requires --profile 1",
        ),
    ],
)
def test_options_that_mean_nothing(npz: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    result = call(capsys, "encode", npz, "-o", "mapped.nnr", *arguments)
    assert result.code == 2
    assert message in result.err
    assert not Path("mapped.nnr").exists()


def test_points_that_are_none(npz: Path, capsys: Capture) -> None:
    arguments = ["--map", "sparsification=-0.1", "--evaluate", command()]
    result = call(capsys, "encode", npz, "-o", "mapped.nnr", *arguments)
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "a number of at least 0, got -0.1" in result.err
    assert not Path("names.txt").exists() and not Path("mapped.nnr").exists()


# ------------------------------------------------------------------------------------------------ decoding
@pytest.mark.parametrize("asked", ["0.05", "0.05000000074505806", "5e-2"])
def test_a_point_is_applied(mapped: Path, capsys: Capture, asked: str) -> None:
    result = call(capsys, "decode", mapped, "-o", "thin.npz", "--sparsify", asked)
    thin, whole = nnr.load("thin.npz"), nnr.decode(mapped)
    assert result.code == 0
    row = nnr.open(mapped).performance.maps.sparsification.rows[1]  # type: ignore[union-attr]
    promise = f"accuracy {row.nn_accuracy:g} (zeros), {100 * row.non_zero_ratio:.1f} % of the weights are not 0\n"
    assert result.err.endswith(f"the performance map says: {promise}")
    assert f4(zeros(thin) / 2) == row.nn_accuracy
    for name in whole:
        kept = thin[name] != 0
        np.testing.assert_array_equal(np.asarray(thin[name])[kept], np.asarray(whole[name])[kept])
    assert f4(np.abs(np.asarray(thin["a.weight"])[thin["a.weight"] != 0]).min()) >= row.threshold
    assert call(capsys, "decode", mapped, "-o", "thin.npz", "--sparsify", asked).code != 0  # it exists
    assert call(capsys, "decode", mapped, "-q", "-f", "-o", "thin.npz", "--sparsify", asked).err == ""


def test_a_point_on_standard_output(mapped: Path) -> None:
    done = process("decode", mapped, "-o", "-", "--sparsify", "0.1", text=False, encoding=None)
    assert done.returncode == 0, done.stderr
    Path("thin.npz").write_bytes(done.stdout)  # type: ignore[arg-type]
    assert zeros(nnr.load("thin.npz")) > 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sparsify", "0.06"], "--sparsify 0.06 is not a point of the sparsification map; it has 0.0, 0.05, 0.1"),
        (["--sparsify", "nan"], "is not a point of the sparsification map"),
        (["--sparsify", "1e999"], "is not a point of the sparsification map"),
        (["--prune", "0.1"], "--prune requires a pruning map, but the bitstream has none"),
        (["--prune", "0.1", "--sparsify", "0.1"], "cannot be combined"),
        (["--sparsify", "0.1", "--only", "a*"], "cannot be combined with --only, --dtype or --resume"),
        (["--sparsify", "0.1", "--dtype", "float16"], "cannot be combined with --only, --dtype or --resume"),
        (["--sparsify", "0.1", "--resume"], "cannot be combined with --only, --dtype or --resume"),
    ],
)
def test_points_that_there_are_not(mapped: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    result = call(capsys, "decode", mapped, "-o", "thin.npz", *arguments)
    assert result.code == 2
    assert message in result.err
    assert not Path("thin.npz").exists()


def test_a_message_does_not_list_all_points_that_there_can_be(npz: Path, capsys: Capture) -> None:
    rows = tuple(SparsificationRow(k / 256, 0.5, 0.5) for k in range(254))
    nnr.encode_file(npz, "many.nnr", performance=nnr.Performance(maps=nnr.PerformanceMaps(nnr.SparsificationMap(rows))))
    result = call(capsys, "decode", "many.nnr", "-o", "thin.npz", "--sparsify", "0.3333333")
    assert result.code == 2
    assert (
        "--sparsify 0.3333333 is not a point of the sparsification map; it has 254 points (nnr ls --maps)" in result.err
    )
    assert call(capsys, "ls", "many.nnr", "--maps").out.count("\n") == 255
    assert call(capsys, "decode", "many.nnr", "-o", "thin.npz", "--sparsify", str(np.float32(253 / 256))).code == 0


def test_no_map(npz: Path, bitstream: Path, capsys: Capture) -> None:
    nnr.encode_file(npz, "flagged.nnr", reduce="sparsify(ratio=0.5)")  # a map without rows
    for name in (bitstream, "flagged.nnr"):
        result = call(capsys, "decode", name, "-o", "thin.npz", "--sparsify", "0.1")
        assert result.code == 2
        assert "requires a sparsification map, but the bitstream has none" in result.err


def test_points_of_strangers(npz: Path, capsys: Capture) -> None:
    rows = tuple(SparsificationRow(value, 0.5, 0.5) for value in (-1.0, float("inf"), float("nan")))
    maps = nnr.PerformanceMaps(nnr.SparsificationMap(rows))
    performance = nnr.Performance(None, "\x1b[31m", True, maps=maps)
    nnr.encode_file(npz, "odd.nnr", performance=performance)
    for point in ("-1", "inf", "nan"):
        result = call(capsys, "decode", "odd.nnr", "-o", "thin.npz", "--sparsify", point)
        assert result.code in (2, 3)
        assert "\x1b" not in result.err
        assert not Path("thin.npz").exists()
    result = call(capsys, "ls", "odd.nnr", "--maps")
    assert result.code == 0
    assert "\x1b" not in result.out and "inf" in result.out
    told = json.loads(call(capsys, "ls", "odd.nnr", "--maps", "--json").out)
    assert [row["threshold"] for row in told] == [-1, "inf", "nan"]


def test_an_update_has_no_points(npz: Path, capsys: Capture) -> None:
    base = {"w": weights(1)}
    maps = nnr.PerformanceMaps(nnr.SparsificationMap((SparsificationRow(0.5, 0.5, 0.5),)))
    data = nnr.encode_update(base, {"w": weights(2)}, performance=nnr.Performance(maps=maps))
    Path("update.nnr").write_bytes(data)
    result = call(capsys, "decode", "update.nnr", "-o", "thin.npz", "--sparsify", "0.5")
    assert result.code == 2
    assert "apply to whole models" in result.err
    assert not Path("thin.npz").exists()


def test_pruned_networks_are_written_with_their_new_shapes(capsys: Capture) -> None:
    script = "import sys, nnr_codec as nnr; print(sum(a.size for a in nnr.load(sys.argv[-1]).tensors.values()))"
    arguments = ["--map", "pruning=0,0.25", "--evaluate", command(script)]
    result = call(capsys, "encode", DIGITS, "-o", "mapped.nnr", *arguments)
    assert result.code == 0, result.err
    result = call(capsys, "decode", "mapped.nnr", "-o", "thin.nnef", "--prune", "0.25")
    assert result.code == 0, result.err
    before, after = nnr.load(DIGITS), nnr.load("thin.nnef", strict=True)
    sizes = [sum(np.asarray(model[name]).size for name in model) for model in (before, after)]
    assert sizes[1] < sizes[0]
    assert f"accuracy {f4(sizes[1]):g}" in result.err
    assert before.topology is not None and after.topology is not None
    assert before.topology.data != after.topology.data
    assert nnr.verify_model("thin.nnef").violations == []


# ------------------------------------------------------------------------------------------------ reading
def test_maps_are_listed(mapped: Path, capsys: Capture) -> None:
    result = call(capsys, "ls", mapped, "--maps")
    lines = result.out.splitlines()
    assert lines[0].split() == ["map", "point", "zeros", "remains", "of", "classes"]
    assert [line.split()[:2] for line in lines[1:]] == [["sparsification", point] for point in ("0.0", "0.05", "0.1")]
    assert "% of the weights are not 0" in lines[2]
    (_, row, _) = json.loads(call(capsys, "ls", mapped, "--maps", "--json").out)
    assert row["map"] == "sparsification" and row["threshold"] == f4(0.05) and len(row["class_accuracies"]) == 1
    assert "sparsification map of 3" in call(capsys, "inspect", mapped).out


def test_no_maps_to_list(bitstream: Path, capsys: Capture) -> None:
    assert json.loads(call(capsys, "ls", bitstream, "--maps", "--json").out) == []
    assert call(capsys, "ls", bitstream, "--maps").out.split() == [
        "map",
        "point",
        "accuracy",
        "remains",
        "of",
        "classes",
    ]


def test_statements_about_base_model_and_validation(npz: Path, capsys: Capture) -> None:
    options = ["--base-model-id", "base 1", "--validation-performance", "0.875", "--metric", "top-1"]
    assert call(capsys, "encode", npz, "-o", "stated.nnr", *options).code == 0
    about = nnr.open("stated.nnr").performance
    assert about == nnr.Performance("base 1", "top-1", validation_set_performance=0.875)
    maps = ["--map", "sparsification=0", "--evaluate", command()]
    assert call(capsys, "encode", npz, "-o", "both.nnr", *options, *maps).code == 0
    both = nnr.open("both.nnr").performance
    assert (both.base_model_id, both.validation_set_performance) == ("base 1", 0.875)
    assert both.metric_type_performance_map_valid_flag
    assert both.maps.sparsification


def layered() -> Path:
    """Return a bitstream whose tensors b and c have a layer parameter set with maps."""
    maps = nnr.PerformanceMaps(
        nnr.SparsificationMap((SparsificationRow(0.5, 0.25, 0.75),)), nnr.PruningMap((PruningRow(0.5, 0.625),))
    )
    s = Bitstream().str_().mps()
    s.ndu(ndu("a", [4]), [1, 2, 3, 4], qp=0)
    s.lps(alone=1, **maps.elements("lps"))
    for name in ("b", "c[0]"):
        s.ndu(ndu(name, [2, 2]), [1, 0, 0, 4], qp=-8)
    Path("layers.nnr").write_bytes(s.data)
    return Path("layers.nnr")


def test_maps_of_layers_are_listed(here: Path, capsys: Capture) -> None:
    result = call(capsys, "ls", layered(), "--maps")
    assert result.out.splitlines()[1].split("  ")[:1] == ["sparsification"]
    assert "b and 1 more" in result.out
    found = json.loads(call(capsys, "ls", "layers.nnr", "--maps", "--json").out)
    assert [(one["map"], one["tensors"]) for one in found] == [
        ("sparsification", ["b", "c[0]"]),
        ("pruning", ["b", "c[0]"]),
    ]


def test_a_point_of_a_layer_is_applied_to_its_tensors(here: Path, capsys: Capture) -> None:
    result = call(capsys, "decode", layered(), "-o", "sparse.npz", "--sparsify", "0.5")
    assert (result.code, "accuracy 0.75, 25.0 % of the weights are not 0 of b and 1 more" in result.err) == (0, True)
    whole, sparse = nnr.decode("layers.nnr"), nnr.load("sparse.npz")
    assert np.array_equal(sparse["a"], whole["a"])
    for name in ("b", "c[0]"):
        assert np.array_equal(sparse[name], np.where(abs(whole[name]) > 0.5, whole[name], 0))
