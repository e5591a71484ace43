"""The agent that lives inside a PySpark driver, and what its users write.

>>> from containers import Job
"""

from containers.job import Input, Intermediate, Job, Output, Task

__all__ = ["Input", "Intermediate", "Job", "Output", "Task"]
