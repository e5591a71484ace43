"""Sluice: leases, job models, drains and state backup for PySpark streaming jobs.

>>> from sluice import Job
>>> app = sluice.attach(spark, job="orders")  # in a script that was not written for Sluice

Three packages, three programs:

* `sluice` is the library that job files import, the command line, and the code that the other two share: the rules (`core`), the HTTP
  bodies (`wire`) and their client (`client`), blob stores (`blobs`) and stream systems (`streams`). It imports neither of the others.
* `coordinator` is the service that decides which container processes which partitions, and until when.
* `containers` is the agent process around a PySpark driver. It and `coordinator` do not import each other; they communicate over HTTP.
"""

from sluice.job import Input, Intermediate, Job, Output, Task
from sluice.script import attach

__all__ = ["Input", "Intermediate", "Job", "Output", "Task", "attach"]
