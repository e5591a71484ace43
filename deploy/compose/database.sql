-- The role of the coordinator: it creates its tables and owns nothing else. Run once, when the database is created.
\set password `cat "$COORDINATOR_PASSWORD_FILE"`
CREATE ROLE coordinator LOGIN PASSWORD :'password';
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO coordinator;
