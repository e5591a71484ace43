"""Alembic's environment: runs the migrations on the connection of `coordinator.store.migrate`."""

from __future__ import annotations

from alembic import context

from coordinator.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, compare_type=True)
with context.begin_transaction():
    context.run_migrations()
