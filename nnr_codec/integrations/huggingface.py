"""Models of transformers in bitstreams, with their configuration and tokenizer.

>>> save_pretrained(model, "model.nnr", tokenizer=tokenizer, quality=40)                # doctest: +SKIP
>>> model = from_pretrained(AutoModel, "model.nnr")                                     # doctest: +SKIP
>>> tokenizer = AutoTokenizer.from_pretrained(cached_folder("model.nnr"))               # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from .. import formats
from ..api.decoding import decode, decode_file
from ..api.decoding import open as open_bitstream
from ..api.encoding import encode_file
from ..config import EncoderOptions
from ..errors import FormatError
from ..files import output_directory
from ..formats import require
from ..formats.companion_files import files
from ..formats.folders import write_files
from ..limits import Limits
from ..model import Model
from ..report.encoded import EncodeReport

#: Name of the bitstream in a folder.
BITSTREAM = "model.nnr"


def save_pretrained(
    model: Any,
    path: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    overwrite: bool = False,
    jobs: int = 1,
    **options: Unpack[EncoderOptions],
) -> EncodeReport:
    """Save a model like ``model.save_pretrained``, with its weights in a bitstream.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    path : path
        A name that ends in ``.nnr`` is one file with the configuration, generation configuration and tokenizer as
        attachments. Any other name is a folder with these files and ``model.nnr``.
    tokenizer : object with save_pretrained, optional
        Tokenizer or processor to store with the model.
    overwrite : bool, default False
        Replace an existing file, or a folder with a ``model.nnr``.
    jobs, options
        As for :func:`nnr_codec.encode`.

    Returns
    -------
    EncodeReport

    Raises
    ------
    FileExistsError
        The target exists and ``overwrite`` is False.
    NnrError
        As for :func:`nnr_codec.encode_file`.
    TypeError
        The model has no ``save_pretrained`` and ``state_dict``.
    """
    if not hasattr(model, "save_pretrained") or not hasattr(model, "state_dict"):
        raise TypeError(f"save_pretrained requires a model of transformers, got {type(model).__name__}")

    def write_others(folder: Path) -> None:
        model.save_pretrained(folder, state_dict={})
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)

    # The contents of the safetensors file that transformers writes: without tied tensors, which it ties again.
    known = formats.as_model(model)
    tensors = {name: known[name] for name in known if name not in known.aliases}
    weights = Model(tensors, metadata={"format": "pt"}, format="safetensors")
    if os.fspath(path).lower().endswith(".nnr"):
        with tempfile.TemporaryDirectory() as scratch:
            write_others(Path(scratch))
            others = {name: file.read_bytes() for name, file in files(Path(scratch), Limits())}
            source = replace(weights, attachments=others, file_name="model.safetensors")
            return encode_file(source, path, overwrite=overwrite, jobs=jobs, **options)
    with output_directory(path, overwrite=overwrite, marker=BITSTREAM) as made:
        write_others(made)
        return encode_file(weights, made / BITSTREAM, jobs=jobs, **options)


def from_pretrained(
    cls: Any, path: str | os.PathLike[str], *, limits: Limits | None = None, jobs: int = 1, **options: Any
) -> Any:
    """Load a model like ``cls.from_pretrained``, from a bitstream; weights are decoded in memory.

    Parameters
    ----------
    cls : type
        Class of the model, or a class such as ``AutoModel`` that selects it by the configuration.
    path : path
        A folder with ``model.nnr`` and ``config.json``, or a bitstream with attachments.
    limits, jobs
        As for :func:`nnr_codec.decode`.
    **options
        Options of ``cls.from_pretrained``, such as ``dtype``.

    Raises
    ------
    FormatError
        There is no ``config.json``.
    MissingDependencyError
        transformers or PyTorch is not installed.
    NnrError, OSError
        As for :func:`nnr_codec.decode`.
    """
    transformers: Any = require("transformers", "huggingface", "loading models of transformers")
    torch: Any = require("torch", "torch", "loading models of transformers")
    with _opened(Path(path), limits) as (bitstream, folder):
        config = options.pop("config", None)
        if config is None:
            if not (folder / "config.json").is_file():
                raise FormatError("there is no config.json", where=os.fspath(path))
            trust = {name: options[name] for name in ("trust_remote_code",) if name in options}
            config = transformers.AutoConfig.from_pretrained(folder, **trust)
        state = decode(bitstream, framework="pt", limits=limits, jobs=jobs)
        if hasattr(cls, "from_config"):
            with torch.device("meta"):  # no weights
                cls = type(cls.from_config(config))
        model = cls.from_pretrained(None, config=config, state_dict=state, **options)
        if (folder / "generation_config.json").is_file() and model.can_generate():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return model


def cached_folder(
    path: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
    jobs: int = 1,
) -> Path:
    """Return a folder with the files of a bitstream, for tokenizers and for libraries that read folders.

    The folder has the attachments and ``model.safetensors``. It is written on the first call, complete or not at all,
    and named by the SHA-256 of the bitstream. It may be deleted.

    Parameters
    ----------
    path : path
        A bitstream with attachments.
    cache_dir : path, optional
        Folder of the cache. Default: the folder ``nnr`` in the cache of Hugging Face: ``$HF_HOME``, or else
        ``$XDG_CACHE_HOME/huggingface``, or ``~/.cache/huggingface``.
    limits, jobs
        As for :func:`nnr_codec.decode_file`.

    Raises
    ------
    FormatError
        The bitstream has no attachments.
    NnrError, OSError
        As for :func:`nnr_codec.decode_file`.
    """
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        target = _cache(cache_dir) / digest
        if target.is_dir():
            return target
        file.seek(0)
        with open_bitstream(file, limits=limits) as bitstream:
            _check_attachments(bitstream.attachments, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # another process was faster
                decode_file(bitstream, target, format="safetensors", jobs=jobs)
    return target


def _cache(cache_dir: str | os.PathLike[str] | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get("HF_HOME") or os.path.join(base, "huggingface"), "nnr")


@contextmanager
def _opened(path: Path, limits: Limits | None) -> Iterator[tuple[Path, Path]]:
    """Yield the path of a bitstream, and of the folder with its other files."""
    if path.is_dir():
        yield path / BITSTREAM, path
        return
    with tempfile.TemporaryDirectory() as scratch:
        with open_bitstream(path, limits=limits) as file:
            _check_attachments(file.attachments, path)
            write_files(Path(scratch), file.attachments)
        yield path, Path(scratch)


def _check_attachments(attachments: object, path: str | os.PathLike[str]) -> None:
    if not attachments:
        raise FormatError("the bitstream has no attachments, such as config.json", where=os.fspath(path))
