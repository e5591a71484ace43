"""The flights demo: a job of two stages processes a year of flights, and a check shows that nothing was lost, duplicated or altered."""
