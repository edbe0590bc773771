"""Steps of parameter reduction: their specification, order and report."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.encoder import reduce
from nnr_codec.encoder.prepared import Prepared
from nnr_codec.encoder.reduce.tool import ReductionTool, made, within
from nnr_codec.reduction_steps import Step, steps_of

RNG = np.random.default_rng(0)
WEIGHTS = {"a": RNG.normal(0, 0.05, (20, 30)).astype("f4"), "b": np.arange(6, dtype="i4")}

names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
values = st.one_of(st.integers(-99, 99), st.floats(-9, 9), st.booleans(), st.sampled_from(["conv*|fc*", "4x1x1"]))


@dataclass(frozen=True)
class Halve:
    """Step for these tests that removes half of a small tensor."""

    AMOUNT: ClassVar[str] = "limit"
    AMOUNTS: ClassVar[tuple[float, ...]] = (0.01, 0.2)

    limit: float | None = None
    count: int = 1
    quick: bool = False
    tensors: str = "*"

    def __post_init__(self) -> None:
        within("limit", self.limit, 0, 1)

    def apply(self, prepared: Prepared) -> Prepared:
        limit = self.limit or 0.0
        arrays = {name: prepared.array(name) for name in prepared.matrices(self.tensors)}
        return prepared.replaced({name: np.where(np.abs(a) < limit, a / 2, a) for name, a in arrays.items()})


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "TOOLS", {"halve": ("..", "Halve"), **reduce.TOOLS})
    monkeypatch.setattr(reduce, "tool_of", lambda step: made(Halve, step) if step.tool == "halve" else tool_of(step))
    monkeypatch.setattr("nnr_codec.encoder.reduce.tool_of", reduce.tool_of)


tool_of = reduce.tool_of


# ------------------------------------------------------------------------------------------------ texts
def test_a_text_of_steps() -> None:
    assert steps_of(" sparsify( ratio=0.6 ,tensors=conv*|fc.[0-9]) , fold,lowrank(error=0.02)") == (
        Step("sparsify", ratio="0.6", tensors="conv*|fc.[0-9]"),
        Step("fold"),
        Step("lowrank", error="0.02"),
    )
    assert steps_of("") == steps_of(" ") == steps_of(()) == ()
    assert steps_of(["fold", Step("scale"), "prune(ratio=0.1), fold"])[1:] == (
        Step("scale"),
        Step("prune", ratio="0.1"),
        Step("fold"),
    )


@pytest.mark.medium
@given(
    st.lists(st.builds(lambda tool, options: Step(tool, **options), names, st.dictionaries(names, values, max_size=3)))
)
def test_printed_steps_parse_to_the_same_steps(steps: list[Step]) -> None:
    text = ", ".join(map(str, steps))
    assert ", ".join(map(str, steps_of(text))) == text


@pytest.mark.parametrize(
    "text",
    [
        *("(ratio=1)", "sparsify(ratio", "sparsify)", "sparsify(ratio=)", "sparsify(=1)", "sparsify(ratio=1,ratio=2)"),
        *(
            "fold fold",
            "Fold",
            "fold(x)",
            "sparsify(a=b=c)",
            ",",
            "fold,(",
            "sparsify((ratio=1))",
            "sparsify(ratio=1,)",
        ),
        *("fold,", "fold,,", "sparsify(ratio=a\nb)"),
    ],
)
def test_texts_that_are_no_steps(text: str) -> None:
    with pytest.raises(nnr.EncodeError, match=r"^reduce: "):
        nnr.EncoderConfig(reduce=text)


@pytest.mark.parametrize("given", [3, [3], [["fold"]], None, {"fold": 1}.values(), b"fold"])
def test_invalid_lists_of_steps(given: object) -> None:
    with pytest.raises(nnr.EncodeError, match="reduce"):
        nnr.EncoderConfig(reduce=given)  # type: ignore[arg-type]


def test_a_tool_without_a_name() -> None:
    with pytest.raises(nnr.EncodeError, match="a step must have the name of a tool, got 3"):
        Step(3)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ options
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shrink", "unknown step 'shrink'; choose from halve, sparsify"),
        ("halve(x=1)", "halve has no option 'x'; choose from limit, count, quick, tensors"),
        ("halve(tool=1)", "halve has no option 'tool'"),
        ("halve(self=1)", "halve has no option 'self'"),
        ("halve(limit=much)", "halve(limit=much) must be a finite number"),
        ("halve(limit=nan)", "halve(limit=nan) must be a finite number"),
        ("halve(limit=1e999)", "must be a finite number"),
        ("halve(limit=2)", "limit 2.0 is outside 0..1"),
        ("halve(count=1.5)", "must be an integer"),
        ("halve(quick=1)", "must be true or false"),
        ("halve(tensors=c*)", "no tensor that matches 'c*' is a float matrix"),
        ("fold", "no batch normalization can be folded"),
    ],
)
def test_steps_that_mean_nothing(text: str, message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=re.escape(message)):
        nnr.encode(WEIGHTS, reduce=text)


@pytest.mark.parametrize(
    "options", [{"limit": True}, {"count": 1.0}, {"tensors": 3}, {"quick": "yes"}, {"limit": None}]
)
def test_options_of_another_type(options: dict[str, object]) -> None:
    with pytest.raises(nnr.EncodeError, match="must be"):
        nnr.encode(WEIGHTS, reduce=[Step("halve", **options)])  # type: ignore[arg-type]


def test_options_are_read_by_their_types() -> None:
    tool: ReductionTool = made(Halve, steps_of("halve(limit=1, count=-3, quick=true, tensors=1)")[0])
    assert tool == Halve(1.0, -3, True, "1")
    assert made(Halve, Step("halve", limit=1, quick=False)) == Halve(1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exact": True, "reduce": "fold"}, "so reduce has no effect"),
        ({"fold_batchnorm": True, "reduce": "fold"}, "fold_batchnorm and the step fold"),
        ({"local_scaling": True, "reduce": "scale"}, "local_scaling and the step scale"),
        ({"fixed_point": "q7.8", "reduce": "scale"}, "so scale has no effect"),
        ({"compressed_parameter_types": 4, "reduce": "scale"}, "local_scaling requires"),
        ({"reducible": None}, "reducible must be true or false"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, object], message: str) -> None:
    with pytest.raises(nnr.EncodeError, match=message):
        nnr.EncoderConfig(**options)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ effects
def test_steps_are_done_in_order() -> None:
    twice = nnr.reduce(WEIGHTS, "halve(limit=0.1), halve(limit=0.04)")
    small = np.abs(WEIGHTS["a"]) < 0.1
    once = np.where(small, WEIGHTS["a"] / 2, WEIGHTS["a"])
    np.testing.assert_array_equal(twice.model["a"], np.where(np.abs(once) < 0.04, once / 2, once))
    assert twice.model["b"] is WEIGHTS["b"]
    assert [step.step for step in twice.steps] == ["halve(limit=0.1)", "halve(limit=0.04)"]
    noise = float(np.sum((WEIGHTS["a"] - once).astype("f8") ** 2))
    signal = float(np.sum(WEIGHTS["a"].astype("f8") ** 2))
    assert twice.steps[0].snr == pytest.approx(10 * np.log10(signal / noise))
    assert (twice.steps[0].changed, twice.steps[0].parameters) == (1, 606)
    assert twice.steps[0].zeros == pytest.approx(1 / 606)
    assert twice.steps[1].nbytes < twice.steps[0].nbytes < len(nnr.encode(WEIGHTS))


def test_reduced_tensors_are_coded() -> None:
    step = "halve(limit=0.1)"
    assert nnr.encode(WEIGHTS, reduce=step) == nnr.encode(nnr.reduce(WEIGHTS, step).model)
    np.testing.assert_array_equal(nnr.folded(WEIGHTS, reduce=step)["a"], nnr.reduce(WEIGHTS, step).model["a"])


def test_rules_and_ties_and_exact_tensors() -> None:
    model = nnr.Model({**WEIGHTS, "c": WEIGHTS["a"], "d": WEIGHTS["a"] + 1, "e": WEIGHTS["a"]}, aliases={"c": "a"})
    rules = (nnr.Rule("d", reducible=False), nnr.Rule("e", exact=True))
    prepared = nnr.reduce(model, "halve(limit=1)", rules=rules).model
    assert prepared["c"] is prepared["a"] and not np.array_equal(prepared["a"], WEIGHTS["a"])
    assert prepared["d"] is model["d"] and prepared["e"] is model["e"]
    with pytest.raises(nnr.EncodeError, match="is a float matrix"):
        nnr.reduce(model, "halve(tensors=d|e)", rules=rules)


def test_an_update_is_not_reduced() -> None:
    with pytest.raises(nnr.EncodeError, match="reduce"):
        nnr.encode_update(WEIGHTS, WEIGHTS, reduce="halve(limit=0.1)")


# ------------------------------------------------------------------------------------------------ targets
def test_a_target_decides_on_amounts() -> None:
    report = nnr.estimate(WEIGHTS, reduce="halve", target_size=300)
    assert report.config is not None and report.config.reduction in ((), steps_of("halve(limit=0.01)"))
    best = {
        limit: nnr.compare_models(WEIGHTS, nnr.decode(nnr.encode(WEIGHTS, reduce=steps, target_size=300))).snr
        for limit, steps in ((0.0, ()), (0.01, "halve(limit=0.01)"), (0.2, "halve(limit=0.2)"))
    }
    chosen = dict(report.config.reduction[0].options)["limit"] if report.config.reduction else 0.0
    assert best[float(chosen)] == max(best.values())


def test_without_a_target_an_amount_is_asked_for() -> None:
    report = nnr.reduce(WEIGHTS, "halve")  # this step does nothing without options
    assert report.steps[0].snr == np.inf
    with pytest.raises(nnr.EncodeError):
        nnr.encode(WEIGHTS, reduce="halve", target_size=20)


def test_configurations_compare() -> None:
    config = nnr.EncoderConfig(reduce="fold")
    assert config == nnr.EncoderConfig(reduce=[Step("fold")]) == replace(config, effort=5)
    assert hash(config) == hash(nnr.EncoderConfig(reduce=("fold",)))
