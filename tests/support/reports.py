"""What tests add to the end of the output of pytest."""

SUMMARY = "summary"
"""The property of a test whose value is a line at the end of the output, also when the test ran in another process."""
