"""Packages and extension modules; everything else is in pyproject.toml."""

from setuptools import Extension, find_packages, setup

# Contraction into fused multiply-add would make the encoder's decisions differ between machines.
FLAGS = ("-O3", "-g0", "-ffp-contract=off")
CABAC = "nnr_codec/cabac_ext/"


def extension(name, *headers):
    """Return an extension module of ``cabac_ext``, which is built again if one of ``headers`` changes."""
    return Extension(
        f"nnr_codec.cabac_ext.{name}",
        [f"{CABAC}{name}.pyx"],
        depends=[CABAC + header for header in headers],
        include_dirs=[CABAC],
        extra_compile_args=[*FLAGS],
    )


EXTENSIONS = [
    Extension("nnr_codec.syntax.bit_buffers", ["nnr_codec/syntax/bit_buffers.pyx"], extra_compile_args=[*FLAGS]),
    extension(
        "kernel",
        "_dispatch.h",
        "_engine.pxd",
        "_estimate.h",
        "_estimate.pxi",
        "_lanes.h",
        "_lanes_avx2.h",
        "_lanes_avx512.h",
        "_lanes.pxi",
        "_levels.h",
        "_syntax.pxi",
        "_tables.h",
    ),
    extension("quantizer", "_dispatch.h", "_scan.h", "_tables.h", "_trellis.h", "_values.h"),
    extension("surgeon", "_tables.h"),
    extension("bits", "_dispatch.h", "_fields.h", "_tables.h"),
]
ARGUMENTS = {
    "packages": [*find_packages(include=["nnr_codec*"]), "nnr_cli"],
    "package_dir": {"nnr_cli": "cli"},  # which pyproject.toml cannot combine with discovery
    "ext_modules": EXTENSIONS,
}

if __name__ == "__main__":
    setup(**ARGUMENTS)
