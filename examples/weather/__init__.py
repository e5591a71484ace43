"""The weather demo: a stream-stream join of departures with the weather at their origin, checked row by row."""
