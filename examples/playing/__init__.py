"""What the demos share: a replay of rows into streams, `sluice run` as a process, a look at a run, and a comparison row by row."""
