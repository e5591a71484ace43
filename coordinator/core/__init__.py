"""The nouns and rules of Sluice: standard library only, no clock, no I/O, no logging."""
