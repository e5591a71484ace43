"""The coordinator's database. SQL is only here."""
