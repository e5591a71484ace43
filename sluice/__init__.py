"""Sluice: leases, job models, drains and state backup for PySpark streaming jobs.

>>> from sluice import Job
>>> app = sluice.attach(spark, job="orders")  # in a script that was not written for Sluice

Three packages, three programs:

* `sluice` is the library that job files import, the command line, and the code that the other two share: the rules (`core`), the HTTP
  bodies (`wire`) and their client (`client`), blob stores (`blobs`) and stream systems (`streams`). It imports neither of the others.
* `coordinator` is the service that decides which container processes which partitions, and until when.
* `containers` is the agent process around a PySpark driver. It and `coordinator` do not import each other; they communicate over HTTP.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.job import Input, Intermediate, Job, Output, Task
    from sluice.script import attach

__all__ = ["Input", "Intermediate", "Job", "Output", "Task", "attach"]


def __getattr__(name: str) -> object:
    """Imports the module of a public name when the name is first used: the script `sluice` imports this package before it is ready for
    Ctrl-C."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module("sluice.script" if name == "attach" else "sluice.job"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
