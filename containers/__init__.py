"""The agent that lives inside a PySpark driver, and what its users write.

>>> from containers import Job
"""

from sluice.job import Input, Intermediate, Job, Output, Task

__all__ = ["Input", "Intermediate", "Job", "Output", "Task"]
