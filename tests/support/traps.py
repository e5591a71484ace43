"""Modules that fail when they are imported, under names that other modules have."""

from __future__ import annotations

from pathlib import Path

PACKAGES = ("containers", "coordinator", "migrations", "sluice")
MODULES = ("asyncio", "json", "logging", "pandas", "pathlib", "py4j", "pyspark", "random", "runpy", "socket", "typer", "typing")


def set_traps(directory: Path, *further: str) -> None:
    """Create packages and modules with the names of Sluice's own modules, its dependencies and the standard library's, and `further`
    modules.
    """
    for name in PACKAGES:
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text(f"raise RuntimeError('the trap {name}/')\n")
    for name in (*MODULES, *further):
        (directory / f"{name}.py").write_text(f"raise RuntimeError('the trap {name}.py')\n")
