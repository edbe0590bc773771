"""The packages. All else is in pyproject.toml, where a found package has the name of its folder, unlike nnr_cli."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["nnr_codec*"]), "nnr_cli"], package_dir={"nnr_cli": "cli"})
