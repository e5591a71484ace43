"""The coordinator's web pages, under `/ui/`: what runs, what is wrong, and what to do.

* `routes`: the pages, the dialogs of actions, and the event stream.
* `views`: reads what a page shows, with the functions that also answer the API.
* `pieces`: a page is a list of pieces. A piece is one HTML element with an id; a table is a piece whose rows are pieces, too.
* `live`: renders the pages that browsers watch, once for all of them, and sends the pieces that have changed.
* `actions`: what an operator may do. Each action has a plan, which is shown first, and the command that does the same.
* `graph`, `fleet`, `timeline`, `samples`: the drawing of a job's stages, the heat map of leases, the events of a job, and recent rates.

Templates escape all text. Pages work without scripts; with scripts they stay up to date. No page loads anything from elsewhere, and the
content security policy allows neither inline scripts nor inline styles.
"""
