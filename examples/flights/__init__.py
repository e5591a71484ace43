"""The demo: a year of flights through a job of two stages, and the proof that nothing was lost, doubled or altered."""
