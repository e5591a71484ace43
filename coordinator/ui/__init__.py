"""The coordinator's web pages, under `/ui/`: the state of jobs, their problems, and actions.

* `routes`: the pages, the dialogs of actions, and the event stream.
* `views`: reads the data of a page, with the functions of the API.
* `pieces`: a page is a list of fragments. A fragment is one HTML element with an id. A table is a fragment whose rows are fragments.
* `live`: renders the pages that browsers watch, once for all of them, and sends the changed fragments.
* `actions`: the operators' actions. Each has a plan, which is shown first, and an equivalent command.
* `graph`, `fleet`, `samples`: the drawing of a job's stages, the heat map of leases, and recent rates.

Templates escape all text. Pages work without scripts; with scripts they stay up to date. Pages load nothing from other sites, and the
content security policy allows neither inline scripts nor inline styles.
"""
