"""A second job: departures joined with the weather at their origin, stream with stream, and the proof that each got its own."""
