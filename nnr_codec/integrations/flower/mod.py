"""Client mod of the Flower integration."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, TypeVar, Unpack

from ... import UpdateState, decode
from ...config import EncoderConfig, EncoderOptions, configured
from ...errors import EncodeError, FormatError, UnsupportedError
from ...federated.update import UpdateEncoder
from ...limits import Limits
from ..rounds import Tensors, encode_reply, one_line
from .records import KEY, VERSION, app, coded_record, log, mapped, payload_of, plain_record, refuse_masks, tensors_of

T = TypeVar("T")


class NNRMod:
    """Mod that decodes the models of a :class:`NNRStrategy` and encodes the updates that a client returns.

    It must be the first mod, so that other mods receive plain arrays. Without an NNRStrategy it does nothing.

    Parameters
    ----------
    config : EncoderConfig, optional
        Options for updates; default: the preset ``"fl"``.
    sparsity, structured_sparsity, sbt, sbt_ternary : float, optional
        As for :class:`nnr_codec.UpdateEncoder`.
    error_feedback : bool
        Add the coding error of an update to the next update; it is stored in the client's ``Context.state``.
    limits : Limits, optional
        Limits for decoding a model of the server.
    jobs : int
        Number of threads for coding.
    **options
        As for :func:`nnr_codec.encode`. ``target_size`` is the maximum size of each update in bytes; with error
        feedback, the changes that do not fit are part of the next updates.

    Raises EncodeError for options that do not apply to updates. An update that exceeds ``target_size`` even with the
    coarsest step sizes is not sent, and the error feedback remains as it was.
    """

    def __init__(
        self,
        config: EncoderConfig | None = None,
        *,
        sparsity: float | None = None,
        structured_sparsity: float | None = None,
        sbt: float | None = None,
        sbt_ternary: float | None = None,
        error_feedback: bool = True,
        limits: Limits | None = None,
        jobs: int = 1,
        **options: Unpack[EncoderOptions],
    ) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self._config = configured(NNRMod, config, options, "fl")
        self._options: dict[str, Any] = {
            "error_feedback": error_feedback,
            "sparsity": sparsity,
            "structured_sparsity": structured_sparsity,
            "sbt": sbt,
            "sbt_ternary": sbt_ternary,
        }
        self._limits, self._jobs = limits, jobs
        UpdateEncoder(self._config, **self._options)  # validates the options

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """Handle a message: decode the model, run the app, encode the update.

        Raises
        ------
        UnsupportedError
            The message uses secure aggregation.
        NnrError
            The model cannot be decoded or the update cannot be encoded. Flower converts it to an error reply.
        """
        refuse_masks(message.content)
        if KEY not in message.content:
            return call_next(message, context)
        instructions = message.content[KEY]
        if (version := instructions.get("version")) != VERSION:
            raise UnsupportedError(
                f"the server uses protocol version {version!r}, but NNRMod requires version {VERSION}; "
                "install the same nnr_codec on both"
            )
        models: dict[str, Tensors] = {}
        records: dict[str, Any] = {}
        for name, record in message.content.array_records.items():
            payload = payload_of(record)
            if payload is None:
                models[name] = tensors_of(record)
            else:
                models[name] = decode(payload, limits=self._limits, jobs=self._jobs).tensors
                records[name] = plain_record(models[name])
        keys = dict(zip(instructions.get("records", []), instructions.get("bases", []), strict=True))
        if not keys.keys() <= models.keys() or ("bases" in instructions and not keys):
            raise FormatError("the server requests updates of models that it did not send")
        content = mapped(message.content, records)
        del content[KEY]
        message.content = content
        reply = call_next(message, context)
        if not keys or reply.has_error():
            return reply
        refuse_masks(reply.content)
        coded: dict[str, Any] = {}
        for name, record in reply.content.array_records.items():
            sent = name if name in keys else next(iter(keys))
            if sent != name and len(keys) > 1:
                raise EncodeError(f"ArrayRecord {name!r} of the reply is not one of {', '.join(map(repr, keys))}")
            coded[name] = coded_record(
                self._encoded(sent, keys[sent], models[sent], record, instructions, context.state)
            )
        reply.content = mapped(reply.content, coded)
        return reply

    def _encoded(self, name: str, key: str, base: Tensors, record: Any, instructions: Any, kept: Any) -> bytes:
        """Encode the change from the base to an ArrayRecord as an update; store the state for the next
        update in ``kept``."""
        stateful = "token" in instructions
        device_id = instructions["device_id"] if stateful else 0
        state = self._state(f"{KEY}.state.{name}", device_id, instructions["token"], kept) if stateful else None
        encoder = UpdateEncoder(
            self._config,
            device_id=device_id,
            parent="node" if stateful else "external",
            base_model_id=key,
            state=state,
            names=base,
            **self._options,
        )
        place = f"{KEY}.residual.{name}"
        if encoder.feedback:
            encoder.feedback.residual = _restored(place, kept, tensors_of) or {}
        payload = encode_reply(base, tensors_of(record), encoder, jobs=self._jobs)
        if encoder.feedback:
            kept[place] = plain_record(encoder.feedback.residual)
        if stateful:
            file = BytesIO()
            encoder.state.save(file)
            kept[f"{KEY}.state.{name}"] = app.ConfigRecord({"state": file.getvalue()})
        return payload

    def _state(self, place: str, device_id: int, token: str, kept: Any) -> UpdateState | None:
        """Return the state after earlier updates if the server has the same state; None for an independent update."""
        state = _restored(place, kept, _state_of) if token else None
        last = state.lineages.get(device_id) if state else None
        return state if last and last.token == token else None


def _state_of(record: Any) -> UpdateState:
    return UpdateState.load(record["state"], limits=Limits.unlimited())


def _restored(place: str, kept: Any, read: Callable[[Any], T]) -> T | None:
    """Read the state after an earlier update; None if there is none, or if it is unreadable."""
    try:
        return read(kept[place]) if place in kept else None
    except Exception as error:  # a damaged file or another version: continue without it
        log.warning("NNR: state kept as %r is discarded: %s", place, one_line(error))
        return None
