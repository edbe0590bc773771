r"""Adapter of a decoder for ``nnr conformance --decoder``: INPUT OUTDIR [EARLIER...].

    nnr conformance bitstream_vectors/profile3gpp \
        --decoder 'python examples/decoders/adapter.py {input} {outdir} {inputs}'

``decode`` calls nnr_codec as a stand-in for the decoder to test; replace it. ``nncodec2.py`` is the adapter of NNCodec.
Exit code 0: the bitstream was decoded, and OUTDIR has NAME.npy for each tensor (names percent-encoded). Other exit
codes below 128: the decoder rejected it. EARLIER: the bitstreams before an update, in order.
"""

import sys
from pathlib import Path
from urllib.parse import quote

import numpy as np

import nnr_codec as nnr


def decode(bitstreams: list[bytes]) -> dict[str, np.ndarray]:
    """Return the tensors of the last bitstream by name; raise NnrError if it is invalid."""
    if len(bitstreams) == 1:
        return {name: np.asarray(tensor) for name, tensor in nnr.decode(bitstreams[0]).tensors.items()}
    decoder = nnr.UpdateDecoder()
    return [decoder.decode(data) for data in bitstreams][-1]


if __name__ == "__main__":
    source, folder, *earlier = sys.argv[1:]
    try:
        tensors = decode([Path(path).read_bytes() for path in (*earlier, source)])
    except nnr.NnrError as error:
        sys.exit(str(error))
    for name, tensor in tensors.items():
        np.save(Path(folder, quote(name, safe="") + ".npy"), tensor)
