"""Shared by the demos: replay rows into streams, run `sluice run` as a child process, watch a run, and compare output row by row."""
