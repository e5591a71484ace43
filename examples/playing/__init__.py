"""Shared by the demos: a replay of rows into streams, `sluice run` as a process, the state of a run, and a comparison row by row."""
