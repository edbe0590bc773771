"""NNR-SID-701, and 710 to 718: attachments, which are units of storage format 129."""

from __future__ import annotations

from nnr_codec.constants import NNR_PT_RAW_FLOAT

from ..builder import ndu
from .bits import f4
from .case import Content, acceptable, invalid
from .recorded import EXTENSION, RULES, Recorded
from .stream import Stream
from .topologies import stored

CONFIG = b'{"attachment":"config.json","bytes":7}\n{"a":1}\0'
DEFLATED = b'{"attachment":"1_Pooling/config.json","bytes":7,"coding":"deflate"}\n' + stored(b'{"b":1}') + b"\0"
TENSORS = b'{"attachment":"model.safetensors","coding":"tensors"}\n\0'


@acceptable("NNR-SID-701", "a text, a deflated file and the name of the file of tensors", "6.4.3.5", "NNR_TPL_UNSP")
def attached() -> Content:
    s = Stream().start()
    for data in (TENSORS, CONFIG, DEFLATED):
        s.topology(data, storage=129)
    return s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [1, -2]).gives({"w": f4(1, -2)})


def rejected(number: int, title: str, *data: bytes, error: str = "ElementError", **fields: object) -> None:
    """Register a bitstream whose last attachment is malformed."""
    rules = RULES.get(error, "attachment")

    @invalid(
        f"NNR-SID-{number}",
        title,
        "6.4.3.5",
        "NNR_TPL_UNSP",
        error,
        1 + len(data),
        requirements=rules,
        extension=EXTENSION,
        **fields,
    )
    def make() -> Content:
        s = Recorded()
        s.start()
        for each in data:
            s.topology(each, storage=129)
        return s.plain("w").refused_here()


def named(name: str) -> bytes:
    """Return an empty attachment."""
    return b'{"attachment":"%s"}\n\0' % name.encode()


rejected(710, "an attachment outside the folder", named("../x"))
rejected(711, "an attachment with an absolute name", named("/etc/x"))
rejected(712, "two attachments whose names differ only in case", named("a"), named("A"))
rejected(713, "an attachment of another size than its header states", CONFIG.replace(b"7", b"8"))
rejected(714, "an attachment without a zero byte at its end", CONFIG[:-1])
rejected(715, "an attachment whose header is not canonical", CONFIG.replace(b":7", b": 7"))
rejected(716, "two names of the file of tensors", TENSORS, TENSORS.replace(b"model", b"other"))
rejected(717, "more bytes than max_attachment_bytes", CONFIG, error="LimitError", limits={"max_attachment_bytes": 6})
rejected(718, "more attachments than max_attachments", CONFIG, error="LimitError", limits={"max_attachments": 0})
