"""Check that another architecture encodes and decodes to the same bytes as this machine.

``python -m tools.foreign s390x`` (big-endian) or ``aarch64`` builds an environment in ``--folder`` and runs it in QEMU:

1. Debian's Python, numpy and libraries, unpacked from packages that a private configuration of apt downloads; other
   packages of Python as wheels of the architecture.
2. A copy of this checkout, whose extension modules Cython and a cross compiler build with the options of ``setup.py``.
3. The self-test, some modules of tests, and the digests of ``tools.snapshot``, which are compared with the digests of
   this interpreter. The exit status is 1 if anything differs or fails.

It requires Debian or Ubuntu, ``pip install -e '.[dev]'``, QEMU and a cross compiler. For s390x::

    apt-get install debian-archive-keyring qemu-user-static g++-s390x-linux-gnu

On Ubuntu, ``--mirror`` names a mirror of Debian. Nothing is installed outside the folder, which is kept: the next run
downloads nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import ROOT

#: Releases of Debian: the first has all packages, but a mirror may lack some; the second supplies them.
RELEASES = ("trixie", "forky")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

#: Version of Python in the first release, and Debian's packages of it and of numpy with all that they require here.
PYTHON = "3.13"
PACKAGES = [f"python{PYTHON}-minimal", *(f"libpython{PYTHON}-{part}" for part in ("minimal", "stdlib", "dev"))]
PACKAGES += ["python3-numpy", "python3-numpy-dev", "libblas3", "liblapack3", "libgfortran5", "libstdc++6", "libgcc-s1"]
PACKAGES += ["libc6", "zlib1g", "libbz2-1.0", "liblzma5", "libzstd1", "libexpat1", "libffi8", "libssl3t64"]

#: Other packages of Python, which pyproject.toml and the tests require.
WHEELS = ("bitarray>=3", "click>=8.1", "rich>=13", "pytest>=8", "hypothesis>=6.100", "jsonschema>=4.23")
GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_31")

#: Folders and files of the copy.
COPIED = ("nnr_codec", "cli", "tests", "tools", "docs", "examples", "bitstream_vectors", "setup.py", "pyproject.toml")

#: Tests that require no other packages; without tests that start a process, or bound numpy's memory.
TESTS = ["tests/test_vectors.py", "tests/sideinfo", "tests/cabac", "tests/syntax/test_bitio.py"]
TESTS += ["-m", "not slow and not heavy", "-k", "not ctrl_c and not memory"]


@dataclass(frozen=True)
class Architecture:
    """Name of an architecture in Debian's packages, and the emulator's command."""

    debian: str
    emulator: tuple[str, ...]


ARCHITECTURES = {
    "s390x": Architecture("s390x", ("qemu-s390x-static",)),
    # The default CPU signs pointers, whose emulation takes most of the time.
    "aarch64": Architecture("arm64", ("qemu-aarch64-static", "-cpu", "neoverse-n1")),
}


class Machine:
    """An emulated machine in a folder, on which a copy of this checkout runs."""

    def __init__(self, name: str, folder: Path, mirror: str | None) -> None:
        self.name, self.folder, self.architecture = name, folder, ARCHITECTURES[name]
        self.mirror = mirror
        self.triplet = f"{name}-linux-gnu"
        self.root, self.site, self.source = (folder / part for part in ("root", "site", "source"))

    def build(self) -> None:
        """Make the environment; downloads are kept."""
        if not (self.folder / "complete").exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self._debian()
            self._wheels()
            (self.folder / "complete").touch()
        self._extensions()

    def run(self, *arguments: object) -> bool:
        """Run Python with arguments in the copy; return whether its exit status is 0."""
        libraries = f"/usr/lib/{self.triplet}"
        emulator = (*self.architecture.emulator, "-L", self.root)
        emulator += ("-E", f"LD_LIBRARY_PATH={libraries}/blas:{libraries}/lapack")
        return run([*emulator, self.root / f"usr/bin/python{PYTHON}", *arguments], self.source, self.source, self.site)

    def _debian(self) -> None:
        apt, debs, architecture = self.folder / "apt", self.folder / "debs", self.architecture.debian
        for part in (apt / "lists" / "partial", apt / "cache" / "archives" / "partial", debs):
            part.mkdir(parents=True, exist_ok=True)
        (apt / "status").touch()
        mirror = self.mirror or debian_mirror()
        sources = [f"deb [arch={architecture} signed-by={KEYRING}] {mirror} {name} main\n" for name in RELEASES]
        (apt / "sources.list").write_text("".join(sources), encoding="utf-8")
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Dir::Cache": apt / "cache",
            "Dir::Cache::pkgcache": "packages.bin",
            "Dir::Etc::sourcelist": apt / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::State": apt,
            "Dir::State::status": apt / "status",
        }
        configuration = apt / "apt.conf"
        configuration.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()), encoding="utf-8")
        environment = os.environ | {"APT_CONFIG": str(configuration)}
        subprocess.run(["apt-get", "-qq", "update"], env=environment, check=False)
        for release in RELEASES:
            if missing := [name for name in PACKAGES if not any(debs.glob(f"{name}_*.deb"))]:
                chosen = [f"{name}/{release}" for name in missing]
                subprocess.run(["apt-get", "-qq", "download", *chosen], cwd=debs, env=environment, check=False)
        if missing := [name for name in PACKAGES if not any(debs.glob(f"{name}_*.deb"))]:
            sys.exit(f"apt-get cannot download {', '.join(missing)} for {architecture}")
        for deb in sorted(debs.iterdir()):
            subprocess.run(["dpkg", "-x", deb, self.root], check=True)
        (self.root / "lib").symlink_to("usr/lib")

    def _wheels(self) -> None:
        wheels = self.folder / "wheels"
        download = [sys.executable, "-m", "pip", "download", "-q", "-d", str(wheels)]
        binary = ["--only-binary", ":all:", "--python-version", PYTHON]
        binary += [word for glibc in GLIBC for word in ("--platform", f"{glibc}_{self.name}")]
        subprocess.run([*download, *binary, *WHEELS], check=True)
        if subprocess.run([*download, *binary, "--no-deps", "ml_dtypes"], check=False).returncode:
            subprocess.run([*download, "--no-deps", "--no-binary", "ml_dtypes", "ml_dtypes"], check=True)
            self._ml_dtypes(next(wheels.glob("ml_dtypes-*.tar.gz")))
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self.site)

    def _ml_dtypes(self, archive: Path) -> None:
        """Build ml_dtypes where no wheel exists; its own build cannot cross-compile."""
        shutil.unpack_archive(archive, self.folder, filter="data")
        (source,) = (path for path in self.folder.glob("ml_dtypes-*") if path.is_dir())
        package = self.site / "ml_dtypes"
        shutil.copytree(source / "ml_dtypes", package, ignore=shutil.ignore_patterns("_src", "include", "tests"))
        numpy = self.root / f"usr/lib/{self.triplet}/python3-numpy/numpy/_core/include"
        self._compile(
            package / "_ml_dtypes_ext",
            [source / "ml_dtypes" / "_src" / name for name in ("dtypes.cc", "numpy.cc")],
            [numpy, source, source / "third_party" / "eigen"],
            ["-std=c++17", "-DEIGEN_MPL2_ONLY", "-fvisibility=hidden", "-O1", "-w"],
        )

    def _extensions(self) -> None:
        """Copy this checkout and build its extension modules."""
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            else:
                shutil.copy(ROOT / name, self.source)
        (self.source / "nnr_cli").symlink_to("cli")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._extension, runpy.run_path(str(ROOT / "setup.py"))["EXTENSIONS"]))

    def _extension(self, module: Any) -> None:
        for source in module.sources:
            subprocess.run([sys.executable, "-m", "cython", "-3", source], cwd=self.source, check=True)
        self._compile(
            self.source / module.name.replace(".", "/"),
            [(self.source / source).with_suffix(".c") for source in module.sources],
            [self.source / folder for folder in module.include_dirs],
            module.extra_compile_args,
        )

    def _compile(self, target: Path, sources: list[Path], folders: list[Path], options: list[str]) -> None:
        compiler = f"{self.triplet}-{'gcc' if sources[0].suffix == '.c' else 'g++'}"
        include = self.root / "usr" / "include"
        headers = [f"-I{folder}" for folder in (*folders, include / f"python{PYTHON}", include)]
        library = f"{target}.cpython-{PYTHON.replace('.', '')}-{self.triplet}.so"
        command = [compiler, "-shared", "-fPIC", "-DNDEBUG", *options, *headers, *map(str, sources), "-o", library]
        subprocess.run(command, check=True)


def debian_mirror() -> str:
    """Return the mirror of Debian that this machine uses."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return found[0] if found else sys.exit("apt has no mirror of Debian; name one with --mirror")


def run(command: list[object], folder: Path, *path: Path) -> bool:
    """Run a command in a folder with a path of Python; return whether its exit status is 0."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "NNR_SHARED": str(folder / "none"),  # reference material would only take time
    }
    return subprocess.run([str(word) for word in command], cwd=folder, env=environment, check=False).returncode == 0


def compared(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return a line for each fact that differs, without facts that require a package which one side lacks."""
    unable = tuple(
        name.partition(":")[0]
        for name, value in (*here.items(), *there.items())
        if value.startswith("absent") or "MissingDependencyError" in value
    )
    names = [name for name in {**here, **there} if not name.startswith(unable)]
    print(f"{len(names)} digests are compared; {len({**here, **there}) - len(names)} require other packages")
    return [f"{name}: {here.get(name)} != {there.get(name)}" for name in names if here.get(name) != there.get(name)]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.foreign", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("architecture", choices=ARCHITECTURES)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "nnr-foreign"))
    parser.add_argument("--mirror", help="URL of a mirror of Debian, instead of the one that apt uses")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve() / arguments.architecture
    if folder.is_relative_to(ROOT):
        parser.error(f"{folder} is in the checkout; choose another folder")
    started = time.monotonic()

    def say(what: str) -> None:
        print(f"== {what} ({time.monotonic() - started:.0f} s)", flush=True)

    say("environment")
    machine = Machine(arguments.architecture, folder, arguments.mirror)
    machine.build()
    say("self-test")
    fine = machine.run(
        "-c", "import sys, nnr_codec; print(sys.byteorder, found := nnr_codec.selftest()); sys.exit(not found.is_fine)"
    )
    say("tests")
    fine &= machine.run("-m", "pytest", "-q", "-o", "addopts=", "--import-mode=importlib", *TESTS)
    say("digests")
    here, there = folder / "here.json", folder / "there.json"
    record = ("-m", "tools.snapshot", "--no-measurements")
    fine &= run([sys.executable, *record, here], ROOT, ROOT) and machine.run(*record, there)
    lines = compared(*(json.loads(path.read_text(encoding="utf-8"))["facts"] for path in (here, there)))
    print(*lines, sep="\n")
    say("equal" if fine and not lines else "different")
    return not fine or bool(lines)


if __name__ == "__main__":
    sys.exit(main())
