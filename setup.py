"""List of packages: nnr_cli is in the folder cli, which pyproject.toml cannot combine with discovery."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["nnr_codec*"]), "nnr_cli"], package_dir={"nnr_cli": "cli"})
