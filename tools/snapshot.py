"""Record what the codec does, and compare two records: the check that a refactoring changes nothing.

``python -m tools.snapshot A.json`` writes a record. ``python -m tools.snapshot --compare A.json B.json`` prints one
line for each difference and exits with 1 if there is any; without ``B.json`` it compares with the current code.
``PYTHONPATH=/other/checkout`` records another checkout with the vectors and models of this one.

Facts are digests by name. Expected values decide wherever they exist: a vector that does not decode to the values of
its ``case.json`` is reported as unexpected. CPU time and memory vary between runs; differences beyond `TOLERANCE` are
printed but do not change the exit status.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import re
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

import nnr_codec as nnr
from tests import encodes
from tests.formats.test_between import SOURCES, TARGETS
from tests.shared import SHARED
from tests.vectors.case import digest

from . import ROOT

#: Relative difference of a measurement that is worth a line.
TOLERANCE = 0.25

#: Where models are looked for; those in the shared folder are not part of the repository.
CORPUS = [ROOT / "examples", ROOT / "tests" / "data"]
CORPUS += [folder for name in ("models", "nnef_corpus") if SHARED and (folder := SHARED / name).is_dir()]
MODEL_FILES = {".onnx", ".pt", ".safetensors", ".xml", ".keras", ".h5"}
MODEL_FOLDERS = {".nnef", ".sknd", ".savedmodel"}

#: Options of which every combination encodes every model of tests/encodes.py.
GRID: tuple[tuple[dict[str, Any], ...], ...] = (
    ({}, {"exact": True}, {"qp": -30}, {"quality": 40}, {"max_error": 1e-3}, {"target_ratio": 0.3}),
    ({}, {"dependent_quantization": False}, {"local_scaling": True}, {"codebook": 16}),
    ({}, {"scan_order": 2, "row_skipping": True}, {"effort": 9}),
)

Facts = Iterator[tuple[str, str]]


# ------------------------------------------------------------------------------------------------ internals
# All that is used of nnr_codec beside its public API. A refactoring that moves these changes the functions here.
def judged(vector: Path) -> Facts:
    """Outcome, decoded values and levels of the vectors in a folder; the expected values of case.json decide."""
    from nnr_codec.conformance.cases import load_cases
    from nnr_codec.conformance.judge import Decoded, by_library, judge

    for case in load_cases(vector):
        seen: list[str] = []

        def recorded(case: Any, seen: list[str] = seen) -> Iterator[Decoded]:
            try:
                for found in by_library(case):
                    levels = [(level.unit, level.shape, level.sha256) for level in found.levels or ()]
                    seen.append(sha(tensors(found.tensors), tensors(found.raw or {}), levels, found.texts))
                    yield found
            except nnr.NnrError as error:
                seen.append(type(error).__name__)
                raise

        outcome = judge(case, recorded).outcome
        options = {"limits": case.limits, "topology_dimensions": case.topology_dimensions, "topology": case.topology}
        *before, last = (stream.path.read_bytes() for stream in case.streams)
        yield f"{case.id} decoded", " ".join([outcome, *seen])
        yield f"{case.id} verified", attempt(rules, last, before, case.requirements, options)
        yield f"{case.id} tree", attempt(tree, last, **options)


def graph_facts(topology: nnr.Topology) -> Facts:
    """Shapes, blocks and prunable channels that a topology gives."""
    from nnr_codec import formats

    wiring = formats.wiring(topology)
    names = ("weight", "bias", "beta", "gamma", "mean", "var", "scale", "axis", "epsilon")
    blocks = [[getattr(block, name) for name in names] for block in wiring.blocks]
    places = ("tensor", "axis", "offset", "outer", "inner", "makes")
    channels = [
        [group.size, sorted([getattr(part, name) for name in places] for part in group.parts)]
        for group in formats.channels(topology)
    ]
    shapes = {name: [*shape] for name, shape in wiring.shapes.items()}
    for what, found in (("shapes", shapes), ("blocks", blocks), ("channels", channels)):
        yield what, f"{len(found)} {sha(found)}"


# ------------------------------------------------------------------------------------------------ digests
def sha(*parts: Any) -> str:
    """The first 16 hexadecimal digits of SHA-256 of bytes, or of anything as JSON."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True, default=repr).encode())
    return found.hexdigest()[:16]


def tensors(named: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and digests in their order; computed by the code of the vectors, not by the package."""
    return [(name, digest(named[name])) for name in named]


def model(found: nnr.Model) -> str:
    """The digest of a model with all that belongs to it."""
    topology = found.topology and (found.topology.format, found.topology.data.hex())
    return sha(tensors(found.tensors), topology, sorted(found.metadata.items()), sorted(found.aliases.items()))


def files(path: Path) -> str:
    """The digest of a file, or of all files below a folder."""
    inside = sorted(file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    return sha(*(part for file in inside for part in (str(file.relative_to(path.parent)), file.read_bytes())))


def tree(data: bytes, **options: Any) -> str:
    """The digest of all that ``nnr inspect`` shows of a bitstream."""
    nodes = nnr.tree(data, inferred=True, payloads=True, **options)
    return f"{sum(1 for node in nodes for _ in node.walk())} {sha([node.to_dict() for node in nodes])}"


def rules(data: bytes, before: Iterable[bytes], expected: Iterable[str], options: Mapping[str, Any]) -> str:
    """The rules that ``nnr verify`` reports, and which of them case.json expects."""
    report = nnr.verify(data, inputs=before, **options)
    found, warned = ({each.requirement for each in what} for what in (report.violations, report.warnings))
    missing = {*expected} - found - warned
    return " ".join(["missing", *sorted(missing)] if missing else [*sorted(found), "|", *sorted(warned)])


def attempt(call: Callable[..., str], *arguments: Any, **options: Any) -> str:
    """Return the result of a call, or the class of the error that it raises."""
    try:
        return call(*arguments, **options)
    except (nnr.NnrError, OSError) as error:
        return type(error).__name__
    except Exception as error:  # a defect, which no record may hide
        return f"CRASH {type(error).__name__}: {error}"


# ------------------------------------------------------------------------------------------------ sections
def vector_facts() -> Facts:
    """Every vector of bitstream_vectors."""
    yield from judged(ROOT / "bitstream_vectors")


def encode_facts() -> Facts:
    """The grid of tests/encodes.py: bytes, trees and decoded values."""
    expected = json.loads(encodes.DIGESTS.read_text(encoding="utf-8"))
    for name, case in encodes.CASES.items():
        streams = case({})
        found = hashlib.sha256(b"".join(streams)).hexdigest()
        yield f"{name}: bytes", found[:16] if found == expected.get(name) else f"not of encodes.json: {found[:16]}"
        for number, data in enumerate(streams):
            yield f"{name}: tree {number}", attempt(tree, data)
        yield f"{name}: decoded", attempt(decoded_updates, streams)


def decoded_updates(streams: Iterable[bytes]) -> str:
    """The digest of the values of bitstreams that follow each other."""
    decoder = nnr.UpdateDecoder()
    return sha(*(tensors(decoder.decode(data)) for data in streams))


def grid_facts() -> Facts:
    """Every combination of `GRID`: bytes and decoded values, or the class of the error."""
    for make in (encodes.plain, encodes.types, encodes.layers):
        for chosen in itertools.product(*GRID):
            options = {key: value for part in chosen for key, value in part.items()}
            yield f"{make.__name__} {options}", attempt(coded, make(), **options)


def coded(source: Any, **options: Any) -> str:
    """The digests of a bitstream, of the decoded model and of the tree."""
    data = nnr.encode(source, deflate_topology=False, **options)
    return f"{sha(data)} {model(nnr.decode(data))} {tree(data)}"


def update_facts() -> Facts:
    """Updates between models: applied, chained and squashed."""
    models = [encodes.plain()]
    for step in range(3):
        changed = {
            name: np.asarray(array, "f4") + encodes.normal(f"{name} {step}", *array.shape, scale=2.0**-25)
            for name, array in models[-1].tensors.items()
        }
        models.append(nnr.Model(changed))
    for lossless in (False, True):
        base, chain = models[0], list[bytes]()
        for new in models[1:]:
            chain.append(nnr.encode_update(base, new, lossless=lossless))
            base = nnr.apply_update(base, chain[-1])
        name = "lossless" if lossless else "default"
        yield f"{name}: bytes", sha(*chain)
        yield f"{name}: applied", model(base)
        yield (
            f"{name}: chained",
            attempt(lambda chain: model(cast(nnr.Model, nnr.chain_updates(models[0], chain))), chain),
        )
        yield f"{name}: squashed", attempt(lambda chain: sha(nnr.squash_updates(models[0], chain)), chain)


def api_facts() -> Facts:
    """Other functions of the API, on the models of tests/encodes.py."""
    layers = encodes.layers()
    yield "folded", attempt(lambda: model(nnr.folded(layers)))
    tools = nnr.requirements(nnr.encode(layers, deflate_topology=False))
    yield "requirements", sha([(tool.element, tool.value, tool.clause, tool.units) for tool in tools])
    yield "estimate", attempt(lambda: str(nnr.estimate(encodes.plain(), quality=40).nbytes))
    for steps in ("sparsify(ratio=0.4)", "unify(ratio=0.3)", "prune(ratio=0.2)", "lowrank(rank=4)", "fold", "scale"):
        yield f"encoded with {steps}", attempt(coded, layers, reduce=steps)


def format_facts() -> Facts:
    """A small model of each format: loaded, encoded, and decoded to the same format; a larger one in each format."""
    for name, source in SOURCES.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                path = source.make(Path(folder))
            except ImportError as error:
                yield name, f"absent: {error.name}"
                continue
            yield f"{name}: loaded", attempt(loaded, path)
            for options in ({}, {"exact": True}):
                target, back = Path(folder, "x.nnr"), Path(folder, f"back{''.join(path.suffixes)}")
                yield f"{name} {options}: encoded", attempt(encoded_file, path, target, **options)
                yield f"{name} {options}: decoded", attempt(decoded_file, target, back)
    digits = nnr.load(ROOT / "examples" / "digits" / "digits.nnef")
    for suffix in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            yield f"digits as {suffix}", attempt(saved, digits, Path(folder, f"digits{suffix}"))


def loaded(path: Path) -> str:
    """The digest of the model in a file or folder."""
    return model(nnr.load(path))


def saved(found: nnr.Model, path: Path) -> str:
    """The digests of a model's files and of the model that is loaded from them."""
    nnr.save(found, path)
    return f"{files(path)} {attempt(loaded, path)}"


def encoded_file(source: Path, target: Path, **options: Any) -> str:
    """The digest of an encoded file."""
    nnr.encode_file(source, target, overwrite=True, deflate_topology=False, **options)
    return sha(target.read_bytes())


def decoded_file(source: Path, target: Path) -> str:
    """The digest of the model file that a bitstream is decoded to; of the model where the format is not written."""
    try:
        nnr.decode_file(source, target, overwrite=True)
    except nnr.FormatError:
        return model(nnr.decode(source))
    return model(nnr.load(target))  # archives hold the time of writing


def corpus_facts() -> Facts:
    """Every NNEF and ONNX model at hand: shapes, blocks and channels; model files of all formats: values and blocks."""
    for root in CORPUS:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root.parent).as_posix()
            if path.suffix in (".nnef", ".txt") and path.is_file() and b"\nversion 1.0;" in b"\n" + path.read_bytes():
                for what, found in graph_facts(nnr.Topology("nnef", path.read_bytes())):
                    yield f"{name}: {what}", found
            elif path.suffix == ".onnx":
                topology = nnr.load(path).topology
                for what, found in graph_facts(topology) if topology else ():
                    yield f"{name}: {what}", found
            if path.suffix in MODEL_FILES or (path.suffix in MODEL_FOLDERS and path.is_dir()):
                yield f"{name}: loaded", attempt(loaded, path)


def coded_corpus_facts() -> Facts:
    """Encoded and decoded models of the example and of the shared folder."""
    names = ("digits.nnef", "digits_cnn.onnx", "resnet20_cifar10.nnef", "resnet20_cifar10.onnx", "resnet20_cifar10.pt")
    for path in sorted(path for root in CORPUS for path in root.glob("**/*.*") if path.name in names):
        for options in (
            {},
            {"fold_batchnorm": True},
            {"exact": True},
            {"target_ratio": 0.2},
            {"reduce": "prune(ratio=0.2)"},
        ):
            yield f"{path.relative_to(path.parents[1])} {options}", attempt(coded, path, **options)


SECTIONS: dict[str, Callable[[], Facts]] = {
    "vectors": vector_facts,
    "encodes": encode_facts,
    "grid": grid_facts,
    "updates": update_facts,
    "api": api_facts,
    "formats": format_facts,
    "graphs": corpus_facts,
    "models": coded_corpus_facts,
}


# ------------------------------------------------------------------------------------------------ measurements
def measurements() -> dict[str, float]:
    """Peak memory in KiB (tracemalloc), and CPU time as a ratio to a loop of additions in Python."""
    large = nnr.Model({f"w{k}": encodes.normal(f"w{k}", 256, 512) for k in range(4)})
    rows: dict[str, tuple[Any, dict[str, Any]]] = {"large": (large, {}), "large, exact": (large, {"exact": True})}
    if SHARED and (SHARED / "models" / "resnet20_cifar10.nnef").is_dir():
        rows["resnet20"] = (SHARED / "models" / "resnet20_cifar10.nnef", {})
    found = {}
    unit = seconds(lambda: sum(range(2_000_000)), 9)
    for name, (source, options) in rows.items():
        data = nnr.encode(source, **options)
        for what, call in (
            ("encode", lambda source=source, options=options: nnr.encode(source, **options)),
            ("decode", lambda data=data: nnr.decode(data).tensors),
        ):
            found[f"{name}: {what}, CPU time"] = round(seconds(call, 3) / unit, 2)
            found[f"{name}: {what}, peak KiB"] = peak(call)
    return found


def seconds(call: Callable[[], object], times: int) -> float:
    """The least CPU time of some calls."""

    def once() -> float:
        before = time.process_time()
        call()
        return time.process_time() - before

    return min(once() for _ in range(times))


def peak(call: Callable[[], object]) -> int:
    """KiB that are allocated at most during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] >> 10
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------------ records
def record(sections: Iterable[str], measured: bool) -> dict[str, Any]:
    """All facts about the current code, with the versions and the reference material that they depend on."""
    about = {"package": str(Path(nnr.__file__).parent), "python": sys.version.split()[0], "numpy": np.__version__}
    about["corpus"] = " ".join(map(str, CORPUS))
    if len(CORPUS) < 4:
        print("models or nnef_corpus is absent from NNR_SHARED; its models are skipped", file=sys.stderr)
    facts: dict[str, str] = {}
    for section in sections:
        before = time.process_time()
        for name, value in SECTIONS[section]():
            facts[f"{section}/{name}"] = value
        print(f"{section}: {time.process_time() - before:.0f} s", file=sys.stderr)
    return {"about": about, "facts": facts, "measurements": measurements() if measured else {}}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """One line for each fact that differs, of the sections that both records have."""
    sections = set.intersection(*({name.partition("/")[0] for name in record["facts"]} for record in (one, other)))
    a, b = (
        {name: fact for name, fact in record["facts"].items() if name.partition("/")[0] in sections}
        for record in (one, other)
    )
    return [
        f"{name}: {a.get(name, 'absent')} != {b.get(name, 'absent')}"
        for name in {**a, **b}
        if a.get(name) != b.get(name)
    ]


def deviations(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """One line for each measurement that differs by more than `TOLERANCE`."""
    a, b = one["measurements"], other["measurements"]
    return [
        f"measured: {name}: {a[name]} -> {b[name]}"
        for name in a
        if name in b and abs(a[name] - b[name]) > TOLERANCE * max(a[name], 1e-9)
    ]


def failures(found: Mapping[str, Any]) -> list[str]:
    """Facts that contradict expected values."""
    wrong = re.compile(r"FAIL|ERROR|CRASH|OOM|XPASS|TIMEOUT|missing|not of encodes\.json")
    return [f"unexpected: {name}: {value}" for name, value in found["facts"].items() if wrong.match(value)]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.snapshot", description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, help="where to write the record")
    parser.add_argument(
        "--compare", nargs="+", type=Path, metavar="JSON", help="two records, or one and the current code"
    )
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section to record; repeatable")
    parser.add_argument("--no-measurements", action="store_true", help="record no CPU time and no memory")
    arguments = parser.parse_args()
    for path in arguments.compare or ():
        if not path.is_file():
            parser.error(f"{path} is no file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        records = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.compare or ()]
        if len(records) < 2:
            records.append(record(arguments.only or SECTIONS, not (arguments.only or arguments.no_measurements)))
            if arguments.file:
                arguments.file.write_text(json.dumps(records[-1], indent=1) + "\n", encoding="utf-8")
    lines = differences(*records[:2]) if len(records) == 2 else failures(records[0])
    for line in [*lines, *(deviations(*records[:2]) if len(records) == 2 else [])]:
        print(line)
    return bool(lines)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
