"""The HTTP bodies of the coordinator's API, as pydantic models: one module for each part of the API.

The coordinator validates requests and builds replies with them; the client and the command line send and read the same models. `body` holds
what all of them share, including the names of headers. `samza` has the job model in the format of Apache Samza.
"""
