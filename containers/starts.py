"""What an acquired task's stages start with, and whether the job file is the one that was deployed."""

from __future__ import annotations
