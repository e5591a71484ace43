"""A Python without PySpark: an environment with the installed packages but those of the extra `spark`."""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.support.deployed import ROOT

OF_THE_EXTRA = ("google", "numpy", "numpy.libs", "pandas", "protobuf", "py4j", "pyarrow", "pyarrow.libs", "pyspark")


class PlainPython:
    """Also the processes that it starts with `sys.executable` have no PySpark. `kept`: packages of the extra that it has."""

    def __init__(self, directory: Path, *kept: str) -> None:
        venv.create(directory, symlinks=True)
        self.packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(directory)}))
        self._program = directory / "bin" / Path(sys.executable).name
        for place in (Path(each) for each in sys.path if Path(each).name == self.packages.name):  # also those that a .pth file names
            for each in place.iterdir():
                name = each.name.split("-")[0]
                link = self.packages / each.name
                if (name in kept or name not in OF_THE_EXTRA) and each.suffix != ".pth" and not link.exists():
                    link.symlink_to(each)

    def command(self, *arguments: str) -> Sequence[str]:
        return [str(self._program), "-P", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "SPARK_", "PYTHON"))}
        return {**kept, "PYTHONPATH": str(ROOT)}
