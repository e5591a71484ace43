SELECT pg_catalog.set_config('search_path', '', false);
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.assignments (
    job character varying(249) NOT NULL,
    system character varying(249) NOT NULL,
    stream character varying(249) NOT NULL,
    partition integer NOT NULL,
    task text NOT NULL
);
CREATE TABLE public.audit_events (
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    actor character varying(300) NOT NULL,
    authenticated boolean NOT NULL,
    source character varying(300) NOT NULL,
    action character varying(300) NOT NULL,
    subject text NOT NULL,
    request_id character varying(64) NOT NULL,
    status integer,
    reason text NOT NULL,
    job character varying(300) DEFAULT ''::character varying NOT NULL,
    before json,
    after json
);
CREATE TABLE public.baselines (
    job character varying(249) NOT NULL,
    system character varying(249) NOT NULL,
    stream character varying(249) NOT NULL,
    partitions integer NOT NULL
);
CREATE TABLE public.browser_sessions (
    digest character varying(64) NOT NULL,
    token_id character varying(32) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    provider character varying(100) DEFAULT ''::character varying NOT NULL,
    name character varying(200) DEFAULT ''::character varying NOT NULL,
    subject text DEFAULT ''::text NOT NULL,
    groups json DEFAULT '[]'::json NOT NULL
);
CREATE TABLE public.claims (
    name character varying(16) NOT NULL,
    holder character varying(300) NOT NULL,
    term bigint DEFAULT 0 NOT NULL,
    expires_at timestamp with time zone
);
CREATE TABLE public.cleanups (
    kind character varying(16) NOT NULL,
    blob_store character varying(249) NOT NULL,
    subject character varying(1000) NOT NULL,
    job character varying(249) NOT NULL,
    task character varying(600) NOT NULL,
    stage character varying(249) NOT NULL,
    queued_at timestamp with time zone NOT NULL,
    due_at timestamp with time zone NOT NULL,
    tries integer NOT NULL,
    error text NOT NULL
);
CREATE TABLE public.condemned (
    blob_store character varying(249) NOT NULL,
    blob character varying(1000) NOT NULL COLLATE pg_catalog."C",
    size bigint NOT NULL,
    condemned_at timestamp with time zone NOT NULL
);
CREATE TABLE public.containers (
    execution_id character varying(300) NOT NULL,
    run_id character varying(300) NOT NULL,
    job character varying(249) NOT NULL,
    processor_id character varying(100) NOT NULL,
    epoch integer NOT NULL,
    host character varying(300) NOT NULL,
    bare boolean NOT NULL,
    state character varying(16) NOT NULL,
    registered_at timestamp with time zone NOT NULL,
    last_seen_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    exit_code integer,
    reason text NOT NULL,
    metrics_address character varying(300),
    model_version integer DEFAULT 0 NOT NULL,
    adopted_at timestamp with time zone,
    can_keep_state boolean DEFAULT false NOT NULL,
    token character varying(64),
    principal character varying(200) DEFAULT ''::character varying NOT NULL,
    chose_token boolean DEFAULT false NOT NULL
);
CREATE TABLE public.drain_stages (
    drain_id character varying(64) NOT NULL,
    task character varying(600) NOT NULL,
    stage character varying(249) NOT NULL,
    step integer NOT NULL,
    generation integer,
    batch_id bigint,
    offsets json NOT NULL,
    pinned character varying(64),
    committed character varying(64),
    began_empty boolean NOT NULL,
    rows_left bigint,
    operators_left json NOT NULL,
    note text NOT NULL,
    reported_at timestamp with time zone,
    lineage character varying(100),
    operators json
);
CREATE TABLE public.drains (
    drain_id character varying(64) NOT NULL,
    run_id character varying(300) NOT NULL,
    job character varying(249) NOT NULL,
    seq integer NOT NULL,
    mode character varying(16) NOT NULL,
    phase character varying(16) NOT NULL,
    model_version integer NOT NULL,
    requested_at timestamp with time zone NOT NULL,
    soft double precision NOT NULL,
    hard double precision NOT NULL,
    budgets json NOT NULL,
    pinned json NOT NULL,
    catch_up json NOT NULL,
    drained json NOT NULL,
    stopping_at timestamp with time zone,
    flushing_at timestamp with time zone,
    committing_at timestamp with time zone,
    ended_at timestamp with time zone,
    reason text NOT NULL
);
CREATE TABLE public.holds (
    job character varying(249) NOT NULL,
    task character varying(600) NOT NULL,
    run_id character varying(300) NOT NULL,
    generation integer NOT NULL,
    holder character varying(300) NOT NULL,
    released boolean NOT NULL,
    acquired_at timestamp with time zone NOT NULL,
    model_version integer DEFAULT 0 NOT NULL
);
CREATE TABLE public.issued (
    name character varying(16) NOT NULL,
    origin character varying(64) NOT NULL,
    timeline character varying(64) NOT NULL,
    sequence bigint NOT NULL,
    highest bigint NOT NULL,
    floor bigint NOT NULL,
    reserved bigint,
    restored_at timestamp with time zone
);
CREATE TABLE public.job_models (
    job character varying(249) NOT NULL,
    version integer NOT NULL,
    run_id character varying(300) NOT NULL,
    document text NOT NULL,
    content_hash character varying(64) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    why text NOT NULL,
    who character varying(200) DEFAULT ''::character varying NOT NULL
);
CREATE TABLE public.jobs (
    job character varying(249) NOT NULL,
    current_run character varying(300) NOT NULL,
    "grouping" text NOT NULL
);
CREATE TABLE public.lease_bounds (
    name character varying(16) NOT NULL,
    lease double precision NOT NULL,
    grace double precision NOT NULL,
    bare_lease double precision NOT NULL,
    bare_grace double precision NOT NULL,
    outage double precision DEFAULT 120 NOT NULL
);
CREATE TABLE public.localities (
    job character varying(249) NOT NULL,
    processor_id character varying(100) NOT NULL,
    host character varying(300) NOT NULL
);
CREATE TABLE public.notices (
    run_id character varying(300) NOT NULL,
    seq integer NOT NULL,
    kind character varying(32) NOT NULL,
    at timestamp with time zone NOT NULL,
    detail json NOT NULL
);
CREATE TABLE public.pins (
    pin_id character varying(100) NOT NULL,
    job character varying(249) NOT NULL,
    task character varying(600) NOT NULL,
    stage character varying(249) NOT NULL,
    checkpoint character varying(64) NOT NULL,
    reason text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone
);
CREATE TABLE public.registries (
    blob_store character varying(249) NOT NULL,
    registry character varying(64) NOT NULL
);
CREATE TABLE public.runs (
    run_id character varying(300) NOT NULL,
    job character varying(249) NOT NULL,
    state character varying(16) NOT NULL,
    origin character varying(300) NOT NULL,
    spec json NOT NULL,
    streams json NOT NULL,
    model_version integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    stop_requested_at timestamp with time zone,
    ended_at timestamp with time zone,
    reason text NOT NULL,
    failing boolean NOT NULL,
    backup json,
    kept json
);
CREATE TABLE public.snapshots (
    job character varying(249) NOT NULL,
    seq bigint NOT NULL,
    task character varying(600) NOT NULL,
    stage character varying(249) NOT NULL,
    checkpoint character varying(64) NOT NULL,
    lineage character varying(100) NOT NULL,
    batch_id bigint,
    generation integer NOT NULL,
    run_id character varying(300) NOT NULL,
    reported_at timestamp with time zone NOT NULL,
    offsets json NOT NULL,
    markers json NOT NULL
);
CREATE TABLE public.starts (
    run_id character varying(300) NOT NULL,
    system character varying(249) NOT NULL,
    stream character varying(249) NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL
);
CREATE TABLE public.stores (
    job character varying(249) NOT NULL,
    task character varying(600) NOT NULL,
    stage character varying(249) NOT NULL,
    lineage character varying(100) NOT NULL,
    batch_id bigint,
    offsets json NOT NULL,
    generation integer,
    reported_at timestamp with time zone,
    head character varying(64),
    chosen boolean DEFAULT false NOT NULL,
    former character varying(100),
    starts json DEFAULT '[]'::json NOT NULL,
    late_rows json
);
CREATE TABLE public.tokens (
    token_id character varying(32) NOT NULL,
    name character varying(200) NOT NULL,
    digest character varying(64) NOT NULL,
    roles json NOT NULL,
    jobs json NOT NULL,
    created_at timestamp with time zone NOT NULL,
    created_by character varying(200) NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone
);
CREATE TABLE public.watched_streams (
    job character varying(249) NOT NULL,
    system character varying(249) NOT NULL,
    stream character varying(249) NOT NULL,
    run_id character varying(300) NOT NULL,
    name character varying(249) NOT NULL,
    known integer NOT NULL,
    seen integer,
    verdict character varying(16) NOT NULL,
    reason text NOT NULL,
    since timestamp with time zone NOT NULL,
    kept_from integer
);
INSERT INTO public.alembic_version VALUES
	('0022');
INSERT INTO public.assignments VALUES
	('delays', 'log', 'delays-by-carrier', 0, 'Partition 0'),
	('delays', 'log', 'delays-by-carrier', 1, 'Partition 1'),
	('delays', 'log', 'delays-flights', 0, 'Partition 0'),
	('delays', 'log', 'delays-flights', 1, 'Partition 1'),
	('delays', 'log', 'delays-flights', 2, 'Partition 0'),
	('delays', 'log', 'delays-flights', 3, 'Partition 1'),
	('weather', 'log', 'weather-by-carrier', 0, 'Partition 0'),
	('weather', 'log', 'weather-by-carrier', 1, 'Partition 1'),
	('weather', 'log', 'weather-flights', 0, 'Partition 0'),
	('weather', 'log', 'weather-flights', 1, 'Partition 1'),
	('tolls', 'log', 'tolls-by-carrier', 0, 'Partition 0'),
	('tolls', 'log', 'tolls-by-carrier', 1, 'Partition 1'),
	('tolls', 'log', 'tolls-flights', 0, 'Partition 0'),
	('tolls', 'log', 'tolls-flights', 1, 'Partition 1'),
	('rail', 'log', 'rail-by-carrier', 0, 'Partition 0'),
	('rail', 'log', 'rail-by-carrier', 1, 'Partition 1'),
	('rail', 'log', 'rail-flights', 0, 'Partition 0'),
	('rail', 'log', 'rail-flights', 1, 'Partition 1'),
	('ferries', 'log', 'ferries-by-carrier', 0, 'Partition 0'),
	('ferries', 'log', 'ferries-by-carrier', 1, 'Partition 1'),
	('ferries', 'log', 'ferries-flights', 0, 'Partition 0'),
	('ferries', 'log', 'ferries-flights', 1, 'Partition 1');
INSERT INTO public.audit_events VALUES
	(1, '2026-11-29 22:02:44.245618+00', '', false, '127.0.0.1', 'POST /runs', '/runs', '81dee7b6550940748856d7481a447882', 201, '', 'delays', '{}', '{"run": "delays-20261129T220244-0705a2", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}'),
	(2, '2026-11-29 22:02:45.127515+00', '', false, '127.0.0.1', 'POST /runs', '/runs', 'd9e01d8eafc14358a0144aecef32a7ed', 201, '', 'delays', '{"run": "delays-20261129T220244-0705a2", "state": "RUNNING", "containers": "1", "job model version": "1"}', '{"run": "delays-20261129T220245-221491", "state": "CREATED", "containers": "2", "job model version": "2"}'),
	(3, '2026-11-29 22:02:45.328802+00', '', false, '127.0.0.1', 'POST /containers/{executionContainerId:path}/exit', '/containers/delays-a/exit', 'f57abadf9e0c4f8a946037f90701978c', 200, '', 'delays', '{}', '{}'),
	(4, '2026-11-29 22:02:46.480874+00', '', false, '127.0.0.1', 'POST /jobs/{job}/pins', '/jobs/delays/pins', 'fc06ba25060f4e0a96bf39ea552499d0', 201, '', 'delays', '{}', '{"pin before-the-audit of Partition 0/hourly": "1700000000004-123456"}'),
	(5, '2026-11-29 22:02:46.63557+00', '', false, '127.0.0.1', 'POST /drain', '/drain', 'cddc73e3d031453d9251345220820364', 202, '', 'delays', '{"state": "RUNNING"}', '{"state": "DRAINING", "drain": "e51ac52a-9777-483a-9b73-db1cd3328bf9 STOPPING"}'),
	(6, '2026-11-29 22:02:46.943887+00', '', false, '127.0.0.1', 'POST /runs', '/runs', 'cf1c9de9186e409e9fff2897376c7057', 201, '', 'weather', '{}', '{"run": "weather-20261129T220247-d7b2b9", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}'),
	(7, '2026-11-29 22:02:47.553615+00', '', false, '127.0.0.1', 'POST /drain', '/drain', 'b69bc8f861cc4a4ba557dee159f898a8', 202, '', 'weather', '{"state": "RUNNING"}', '{"state": "DRAINING", "drain": "defb8fbd-69a4-4007-b9bf-7e2c30fa9775 STOPPING"}'),
	(8, '2026-11-29 22:02:47.620196+00', '', false, '127.0.0.1', 'DELETE /drain/{uuid}', '/drain/defb8fbd-69a4-4007-b9bf-7e2c30fa9775', '63e8525ef29644c69133ed500ddc3cec', 200, '', 'weather', '{"state": "DRAINING", "drain": "defb8fbd-69a4-4007-b9bf-7e2c30fa9775 STOPPING"}', '{"state": "RUNNING", "drain": "defb8fbd-69a4-4007-b9bf-7e2c30fa9775 CANCELLED"}'),
	(9, '2026-11-29 22:02:47.664251+00', '', false, '127.0.0.1', 'POST /drain', '/drain', '25179f030fa94df0bf203e1e6933a01e', 202, '', 'weather', '{"state": "RUNNING", "drain": "defb8fbd-69a4-4007-b9bf-7e2c30fa9775 CANCELLED"}', '{"state": "DRAINING", "drain": "cd35774c-bf3e-4294-b46c-8c87557202d8 STOPPING"}'),
	(10, '2026-11-29 22:02:48.038322+00', '', false, '127.0.0.1', 'POST /containers/{executionContainerId:path}/exit', '/containers/weather-a/exit', '803bcc3b26d3456b9e057ba3fb2d560e', 200, '', 'weather', '{}', '{}'),
	(11, '2026-11-29 22:02:48.089622+00', '', false, '127.0.0.1', 'POST /runs', '/runs', '4c9d14f59fe74111a1a58f6192ec0e6d', 201, '', 'weather', '{"run": "weather-20261129T220247-d7b2b9", "state": "DRAINED", "drain": "cd35774c-bf3e-4294-b46c-8c87557202d8 DRAINED"}', '{"run": "weather-20261129T220248-2e70b3", "state": "CREATED"}'),
	(12, '2026-11-29 22:02:48.831275+00', '', false, '127.0.0.1', 'POST /runs', '/runs', 'ea1125d58c3f4624806dbebf0284ff07', 201, '', 'tolls', '{}', '{"run": "tolls-20261129T220248-8cd84e", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}'),
	(13, '2026-11-29 22:02:49.233611+00', '', false, '127.0.0.1', 'POST /drain', '/drain', 'a364bce9e3c546528ff299de83e8f088', 202, '', 'tolls', '{"state": "RUNNING"}', '{"state": "DRAINING", "drain": "2ad78016-ecb1-450b-89c9-56bacf3522ab STOPPING"}'),
	(14, '2026-11-29 22:02:53.325876+00', '', false, '127.0.0.1', 'POST /runs', '/runs', '2ba0621f56134e238975349b827aba51', 201, '', 'ferries', '{}', '{"run": "ferries-20261129T220253-a1cb2a", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}'),
	(15, '2026-11-29 22:02:53.573868+00', '', false, '127.0.0.1', 'POST /runs/{runId}/stop', '/runs/ferries-20261129T220253-a1cb2a/stop', 'e70d4be53f16418ea9b5ad519ec54369', 202, '', 'ferries', '{"stop requested": "no"}', '{"stop requested": "yes"}'),
	(16, '2026-11-29 22:02:53.656752+00', '', false, '127.0.0.1', 'POST /containers/{executionContainerId:path}/exit', '/containers/ferries-a/exit', '637f6bee99ec44d89596f8db28560e50', 200, '', 'ferries', '{"state": "RUNNING"}', '{"state": "STOPPED"}'),
	(17, '2026-11-29 22:02:53.709748+00', '', false, '127.0.0.1', 'POST /runs', '/runs', '909a958bc5994d918a48afaaa2c097fe', 201, '', 'rail', '{}', '{"run": "rail-20261129T220253-49a003", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}'),
	(18, '2026-11-29 22:02:53.951225+00', '', false, '127.0.0.1', 'POST /runs/{runId}/stop', '/runs/rail-20261129T220253-49a003/stop', '4785f88229b24b73b0f2d98f338ef7cf', 202, '', 'rail', '{"stop requested": "no"}', '{"stop requested": "yes"}'),
	(19, '2026-11-29 22:02:53.989104+00', '', false, '127.0.0.1', 'POST /containers/{executionContainerId:path}/exit', '/containers/rail-a/exit', '55847556f56f411fb571030992fb3a0e', 200, '', 'rail', '{"state": "RUNNING"}', '{"state": "FAILED"}'),
	(20, '2026-11-29 22:02:54.047837+00', '', false, '127.0.0.1', 'POST /jobs/{job}/snapshots/{checkpointId}/restore', '/jobs/rail/snapshots/1700000000001-123456/restore', '1d34708daf86476fa724392cdebfbc01', 200, '', 'rail', '{}', '{"chosen snapshot of Partition 0/hourly": "1700000000001-123456"}'),
	(21, '2026-11-29 22:02:54.113364+00', '', false, '127.0.0.1', 'POST /runs', '/runs', '79b3802651f24fe5a928c2ede482970e', 201, '', 'ferries', '{"run": "ferries-20261129T220253-a1cb2a", "state": "STOPPED", "stop requested": "yes"}', '{"run": "ferries-20261129T220254-8e95b3", "state": "CREATED", "stop requested": "no"}'),
	(22, '2026-11-29 22:02:54.458763+00', '', false, '127.0.0.1', 'POST /gc/run', '/gc/run', '5d5534cfe22d4d6098ae35f563e0d0d0', 202, '', '', '{}', '{}');
INSERT INTO public.baselines VALUES
	('delays', 'log', 'delays-by-carrier', 2),
	('delays', 'log', 'delays-flights', 2),
	('weather', 'log', 'weather-by-carrier', 2),
	('weather', 'log', 'weather-flights', 2),
	('tolls', 'log', 'tolls-by-carrier', 2),
	('tolls', 'log', 'tolls-flights', 2),
	('rail', 'log', 'rail-by-carrier', 2),
	('rail', 'log', 'rail-flights', 2),
	('ferries', 'log', 'ferries-by-carrier', 2),
	('ferries', 'log', 'ferries-flights', 2);
INSERT INTO public.claims VALUES
	('coordinator', 'coordinator.example pid 15160 fc69f3399ddf', 1795989762, '2026-11-29 22:03:04.719506+00');
INSERT INTO public.cleanups VALUES
	('offsets', 'local', 'jobs/delays/Partition_0/route/offsets/7f06daa0-8071-4c4e-9256-e1db9c191034/', 'delays', 'Partition 0', 'route', '2026-11-29 22:02:47.257832+00', '2026-11-29 22:03:44.971297+00', 0, ''),
	('offsets', 'local', 'jobs/delays/Partition_0/hourly/offsets/d7385798-b375-481f-9a74-def2a99c4f24/', 'delays', 'Partition 0', 'hourly', '2026-11-29 22:02:47.279094+00', '2026-11-29 22:03:44.994402+00', 0, ''),
	('offsets', 'local', 'jobs/delays/Partition_1/route/offsets/daba25d1-704b-4482-ba86-73d8392cee22/', 'delays', 'Partition 1', 'route', '2026-11-29 22:02:47.283449+00', '2026-11-29 22:03:44.998943+00', 0, ''),
	('offsets', 'local', 'jobs/delays/Partition_1/hourly/offsets/7d34c781-5a12-4b40-b93f-192a0374bcda/', 'delays', 'Partition 1', 'hourly', '2026-11-29 22:02:47.287959+00', '2026-11-29 22:03:46.145711+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_0/route/offsets/912ef387-934e-45c8-ba92-37afaae2bf87/', 'weather', 'Partition 0', 'route', '2026-11-29 22:02:47.301288+00', '2026-11-29 22:03:47.301288+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_0/route/offsets/708c3c96-eb04-4d38-b52d-16bbcedfb3b5/', 'weather', 'Partition 0', 'route', '2026-11-29 22:02:48.505934+00', '2026-11-29 22:03:48.505934+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_0/hourly/offsets/a38c7ab3-cb0b-4523-848b-6859023dea55/', 'weather', 'Partition 0', 'hourly', '2026-11-29 22:02:48.517658+00', '2026-11-29 22:03:48.517658+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_1/route/offsets/647f814a-e9ba-4b85-9187-f730c3e6577d/', 'weather', 'Partition 1', 'route', '2026-11-29 22:02:49.813853+00', '2026-11-29 22:03:48.492959+00', 0, ''),
	('keep', 'local', 'jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa', 'weather', 'Partition 1', 'route', '2026-11-29 22:02:48.6083+00', '2026-11-29 22:02:54.963295+00', 1, 'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa', 'tolls', 'Partition 0', 'route', '2026-11-29 22:02:49.087984+00', '2026-11-29 22:02:54.976179+00', 1, 'there is no blob jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa', 'tolls', 'Partition 0', 'hourly', '2026-11-29 22:02:49.121302+00', '2026-11-29 22:02:54.981366+00', 1, 'there is no blob jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa', 'weather', 'Partition 1', 'hourly', '2026-11-29 22:02:48.814501+00', '2026-11-29 22:02:54.990366+00', 1, 'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa', 'tolls', 'Partition 1', 'route', '2026-11-29 22:02:49.17533+00', '2026-11-29 22:02:55.043131+00', 1, 'there is no blob jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa', 'delays', 'Partition 0', 'hourly', '2026-11-29 22:02:46.337021+00', '2026-11-29 22:03:03.314878+00', 2, 'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa', 'delays', 'Partition 1', 'route', '2026-11-29 22:02:46.417217+00', '2026-11-29 22:03:03.317341+00', 2, 'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa', 'delays', 'Partition 1', 'hourly', '2026-11-29 22:02:46.462403+00', '2026-11-29 22:03:03.319531+00', 2, 'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa', 'delays', 'Partition 0', 'route', '2026-11-29 22:02:46.254819+00', '2026-11-29 22:03:03.323485+00', 2, 'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa', 'weather', 'Partition 0', 'route', '2026-11-29 22:02:48.255841+00', '2026-11-29 22:03:04.379405+00', 2, 'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa', 'weather', 'Partition 0', 'hourly', '2026-11-29 22:02:48.313181+00', '2026-11-29 22:03:04.387775+00', 2, 'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('offsets', 'local', 'jobs/weather/Partition_1/hourly/offsets/c31f0fd5-e6bb-4e14-9718-d4ae35af8809/', 'weather', 'Partition 1', 'hourly', '2026-11-29 22:02:49.833576+00', '2026-11-29 22:03:49.833576+00', 0, ''),
	('offsets', 'local', 'jobs/tolls/Partition_0/route/offsets/5bea10ee-1d7e-40d1-bc33-1fb1f86fcdbe/', 'tolls', 'Partition 0', 'route', '2026-11-29 22:02:49.847988+00', '2026-11-29 22:03:49.847988+00', 0, ''),
	('offsets', 'local', 'jobs/tolls/Partition_0/hourly/offsets/804ed198-19dd-4c90-8119-58a6a7617e06/', 'tolls', 'Partition 0', 'hourly', '2026-11-29 22:02:49.854635+00', '2026-11-29 22:03:49.854635+00', 0, ''),
	('offsets', 'local', 'jobs/tolls/Partition_1/route/offsets/199a8a7e-27a2-4637-9d7a-66f06376d289/', 'tolls', 'Partition 1', 'route', '2026-11-29 22:02:49.862684+00', '2026-11-29 22:03:49.862684+00', 0, ''),
	('offsets', 'local', 'jobs/tolls/Partition_1/hourly/offsets/2255d740-aa6d-4848-9815-12774880df60/', 'tolls', 'Partition 1', 'hourly', '2026-11-29 22:02:49.885794+00', '2026-11-29 22:03:49.885794+00', 0, ''),
	('keep', 'local', 'jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa', 'tolls', 'Partition 1', 'hourly', '2026-11-29 22:02:49.216474+00', '2026-11-29 22:02:55.026962+00', 1, 'there is no blob jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('offsets', 'local', 'jobs/rail/Partition_0/route/offsets/2dac9c2e-d9d5-4227-af8f-f02588dd6a63/', 'rail', 'Partition 0', 'route', '2026-11-29 22:02:54.364975+00', '2026-11-29 22:03:54.364975+00', 0, ''),
	('offsets', 'local', 'jobs/rail/Partition_0/hourly/offsets/c05d52c1-5c1e-4049-8c82-77433132fc21/', 'rail', 'Partition 0', 'hourly', '2026-11-29 22:02:54.368921+00', '2026-11-29 22:03:54.368921+00', 0, ''),
	('keep', 'local', 'jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa', 'ferries', 'Partition 0', 'route', '2026-11-29 22:02:53.502919+00', '2026-11-29 22:02:59.419567+00', 1, 'there is no blob jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa', 'ferries', 'Partition 0', 'hourly', '2026-11-29 22:02:53.554444+00', '2026-11-29 22:02:59.4256+00', 1, 'there is no blob jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa', 'rail', 'Partition 0', 'route', '2026-11-29 22:02:53.859105+00', '2026-11-29 22:02:59.452892+00', 1, 'there is no blob jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa', 'rail', 'Partition 0', 'hourly', '2026-11-29 22:02:53.927195+00', '2026-11-29 22:02:59.455353+00', 1, 'there is no blob jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO public.condemned VALUES
	('local', 'jobs/weather/Partition_9/hourly/data/1700000000001-00000000000000ff', 6, '2026-11-29 22:02:54.532322+00');
INSERT INTO public.containers VALUES
	('delays-a', 'delays-20261129T220244-0705a2', 'delays', '0', 1, 'delays-a.example', false, 'EXITED', '2026-11-29 22:02:44.579452+00', '2026-11-29 22:02:44.579452+00', '2026-11-29 22:02:45.342173+00', 0, 'told to', '127.0.0.1:9400', 1, '2026-11-29 22:02:44.579452+00', false, '42490d2278646c686f95c0708ed165bacd9e91efa77e89d9a1a41a48c6829e63', '', false),
	('delays-b', 'delays-20261129T220245-221491', 'delays', '0', 1, 'delays-b.example', false, 'REPLACED', '2026-11-29 22:02:45.439382+00', '2026-11-29 22:02:45.439382+00', NULL, NULL, '', '127.0.0.1:9400', 2, '2026-11-29 22:02:45.439382+00', false, 'eb62136c51b8a51ce3517d5324df505b5cb515ccd6dc8f8f74f30d5b530f499f', '', false),
	('delays-d', 'delays-20261129T220245-221491', 'delays', '1', 1, 'delays-d.example', false, 'LIVE', '2026-11-29 22:02:45.478133+00', '2026-11-29 22:02:45.478133+00', NULL, NULL, '', '127.0.0.1:9400', 2, '2026-11-29 22:02:45.478133+00', false, '95728b8eb636c0e17ab232dde281beaa732f44ff40dcfb3b8b5618d5724f3592', '', false),
	('delays-c', 'delays-20261129T220245-221491', 'delays', '0', 2, 'delays-c.example', false, 'LIVE', '2026-11-29 22:02:45.459979+00', '2026-11-29 22:02:45.459979+00', NULL, NULL, '', '127.0.0.1:9400', 3, '2026-11-29 22:02:46.120528+00', false, 'd4a6f01b937864384a7edb2bf7ed220b085d101fe63b9e99b5b69f54b5560d37', '', false),
	('weather-a', 'weather-20261129T220247-d7b2b9', 'weather', '0', 1, 'weather-a.example', false, 'EXITED', '2026-11-29 22:02:47.137666+00', '2026-11-29 22:02:47.137666+00', '2026-11-29 22:02:48.053238+00', 0, 'told to', '127.0.0.1:9400', 1, '2026-11-29 22:02:47.137666+00', false, '4089600097622a3a98fb5e33ddd60c14af868242da192a9591b09d8e49ca2264', '', false),
	('weather-b', 'weather-20261129T220248-2e70b3', 'weather', '0', 1, 'weather-b.example', false, 'LIVE', '2026-11-29 22:02:48.148402+00', '2026-11-29 22:02:48.148402+00', NULL, NULL, '', '127.0.0.1:9400', 1, '2026-11-29 22:02:48.148402+00', false, 'abdc1e5ca60955bdd806f6bebe7a1924797888cf1fb6bff4a7fd5d5d14192c6b', '', false),
	('tolls-a', 'tolls-20261129T220248-8cd84e', 'tolls', '0', 1, 'tolls-a.example', false, 'LIVE', '2026-11-29 22:02:49.024805+00', '2026-11-29 22:02:49.024805+00', NULL, NULL, '', '127.0.0.1:9400', 1, '2026-11-29 22:02:49.024805+00', false, 'efc2555d2081724637377ab3f4af31266cbd14138be524987a02550d347a9702', '', false),
	('ferries-a', 'ferries-20261129T220253-a1cb2a', 'ferries', '0', 1, 'ferries-a.example', false, 'EXITED', '2026-11-29 22:02:53.434261+00', '2026-11-29 22:02:53.434261+00', '2026-11-29 22:02:53.667487+00', 0, 'told to', '127.0.0.1:9400', 1, '2026-11-29 22:02:53.434261+00', false, 'c6f71df1ecbabc5090ce5d1de2f16984aa1be3c8426951a2f3cc23daccc1f80f', '', false),
	('rail-a', 'rail-20261129T220253-49a003', 'rail', '0', 1, 'rail-a.example', false, 'EXITED', '2026-11-29 22:02:53.776235+00', '2026-11-29 22:02:53.776235+00', '2026-11-29 22:02:53.997748+00', 1, 'told to', '127.0.0.1:9400', 1, '2026-11-29 22:02:53.776235+00', false, '3f031c1a2ed85f327c877ff85d19b8f6821023d90acf682d79b28d74be7ad014', '', false);
INSERT INTO public.drain_stages VALUES
	('e51ac52a-9777-483a-9b73-db1cd3328bf9', 'Partition 1', 'route', 1, 2, 40, '[["log", "delays-flights", 1, 400]]', '1700000000004-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:46.804665+00', 'daba25d1-704b-4482-ba86-73d8392cee22', 'null'),
	('e51ac52a-9777-483a-9b73-db1cd3328bf9', 'Partition 1', 'hourly', 1, 2, 40, '[["log", "delays-by-carrier", 1, 400]]', '1700000000004-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:46.852679+00', '7d34c781-5a12-4b40-b93f-192a0374bcda', 'null'),
	('e51ac52a-9777-483a-9b73-db1cd3328bf9', 'Partition 0', 'route', 3, 2, 40, '[["log", "delays-flights", 0, 400]]', '1700000000004-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:46.905461+00', '7f06daa0-8071-4c4e-9256-e1db9c191034', 'null'),
	('e51ac52a-9777-483a-9b73-db1cd3328bf9', 'Partition 0', 'hourly', 3, 2, 40, '[["log", "delays-by-carrier", 0, 400]]', '1700000000004-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:46.928824+00', 'd7385798-b375-481f-9a74-def2a99c4f24', 'null'),
	('defb8fbd-69a4-4007-b9bf-7e2c30fa9775', 'Partition 0', 'route', 0, NULL, NULL, '[]', NULL, NULL, false, NULL, '[]', '', NULL, NULL, 'null'),
	('defb8fbd-69a4-4007-b9bf-7e2c30fa9775', 'Partition 0', 'hourly', 0, NULL, NULL, '[]', NULL, NULL, false, NULL, '[]', '', NULL, NULL, 'null'),
	('defb8fbd-69a4-4007-b9bf-7e2c30fa9775', 'Partition 1', 'route', 0, NULL, NULL, '[]', NULL, NULL, false, NULL, '[]', '', NULL, NULL, 'null'),
	('defb8fbd-69a4-4007-b9bf-7e2c30fa9775', 'Partition 1', 'hourly', 0, NULL, NULL, '[]', NULL, NULL, false, NULL, '[]', '', NULL, NULL, 'null'),
	('cd35774c-bf3e-4294-b46c-8c87557202d8', 'Partition 0', 'route', 4, 1, 20, '[["log", "weather-flights", 0, 200]]', '1700000000002-123456', '1700000000002-123456', false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:47.888382+00', '912ef387-934e-45c8-ba92-37afaae2bf87', 'null'),
	('cd35774c-bf3e-4294-b46c-8c87557202d8', 'Partition 1', 'route', 4, 1, 20, '[["log", "weather-flights", 1, 200]]', '1700000000002-123456', '1700000000002-123456', false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:47.904926+00', '0b103ce1-578f-4faf-92ec-30fa766ccf20', 'null'),
	('cd35774c-bf3e-4294-b46c-8c87557202d8', 'Partition 0', 'hourly', 4, 1, 20, '[["log", "weather-by-carrier", 0, 200]]', '1700000000002-123456', '1700000000002-123456', false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:47.91982+00', '97d59a1e-f38d-4c4a-a00b-30d03ce5739d', 'null'),
	('cd35774c-bf3e-4294-b46c-8c87557202d8', 'Partition 1', 'hourly', 4, 1, 20, '[["log", "weather-by-carrier", 1, 200]]', '1700000000002-123456', '1700000000002-123456', false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:47.942877+00', '38ac3c55-5080-4ff0-8660-984b2d7f44fb', 'null'),
	('2ad78016-ecb1-450b-89c9-56bacf3522ab', 'Partition 1', 'route', 1, 1, 20, '[["log", "tolls-flights", 1, 200]]', '1700000000002-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:49.286177+00', '199a8a7e-27a2-4637-9d7a-66f06376d289', 'null'),
	('2ad78016-ecb1-450b-89c9-56bacf3522ab', 'Partition 1', 'hourly', 1, 1, 20, '[["log", "tolls-by-carrier", 1, 200]]', '1700000000002-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:49.322881+00', '2255d740-aa6d-4848-9815-12774880df60', 'null'),
	('2ad78016-ecb1-450b-89c9-56bacf3522ab', 'Partition 0', 'route', 3, 1, 20, '[["log", "tolls-flights", 0, 200]]', '1700000000002-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:49.344027+00', '5bea10ee-1d7e-40d1-bc33-1fb1f86fcdbe', 'null'),
	('2ad78016-ecb1-450b-89c9-56bacf3522ab', 'Partition 0', 'hourly', 3, 1, 20, '[["log", "tolls-by-carrier", 0, 200]]', '1700000000002-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-29 22:02:49.35476+00', '804ed198-19dd-4c90-8119-58a6a7617e06', 'null');
INSERT INTO public.drains VALUES
	('e51ac52a-9777-483a-9b73-db1cd3328bf9', 'delays-20261129T220245-221491', 'delays', 1, 'DEFAULT', 'FLUSHING', 3, '2026-11-29 22:02:46.678595+00', 500000000, 1000000000, '{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}', '[["log", "delays-by-carrier", 0, 0], ["log", "delays-by-carrier", 1, 0]]', '[]', '[]', '2026-11-29 22:02:46.678595+00', '2026-11-29 22:02:46.852679+00', NULL, NULL, ''),
	('defb8fbd-69a4-4007-b9bf-7e2c30fa9775', 'weather-20261129T220247-d7b2b9', 'weather', 1, 'DEFAULT', 'CANCELLED', 1, '2026-11-29 22:02:47.57882+00', 500000000, 1000000000, '{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}', '[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0]]', '[]', '[]', '2026-11-29 22:02:47.57882+00', NULL, NULL, '2026-11-29 22:02:47.628012+00', 'cancelled'),
	('cd35774c-bf3e-4294-b46c-8c87557202d8', 'weather-20261129T220247-d7b2b9', 'weather', 2, 'DEFAULT', 'DRAINED', 1, '2026-11-29 22:02:47.689183+00', 500000000, 1000000000, '{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}', '[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0]]', '[]', '[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0], ["log", "weather-flights", 0, 200], ["log", "weather-flights", 1, 200]]', '2026-11-29 22:02:47.689183+00', '2026-11-29 22:02:47.795555+00', '2026-11-29 22:02:47.856557+00', '2026-11-29 22:02:47.942877+00', ''),
	('2ad78016-ecb1-450b-89c9-56bacf3522ab', 'tolls-20261129T220248-8cd84e', 'tolls', 1, 'DEFAULT', 'FAILED', 1, '2026-11-29 22:02:49.247659+00', 1.5, 3, '{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}', '[["log", "tolls-by-carrier", 0, 0], ["log", "tolls-by-carrier", 1, 0]]', '[]', '[]', '2026-11-29 22:02:49.247659+00', '2026-11-29 22:02:49.322881+00', NULL, '2026-11-29 22:02:53.138185+00', 'its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work');
INSERT INTO public.holds VALUES
	('delays', 'Partition 0', 'delays-20261129T220245-221491', 2, 'delays-c', false, '2026-11-29 22:02:46.172143+00', 3),
	('delays', 'Partition 1', 'delays-20261129T220245-221491', 2, 'delays-d', false, '2026-11-29 22:02:46.354677+00', 3),
	('weather', 'Partition 0', 'weather-20261129T220248-2e70b3', 2, 'weather-b', false, '2026-11-29 22:02:48.16968+00', 1),
	('weather', 'Partition 1', 'weather-20261129T220248-2e70b3', 2, 'weather-b', false, '2026-11-29 22:02:48.381855+00', 1),
	('tolls', 'Partition 0', 'tolls-20261129T220248-8cd84e', 1, 'tolls-a', false, '2026-11-29 22:02:49.042822+00', 1),
	('tolls', 'Partition 1', 'tolls-20261129T220248-8cd84e', 1, 'tolls-a', false, '2026-11-29 22:02:49.130179+00', 1),
	('ferries', 'Partition 0', 'ferries-20261129T220253-a1cb2a', 1, 'ferries-a', true, '2026-11-29 22:02:53.451909+00', 1),
	('rail', 'Partition 0', 'rail-20261129T220253-49a003', 1, 'rail-a', true, '2026-11-29 22:02:53.795064+00', 1);
INSERT INTO public.issued VALUES
	('coordinator', 'b121cc5ccabe4e809f38e3f10d4dea9e', '99540dec88b14f69a1e63261a802adfb', 101, 10, 0, 10000, NULL);
INSERT INTO public.job_models VALUES
	('delays', 1, 'delays-20261129T220244-0705a2', '{"config":{"job.container.count":"1","job.name":"delays","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', 'f82e84b3caa81a69baef5098a77581379cafe2897f8d2d66ebf91aa30b7ccae5', '2026-11-29 22:02:44.383578+00', 'run delays-20261129T220244-0705a2 was deployed', 'operator@example.com'),
	('delays', 2, 'delays-20261129T220245-221491', '{"config":{"job.container.count":"2","job.name":"delays","standby.replicas":"1","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"}}},"1":{"processor-id":"1","tasks":{"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', '511448eb15b8506ce9618907b1e8d9f171731cc8160cf5f4ec45a632ad7b8c79', '2026-11-29 22:02:45.240743+00', 'run delays-20261129T220245-221491 was deployed', 'operator@example.com'),
	('delays', 3, 'delays-20261129T220245-221491', '{"config":{"job.container.count":"2","job.name":"delays","standby.replicas":"1","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1},{"system":"log","partition":2,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"}}},"1":{"processor-id":"1","tasks":{"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1},{"system":"log","partition":3,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', 'ed95ce8764130b1e27b1a23ec3b09deafc527a18d7e193094775e86ce1cb9aac', '2026-11-29 22:02:45.969589+00', 'log.delays-flights grew from 2 to 4 partitions', 'partition monitor'),
	('weather', 1, 'weather-20261129T220247-d7b2b9', '{"config":{"job.container.count":"1","job.name":"weather","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"weather-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"weather-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"weather-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"weather-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', 'e0e0faccbd6fd3cf8e346eb91d7c42b929b78c26627e1fc11aa93b19b16da2a9', '2026-11-29 22:02:47.099478+00', 'run weather-20261129T220247-d7b2b9 was deployed', 'operator@example.com'),
	('tolls', 1, 'tolls-20261129T220248-8cd84e', '{"config":{"job.container.count":"1","job.name":"tolls","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"tolls-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"tolls-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"tolls-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"tolls-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', '61a79c873084b07ce7e2a9b4eac2de155fd59f271f0b6d77ee202c4e95dc5922', '2026-11-29 22:02:48.994095+00', 'run tolls-20261129T220248-8cd84e was deployed', 'operator@example.com'),
	('ferries', 1, 'ferries-20261129T220253-a1cb2a', '{"config":{"job.container.count":"1","job.name":"ferries","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"ferries-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"ferries-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"ferries-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"ferries-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', '33477fcf9ddf37d5d4839a965e5173dfc20249aeff69d23836e89f3812e76716', '2026-11-29 22:02:53.404138+00', 'run ferries-20261129T220253-a1cb2a was deployed', 'operator@example.com'),
	('rail', 1, 'rail-20261129T220253-49a003', '{"config":{"job.container.count":"1","job.name":"rail","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"rail-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"rail-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"rail-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"rail-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', '87ba2f1918bf7f557b7b89677d253a8dedadf054a160b8fc2761eae5dd73688e', '2026-11-29 22:02:53.756499+00', 'run rail-20261129T220253-49a003 was deployed', 'operator@example.com');
INSERT INTO public.jobs VALUES
	('delays', 'delays-20261129T220245-221491', 'GroupByPartition'),
	('weather', 'weather-20261129T220248-2e70b3', 'GroupByPartition'),
	('tolls', 'tolls-20261129T220248-8cd84e', 'GroupByPartition'),
	('rail', 'rail-20261129T220253-49a003', 'GroupByPartition'),
	('ferries', 'ferries-20261129T220254-8e95b3', 'GroupByPartition');
INSERT INTO public.lease_bounds VALUES
	('coordinator', 40, 5, 160, 120, 0);
INSERT INTO public.localities VALUES
	('delays', '0', 'delays-a.example'),
	('weather', '0', 'weather-a.example'),
	('ferries', '0', 'ferries-a.example');
INSERT INTO public.notices VALUES
	('delays-20261129T220244-0705a2', 1, 'STOP', '2026-11-29 22:02:45.240743+00', '{"reason": "replaced by run delays-20261129T220245-221491"}'),
	('delays-20261129T220244-0705a2', 2, 'ENDED', '2026-11-29 22:02:45.350073+00', '{"state": "STOPPED", "reason": "replaced by run delays-20261129T220245-221491"}'),
	('delays-20261129T220245-221491', 1, 'MODEL', '2026-11-29 22:02:45.969589+00', '{"version": 3, "containers": 2, "why": "log.delays-flights grew from 2 to 4 partitions"}'),
	('delays-20261129T220245-221491', 2, 'DRAIN', '2026-11-29 22:02:46.678595+00', '{"uuid": "e51ac52a-9777-483a-9b73-db1cd3328bf9", "phase": "REQUESTED"}'),
	('delays-20261129T220245-221491', 3, 'DRAIN', '2026-11-29 22:02:46.678595+00', '{"uuid": "e51ac52a-9777-483a-9b73-db1cd3328bf9", "phase": "STOPPING"}'),
	('delays-20261129T220245-221491', 4, 'DRAIN', '2026-11-29 22:02:46.852679+00', '{"uuid": "e51ac52a-9777-483a-9b73-db1cd3328bf9", "phase": "FLUSHING", "flushed": []}'),
	('weather-20261129T220247-d7b2b9', 1, 'DRAIN', '2026-11-29 22:02:47.57882+00', '{"uuid": "defb8fbd-69a4-4007-b9bf-7e2c30fa9775", "phase": "REQUESTED"}'),
	('weather-20261129T220247-d7b2b9', 2, 'DRAIN', '2026-11-29 22:02:47.57882+00', '{"uuid": "defb8fbd-69a4-4007-b9bf-7e2c30fa9775", "phase": "STOPPING"}'),
	('weather-20261129T220247-d7b2b9', 3, 'DRAIN', '2026-11-29 22:02:47.628012+00', '{"uuid": "defb8fbd-69a4-4007-b9bf-7e2c30fa9775", "phase": "CANCELLED", "reason": "cancelled"}'),
	('weather-20261129T220247-d7b2b9', 4, 'DRAIN', '2026-11-29 22:02:47.689183+00', '{"uuid": "cd35774c-bf3e-4294-b46c-8c87557202d8", "phase": "REQUESTED"}'),
	('weather-20261129T220247-d7b2b9', 5, 'DRAIN', '2026-11-29 22:02:47.689183+00', '{"uuid": "cd35774c-bf3e-4294-b46c-8c87557202d8", "phase": "STOPPING"}'),
	('weather-20261129T220247-d7b2b9', 6, 'DRAIN', '2026-11-29 22:02:47.795555+00', '{"uuid": "cd35774c-bf3e-4294-b46c-8c87557202d8", "phase": "FLUSHING", "flushed": []}'),
	('weather-20261129T220247-d7b2b9', 7, 'DRAIN', '2026-11-29 22:02:47.835659+00', '{"uuid": "cd35774c-bf3e-4294-b46c-8c87557202d8", "phase": "FLUSHING", "flushed": ["route"]}'),
	('weather-20261129T220247-d7b2b9', 8, 'DRAIN', '2026-11-29 22:02:47.856557+00', '{"uuid": "cd35774c-bf3e-4294-b46c-8c87557202d8", "phase": "COMMITTING"}'),
	('weather-20261129T220247-d7b2b9', 9, 'DRAIN', '2026-11-29 22:02:47.942877+00', '{"uuid": "cd35774c-bf3e-4294-b46c-8c87557202d8", "phase": "DRAINED"}'),
	('weather-20261129T220247-d7b2b9', 10, 'ENDED', '2026-11-29 22:02:47.942877+00', '{"state": "DRAINED", "reason": "drained: cd35774c-bf3e-4294-b46c-8c87557202d8"}'),
	('tolls-20261129T220248-8cd84e', 1, 'DRAIN', '2026-11-29 22:02:49.247659+00', '{"uuid": "2ad78016-ecb1-450b-89c9-56bacf3522ab", "phase": "REQUESTED"}'),
	('tolls-20261129T220248-8cd84e', 2, 'DRAIN', '2026-11-29 22:02:49.247659+00', '{"uuid": "2ad78016-ecb1-450b-89c9-56bacf3522ab", "phase": "STOPPING"}'),
	('tolls-20261129T220248-8cd84e', 3, 'DRAIN', '2026-11-29 22:02:49.322881+00', '{"uuid": "2ad78016-ecb1-450b-89c9-56bacf3522ab", "phase": "FLUSHING", "flushed": []}'),
	('tolls-20261129T220248-8cd84e', 4, 'DRAIN', '2026-11-29 22:02:53.138185+00', '{"uuid": "2ad78016-ecb1-450b-89c9-56bacf3522ab", "phase": "FAILED", "reason": "its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work"}'),
	('tolls-20261129T220248-8cd84e', 5, 'STOP', '2026-11-29 22:02:53.138185+00', '{"reason": "the drain 2ad78016-ecb1-450b-89c9-56bacf3522ab failed: its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work"}'),
	('ferries-20261129T220253-a1cb2a', 1, 'STOP', '2026-11-29 22:02:53.583369+00', '{"reason": "the season is over"}'),
	('ferries-20261129T220253-a1cb2a', 2, 'ENDED', '2026-11-29 22:02:53.671191+00', '{"state": "STOPPED", "reason": "the season is over"}'),
	('rail-20261129T220253-49a003', 1, 'STOP', '2026-11-29 22:02:53.95494+00', '{"reason": "derailed"}'),
	('rail-20261129T220253-49a003', 2, 'ENDED', '2026-11-29 22:02:53.999779+00', '{"state": "FAILED", "reason": "derailed"}');
INSERT INTO public.pins VALUES
	('before-the-audit', 'delays', 'Partition 0', 'hourly', '1700000000004-123456', 'the auditors', '2026-11-29 22:02:46.486885+00', '2058-08-07 23:49:26.486885+00'),
	('drain-e51ac52a-9777-483a-9b73-db1cd3328bf9', 'delays', 'Partition 0', 'route', '1700000000004-123456', 'to roll back to if the drain fails', '2026-11-29 22:02:46.774648+00', NULL),
	('drain-e51ac52a-9777-483a-9b73-db1cd3328bf9', 'delays', 'Partition 1', 'route', '1700000000004-123456', 'to roll back to if the drain fails', '2026-11-29 22:02:46.804665+00', NULL),
	('drain-e51ac52a-9777-483a-9b73-db1cd3328bf9', 'delays', 'Partition 0', 'hourly', '1700000000004-123456', 'to roll back to if the drain fails', '2026-11-29 22:02:46.831138+00', NULL),
	('drain-e51ac52a-9777-483a-9b73-db1cd3328bf9', 'delays', 'Partition 1', 'hourly', '1700000000004-123456', 'to roll back to if the drain fails', '2026-11-29 22:02:46.852679+00', NULL),
	('drain-2ad78016-ecb1-450b-89c9-56bacf3522ab', 'tolls', 'Partition 0', 'hourly', '1700000000002-123456', 'to roll back to if the drain fails', '2026-11-29 22:02:49.306159+00', '2026-12-29 22:02:53.138185+00'),
	('drain-2ad78016-ecb1-450b-89c9-56bacf3522ab', 'tolls', 'Partition 0', 'route', '1700000000002-123456', 'to roll back to if the drain fails', '2026-11-29 22:02:49.271976+00', '2026-12-29 22:02:53.138185+00'),
	('drain-2ad78016-ecb1-450b-89c9-56bacf3522ab', 'tolls', 'Partition 1', 'hourly', '1700000000002-123456', 'to roll back to if the drain fails', '2026-11-29 22:02:49.322881+00', '2026-12-29 22:02:53.138185+00'),
	('drain-2ad78016-ecb1-450b-89c9-56bacf3522ab', 'tolls', 'Partition 1', 'route', '1700000000002-123456', 'to roll back to if the drain fails', '2026-11-29 22:02:49.286177+00', '2026-12-29 22:02:53.138185+00');
INSERT INTO public.registries VALUES
	('local', '440e76164aab473d9fe43241a6b5cf90');
INSERT INTO public.runs VALUES
	('weather-20261129T220247-d7b2b9', 'weather', 'DRAINED', 'weather-20261129T220247-d7b2b9', '{"job": "weather", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "weather-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "weather-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "weather-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "weather-flights", "partitions": 2, "broadcast": false, "identity": "987b543e-f918-400a-9c89-8c8d7bccdcf2"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "weather-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "weather-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-29 22:02:47.099478+00', '2026-11-29 22:02:47.137666+00', NULL, '2026-11-29 22:02:47.942877+00', 'drained: cd35774c-bf3e-4294-b46c-8c87557202d8', false, NULL, NULL),
	('delays-20261129T220245-221491', 'delays', 'DRAINING', 'delays-20261129T220244-0705a2', '{"job": "delays", "containers": 2, "inputs": [{"name": "flights", "system": "log", "stream": "delays-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "delays-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "delays-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich", "standby.replicas": "1"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "delays-flights", "partitions": 4, "broadcast": false, "identity": "8088e544-c5d4-4088-b7be-d3c40371e0bd"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "delays-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "delays-delays", "partitions": 1, "broadcast": false, "identity": null}]', 3, '2026-11-29 22:02:45.240743+00', '2026-11-29 22:02:45.439382+00', NULL, NULL, '', false, NULL, NULL),
	('delays-20261129T220244-0705a2', 'delays', 'STOPPED', 'delays-20261129T220244-0705a2', '{"job": "delays", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "delays-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "delays-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "delays-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "delays-flights", "partitions": 2, "broadcast": false, "identity": "8088e544-c5d4-4088-b7be-d3c40371e0bd"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "delays-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "delays-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-29 22:02:44.383578+00', '2026-11-29 22:02:44.579452+00', '2026-11-29 22:02:45.240743+00', '2026-11-29 22:02:45.350073+00', 'replaced by run delays-20261129T220245-221491', false, NULL, NULL),
	('weather-20261129T220248-2e70b3', 'weather', 'RUNNING', 'weather-20261129T220248-2e70b3', '{"job": "weather", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "weather-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "weather-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "weather-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "drained", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "weather-flights", "partitions": 2, "broadcast": false, "identity": "987b543e-f918-400a-9c89-8c8d7bccdcf2"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "weather-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "weather-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-29 22:02:48.106723+00', '2026-11-29 22:02:48.148402+00', NULL, NULL, '', false, NULL, NULL),
	('tolls-20261129T220248-8cd84e', 'tolls', 'RUNNING', 'tolls-20261129T220248-8cd84e', '{"job": "tolls", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "tolls-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "tolls-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "tolls-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "tolls-flights", "partitions": 2, "broadcast": false, "identity": "63a9885d-42aa-460d-b81f-299407f2ea1b"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "tolls-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "tolls-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-29 22:02:48.994095+00', '2026-11-29 22:02:49.024805+00', '2026-11-29 22:02:53.138185+00', NULL, 'the drain 2ad78016-ecb1-450b-89c9-56bacf3522ab failed: its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work', false, NULL, NULL),
	('rail-20261129T220253-49a003', 'rail', 'FAILED', 'rail-20261129T220253-49a003', '{"job": "rail", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "rail-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "rail-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "rail-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "rail-flights", "partitions": 2, "broadcast": false, "identity": "df58089c-f6ef-478f-9809-f78c98b3600f"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "rail-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "rail-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-29 22:02:53.756499+00', '2026-11-29 22:02:53.776235+00', '2026-11-29 22:02:53.95494+00', '2026-11-29 22:02:53.999779+00', 'derailed', true, NULL, NULL),
	('ferries-20261129T220253-a1cb2a', 'ferries', 'STOPPED', 'ferries-20261129T220253-a1cb2a', '{"job": "ferries", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "ferries-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "ferries-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "ferries-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "ferries-flights", "partitions": 2, "broadcast": false, "identity": "1585cee7-f2cf-4384-b85a-90a6cb5b191a"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "ferries-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "ferries-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-29 22:02:53.404138+00', '2026-11-29 22:02:53.434261+00', '2026-11-29 22:02:53.583369+00', '2026-11-29 22:02:53.671191+00', 'the season is over', false, NULL, NULL),
	('ferries-20261129T220254-8e95b3', 'ferries', 'CREATED', 'ferries-20261129T220254-8e95b3', '{"job": "ferries", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "ferries-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "ferries-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "ferries-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "earliest", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "ferries-flights", "partitions": 2, "broadcast": false, "identity": "1585cee7-f2cf-4384-b85a-90a6cb5b191a"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "ferries-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "ferries-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-29 22:02:54.135547+00', NULL, NULL, NULL, '', false, NULL, NULL);
INSERT INTO public.snapshots VALUES
	('delays', 1, 'Partition 0', 'route', '1700000000001-123456', '7f06daa0-8071-4c4e-9256-e1db9c191034', 10, 1, 'delays-20261129T220244-0705a2', '2026-11-29 22:02:44.745568+00', '[["log", "delays-flights", 0, 100]]', '{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 2, 'Partition 0', 'route', '1700000000002-123456', '7f06daa0-8071-4c4e-9256-e1db9c191034', 20, 1, 'delays-20261129T220244-0705a2', '2026-11-29 22:02:44.767676+00', '[["log", "delays-flights", 0, 200]]', '{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 3, 'Partition 0', 'hourly', '1700000000001-123456', 'd7385798-b375-481f-9a74-def2a99c4f24', 10, 1, 'delays-20261129T220244-0705a2', '2026-11-29 22:02:44.797926+00', '[["log", "delays-by-carrier", 0, 100]]', '{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 4, 'Partition 0', 'hourly', '1700000000002-123456', 'd7385798-b375-481f-9a74-def2a99c4f24', 20, 1, 'delays-20261129T220244-0705a2', '2026-11-29 22:02:44.818744+00', '[["log", "delays-by-carrier", 0, 200]]', '{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 5, 'Partition 1', 'route', '1700000000001-123456', 'daba25d1-704b-4482-ba86-73d8392cee22', 10, 1, 'delays-20261129T220244-0705a2', '2026-11-29 22:02:44.928517+00', '[["log", "delays-flights", 1, 100]]', '{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 6, 'Partition 1', 'route', '1700000000002-123456', 'daba25d1-704b-4482-ba86-73d8392cee22', 20, 1, 'delays-20261129T220244-0705a2', '2026-11-29 22:02:45.01231+00', '[["log", "delays-flights", 1, 200]]', '{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 7, 'Partition 1', 'hourly', '1700000000001-123456', '7d34c781-5a12-4b40-b93f-192a0374bcda', 10, 1, 'delays-20261129T220244-0705a2', '2026-11-29 22:02:45.058394+00', '[["log", "delays-by-carrier", 1, 100]]', '{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 8, 'Partition 1', 'hourly', '1700000000002-123456', '7d34c781-5a12-4b40-b93f-192a0374bcda', 20, 1, 'delays-20261129T220244-0705a2', '2026-11-29 22:02:45.106571+00', '[["log", "delays-by-carrier", 1, 200]]', '{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 9, 'Partition 0', 'route', '1700000000003-123456', '7f06daa0-8071-4c4e-9256-e1db9c191034', 30, 2, 'delays-20261129T220245-221491', '2026-11-29 22:02:46.224696+00', '[["log", "delays-flights", 0, 300]]', '{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 10, 'Partition 0', 'route', '1700000000004-123456', '7f06daa0-8071-4c4e-9256-e1db9c191034', 40, 2, 'delays-20261129T220245-221491', '2026-11-29 22:02:46.254819+00', '[["log", "delays-flights", 0, 400]]', '{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 11, 'Partition 0', 'hourly', '1700000000003-123456', 'd7385798-b375-481f-9a74-def2a99c4f24', 30, 2, 'delays-20261129T220245-221491', '2026-11-29 22:02:46.293677+00', '[["log", "delays-by-carrier", 0, 300]]', '{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 12, 'Partition 0', 'hourly', '1700000000004-123456', 'd7385798-b375-481f-9a74-def2a99c4f24', 40, 2, 'delays-20261129T220245-221491', '2026-11-29 22:02:46.337021+00', '[["log", "delays-by-carrier", 0, 400]]', '{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 13, 'Partition 1', 'route', '1700000000003-123456', 'daba25d1-704b-4482-ba86-73d8392cee22', 30, 2, 'delays-20261129T220245-221491', '2026-11-29 22:02:46.388182+00', '[["log", "delays-flights", 1, 300]]', '{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 14, 'Partition 1', 'route', '1700000000004-123456', 'daba25d1-704b-4482-ba86-73d8392cee22', 40, 2, 'delays-20261129T220245-221491', '2026-11-29 22:02:46.417217+00', '[["log", "delays-flights", 1, 400]]', '{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 15, 'Partition 1', 'hourly', '1700000000003-123456', '7d34c781-5a12-4b40-b93f-192a0374bcda', 30, 2, 'delays-20261129T220245-221491', '2026-11-29 22:02:46.437507+00', '[["log", "delays-by-carrier", 1, 300]]', '{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 16, 'Partition 1', 'hourly', '1700000000004-123456', '7d34c781-5a12-4b40-b93f-192a0374bcda', 40, 2, 'delays-20261129T220245-221491', '2026-11-29 22:02:46.462403+00', '[["log", "delays-by-carrier", 1, 400]]', '{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 1, 'Partition 0', 'route', '1700000000001-123456', '912ef387-934e-45c8-ba92-37afaae2bf87', 10, 1, 'weather-20261129T220247-d7b2b9', '2026-11-29 22:02:47.19755+00', '[["log", "weather-flights", 0, 100]]', '{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 2, 'Partition 0', 'route', '1700000000002-123456', '912ef387-934e-45c8-ba92-37afaae2bf87', 20, 1, 'weather-20261129T220247-d7b2b9', '2026-11-29 22:02:47.238519+00', '[["log", "weather-flights", 0, 200]]', '{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 3, 'Partition 0', 'hourly', '1700000000001-123456', '97d59a1e-f38d-4c4a-a00b-30d03ce5739d', 10, 1, 'weather-20261129T220247-d7b2b9', '2026-11-29 22:02:47.347877+00', '[["log", "weather-by-carrier", 0, 100]]', '{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 4, 'Partition 0', 'hourly', '1700000000002-123456', '97d59a1e-f38d-4c4a-a00b-30d03ce5739d', 20, 1, 'weather-20261129T220247-d7b2b9', '2026-11-29 22:02:47.387976+00', '[["log", "weather-by-carrier", 0, 200]]', '{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 5, 'Partition 1', 'route', '1700000000001-123456', '0b103ce1-578f-4faf-92ec-30fa766ccf20', 10, 1, 'weather-20261129T220247-d7b2b9', '2026-11-29 22:02:47.445573+00', '[["log", "weather-flights", 1, 100]]', '{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 6, 'Partition 1', 'route', '1700000000002-123456', '0b103ce1-578f-4faf-92ec-30fa766ccf20', 20, 1, 'weather-20261129T220247-d7b2b9', '2026-11-29 22:02:47.471923+00', '[["log", "weather-flights", 1, 200]]', '{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 7, 'Partition 1', 'hourly', '1700000000001-123456', '38ac3c55-5080-4ff0-8660-984b2d7f44fb', 10, 1, 'weather-20261129T220247-d7b2b9', '2026-11-29 22:02:47.499282+00', '[["log", "weather-by-carrier", 1, 100]]', '{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 8, 'Partition 1', 'hourly', '1700000000002-123456', '38ac3c55-5080-4ff0-8660-984b2d7f44fb', 20, 1, 'weather-20261129T220247-d7b2b9', '2026-11-29 22:02:47.5274+00', '[["log", "weather-by-carrier", 1, 200]]', '{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 9, 'Partition 0', 'route', '1700000000003-123456', '708c3c96-eb04-4d38-b52d-16bbcedfb3b5', 30, 2, 'weather-20261129T220248-2e70b3', '2026-11-29 22:02:48.221827+00', '[["log", "weather-flights", 0, 300]]', '{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 10, 'Partition 0', 'route', '1700000000004-123456', '708c3c96-eb04-4d38-b52d-16bbcedfb3b5', 40, 2, 'weather-20261129T220248-2e70b3', '2026-11-29 22:02:48.255841+00', '[["log", "weather-flights", 0, 400]]', '{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 11, 'Partition 0', 'hourly', '1700000000003-123456', 'a38c7ab3-cb0b-4523-848b-6859023dea55', 30, 2, 'weather-20261129T220248-2e70b3', '2026-11-29 22:02:48.281971+00', '[["log", "weather-by-carrier", 0, 300]]', '{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 12, 'Partition 0', 'hourly', '1700000000004-123456', 'a38c7ab3-cb0b-4523-848b-6859023dea55', 40, 2, 'weather-20261129T220248-2e70b3', '2026-11-29 22:02:48.313181+00', '[["log", "weather-by-carrier", 0, 400]]', '{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 13, 'Partition 1', 'route', '1700000000003-123456', '647f814a-e9ba-4b85-9187-f730c3e6577d', 30, 2, 'weather-20261129T220248-2e70b3', '2026-11-29 22:02:48.42574+00', '[["log", "weather-flights", 1, 300]]', '{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 14, 'Partition 1', 'route', '1700000000004-123456', '647f814a-e9ba-4b85-9187-f730c3e6577d', 40, 2, 'weather-20261129T220248-2e70b3', '2026-11-29 22:02:48.6083+00', '[["log", "weather-flights", 1, 400]]', '{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 15, 'Partition 1', 'hourly', '1700000000003-123456', 'c31f0fd5-e6bb-4e14-9718-d4ae35af8809', 30, 2, 'weather-20261129T220248-2e70b3', '2026-11-29 22:02:48.713982+00', '[["log", "weather-by-carrier", 1, 300]]', '{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 16, 'Partition 1', 'hourly', '1700000000004-123456', 'c31f0fd5-e6bb-4e14-9718-d4ae35af8809', 40, 2, 'weather-20261129T220248-2e70b3', '2026-11-29 22:02:48.814501+00', '[["log", "weather-by-carrier", 1, 400]]', '{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 1, 'Partition 0', 'route', '1700000000001-123456', '5bea10ee-1d7e-40d1-bc33-1fb1f86fcdbe', 10, 1, 'tolls-20261129T220248-8cd84e', '2026-11-29 22:02:49.071755+00', '[["log", "tolls-flights", 0, 100]]', '{"local": {"index": "jobs/tolls/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 2, 'Partition 0', 'route', '1700000000002-123456', '5bea10ee-1d7e-40d1-bc33-1fb1f86fcdbe', 20, 1, 'tolls-20261129T220248-8cd84e', '2026-11-29 22:02:49.087984+00', '[["log", "tolls-flights", 0, 200]]', '{"local": {"index": "jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 3, 'Partition 0', 'hourly', '1700000000001-123456', '804ed198-19dd-4c90-8119-58a6a7617e06', 10, 1, 'tolls-20261129T220248-8cd84e', '2026-11-29 22:02:49.10381+00', '[["log", "tolls-by-carrier", 0, 100]]', '{"local": {"index": "jobs/tolls/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 4, 'Partition 0', 'hourly', '1700000000002-123456', '804ed198-19dd-4c90-8119-58a6a7617e06', 20, 1, 'tolls-20261129T220248-8cd84e', '2026-11-29 22:02:49.121302+00', '[["log", "tolls-by-carrier", 0, 200]]', '{"local": {"index": "jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 5, 'Partition 1', 'route', '1700000000001-123456', '199a8a7e-27a2-4637-9d7a-66f06376d289', 10, 1, 'tolls-20261129T220248-8cd84e', '2026-11-29 22:02:49.145767+00', '[["log", "tolls-flights", 1, 100]]', '{"local": {"index": "jobs/tolls/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 6, 'Partition 1', 'route', '1700000000002-123456', '199a8a7e-27a2-4637-9d7a-66f06376d289', 20, 1, 'tolls-20261129T220248-8cd84e', '2026-11-29 22:02:49.17533+00', '[["log", "tolls-flights", 1, 200]]', '{"local": {"index": "jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 7, 'Partition 1', 'hourly', '1700000000001-123456', '2255d740-aa6d-4848-9815-12774880df60', 10, 1, 'tolls-20261129T220248-8cd84e', '2026-11-29 22:02:49.194961+00', '[["log", "tolls-by-carrier", 1, 100]]', '{"local": {"index": "jobs/tolls/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 8, 'Partition 1', 'hourly', '1700000000002-123456', '2255d740-aa6d-4848-9815-12774880df60', 20, 1, 'tolls-20261129T220248-8cd84e', '2026-11-29 22:02:49.216474+00', '[["log", "tolls-by-carrier", 1, 200]]', '{"local": {"index": "jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('ferries', 1, 'Partition 0', 'route', '1700000000001-123456', 'f5ce14d0-48af-4ad4-aca8-eecce95dfc78', 10, 1, 'ferries-20261129T220253-a1cb2a', '2026-11-29 22:02:53.474732+00', '[["log", "ferries-flights", 0, 100]]', '{"local": {"index": "jobs/ferries/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('ferries', 2, 'Partition 0', 'route', '1700000000002-123456', 'f5ce14d0-48af-4ad4-aca8-eecce95dfc78', 20, 1, 'ferries-20261129T220253-a1cb2a', '2026-11-29 22:02:53.502919+00', '[["log", "ferries-flights", 0, 200]]', '{"local": {"index": "jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('ferries', 3, 'Partition 0', 'hourly', '1700000000001-123456', '3522cf17-9ae9-4573-ae87-25205c2b2450', 10, 1, 'ferries-20261129T220253-a1cb2a', '2026-11-29 22:02:53.523949+00', '[["log", "ferries-by-carrier", 0, 100]]', '{"local": {"index": "jobs/ferries/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('ferries', 4, 'Partition 0', 'hourly', '1700000000002-123456', '3522cf17-9ae9-4573-ae87-25205c2b2450', 20, 1, 'ferries-20261129T220253-a1cb2a', '2026-11-29 22:02:53.554444+00', '[["log", "ferries-by-carrier", 0, 200]]', '{"local": {"index": "jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('rail', 1, 'Partition 0', 'route', '1700000000001-123456', '2dac9c2e-d9d5-4227-af8f-f02588dd6a63', 10, 1, 'rail-20261129T220253-49a003', '2026-11-29 22:02:53.830679+00', '[["log", "rail-flights", 0, 100]]', '{"local": {"index": "jobs/rail/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('rail', 2, 'Partition 0', 'route', '1700000000002-123456', '2dac9c2e-d9d5-4227-af8f-f02588dd6a63', 20, 1, 'rail-20261129T220253-49a003', '2026-11-29 22:02:53.859105+00', '[["log", "rail-flights", 0, 200]]', '{"local": {"index": "jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('rail', 3, 'Partition 0', 'hourly', '1700000000001-123456', 'c05d52c1-5c1e-4049-8c82-77433132fc21', 10, 1, 'rail-20261129T220253-49a003', '2026-11-29 22:02:53.893093+00', '[["log", "rail-by-carrier", 0, 100]]', '{"local": {"index": "jobs/rail/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('rail', 4, 'Partition 0', 'hourly', '1700000000002-123456', 'c05d52c1-5c1e-4049-8c82-77433132fc21', 20, 1, 'rail-20261129T220253-49a003', '2026-11-29 22:02:53.927195+00', '[["log", "rail-by-carrier", 0, 200]]', '{"local": {"index": "jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO public.starts VALUES
	('delays-20261129T220244-0705a2', 'log', 'delays-by-carrier', 0, 0),
	('delays-20261129T220244-0705a2', 'log', 'delays-by-carrier', 1, 0),
	('delays-20261129T220244-0705a2', 'log', 'delays-flights', 1, 0),
	('delays-20261129T220244-0705a2', 'log', 'delays-flights', 0, 0),
	('delays-20261129T220245-221491', 'log', 'delays-by-carrier', 0, 0),
	('delays-20261129T220245-221491', 'log', 'delays-by-carrier', 1, 0),
	('delays-20261129T220245-221491', 'log', 'delays-flights', 1, 0),
	('delays-20261129T220245-221491', 'log', 'delays-flights', 0, 0),
	('delays-20261129T220245-221491', 'log', 'delays-flights', 2, 0),
	('delays-20261129T220245-221491', 'log', 'delays-flights', 3, 0),
	('weather-20261129T220247-d7b2b9', 'log', 'weather-by-carrier', 0, 0),
	('weather-20261129T220247-d7b2b9', 'log', 'weather-by-carrier', 1, 0),
	('weather-20261129T220247-d7b2b9', 'log', 'weather-flights', 0, 0),
	('weather-20261129T220247-d7b2b9', 'log', 'weather-flights', 1, 0),
	('weather-20261129T220248-2e70b3', 'log', 'weather-by-carrier', 0, 0),
	('weather-20261129T220248-2e70b3', 'log', 'weather-by-carrier', 1, 0),
	('weather-20261129T220248-2e70b3', 'log', 'weather-flights', 0, 200),
	('weather-20261129T220248-2e70b3', 'log', 'weather-flights', 1, 200),
	('tolls-20261129T220248-8cd84e', 'log', 'tolls-by-carrier', 1, 0),
	('tolls-20261129T220248-8cd84e', 'log', 'tolls-by-carrier', 0, 0),
	('tolls-20261129T220248-8cd84e', 'log', 'tolls-flights', 0, 0),
	('tolls-20261129T220248-8cd84e', 'log', 'tolls-flights', 1, 0),
	('ferries-20261129T220253-a1cb2a', 'log', 'ferries-by-carrier', 0, 0),
	('ferries-20261129T220253-a1cb2a', 'log', 'ferries-by-carrier', 1, 0),
	('ferries-20261129T220253-a1cb2a', 'log', 'ferries-flights', 0, 0),
	('ferries-20261129T220253-a1cb2a', 'log', 'ferries-flights', 1, 0),
	('rail-20261129T220253-49a003', 'log', 'rail-by-carrier', 0, 0),
	('rail-20261129T220253-49a003', 'log', 'rail-by-carrier', 1, 0),
	('rail-20261129T220253-49a003', 'log', 'rail-flights', 1, 0),
	('rail-20261129T220253-49a003', 'log', 'rail-flights', 0, 0),
	('ferries-20261129T220254-8e95b3', 'log', 'ferries-by-carrier', 0, 0),
	('ferries-20261129T220254-8e95b3', 'log', 'ferries-by-carrier', 1, 0),
	('ferries-20261129T220254-8e95b3', 'log', 'ferries-flights', 0, 0),
	('ferries-20261129T220254-8e95b3', 'log', 'ferries-flights', 1, 0);
INSERT INTO public.stores VALUES
	('rail', 'Partition 0', 'route', '2dac9c2e-d9d5-4227-af8f-f02588dd6a63', 20, '[["log", "rail-flights", 0, 200]]', 1, '2026-11-29 22:02:53.845664+00', '1700000000002-123456', false, NULL, '[]', NULL),
	('rail', 'Partition 0', 'hourly', 'c05d52c1-5c1e-4049-8c82-77433132fc21', 20, '[["log", "rail-by-carrier", 0, 200]]', 1, '2026-11-29 22:02:53.908181+00', '1700000000001-123456', true, NULL, '[]', NULL),
	('delays', 'Partition 0', 'route', '7f06daa0-8071-4c4e-9256-e1db9c191034', 40, '[["log", "delays-flights", 0, 400]]', 2, '2026-11-29 22:02:46.234129+00', '1700000000004-123456', false, NULL, '[]', NULL),
	('weather', 'Partition 0', 'route', '708c3c96-eb04-4d38-b52d-16bbcedfb3b5', 40, '[["log", "weather-flights", 0, 400]]', 2, '2026-11-29 22:02:48.241316+00', '1700000000004-123456', false, NULL, '[]', NULL),
	('delays', 'Partition 0', 'hourly', 'd7385798-b375-481f-9a74-def2a99c4f24', 40, '[["log", "delays-by-carrier", 0, 400]]', 2, '2026-11-29 22:02:46.323855+00', '1700000000004-123456', false, NULL, '[]', NULL),
	('tolls', 'Partition 0', 'hourly', '804ed198-19dd-4c90-8119-58a6a7617e06', 20, '[["log", "tolls-by-carrier", 0, 200]]', 1, '2026-11-29 22:02:49.114439+00', '1700000000002-123456', true, NULL, '[]', NULL),
	('weather', 'Partition 0', 'hourly', 'a38c7ab3-cb0b-4523-848b-6859023dea55', 40, '[["log", "weather-by-carrier", 0, 400]]', 2, '2026-11-29 22:02:48.295364+00', '1700000000004-123456', false, NULL, '[]', NULL),
	('delays', 'Partition 1', 'route', 'daba25d1-704b-4482-ba86-73d8392cee22', 40, '[["log", "delays-flights", 1, 400]]', 2, '2026-11-29 22:02:46.404515+00', '1700000000004-123456', false, NULL, '[]', NULL),
	('tolls', 'Partition 0', 'route', '5bea10ee-1d7e-40d1-bc33-1fb1f86fcdbe', 20, '[["log", "tolls-flights", 0, 200]]', 1, '2026-11-29 22:02:49.080018+00', '1700000000002-123456', true, NULL, '[]', NULL),
	('tolls', 'Partition 1', 'hourly', '2255d740-aa6d-4848-9815-12774880df60', 20, '[["log", "tolls-by-carrier", 1, 200]]', 1, '2026-11-29 22:02:49.204929+00', '1700000000002-123456', true, NULL, '[]', NULL),
	('delays', 'Partition 1', 'hourly', '7d34c781-5a12-4b40-b93f-192a0374bcda', 40, '[["log", "delays-by-carrier", 1, 400]]', 2, '2026-11-29 22:02:46.447418+00', '1700000000004-123456', false, NULL, '[]', NULL),
	('tolls', 'Partition 1', 'route', '199a8a7e-27a2-4637-9d7a-66f06376d289', 20, '[["log", "tolls-flights", 1, 200]]', 1, '2026-11-29 22:02:49.165309+00', '1700000000002-123456', true, NULL, '[]', NULL),
	('weather', 'Partition 1', 'route', '647f814a-e9ba-4b85-9187-f730c3e6577d', 40, '[["log", "weather-flights", 1, 400]]', 2, '2026-11-29 22:02:48.470223+00', '1700000000004-123456', false, NULL, '[]', NULL),
	('weather', 'Partition 1', 'hourly', 'c31f0fd5-e6bb-4e14-9718-d4ae35af8809', 40, '[["log", "weather-by-carrier", 1, 400]]', 2, '2026-11-29 22:02:48.772983+00', '1700000000004-123456', false, NULL, '[]', NULL);
INSERT INTO public.watched_streams VALUES
	('delays', 'log', 'delays-flights', 'delays-20261129T220245-221491', 'flights', 4, 4, 'UNCHANGED', '', '2026-11-29 22:02:47.005662+00', NULL),
	('weather', 'log', 'weather-flights', 'weather-20261129T220248-2e70b3', 'flights', 2, 2, 'UNCHANGED', '', '2026-11-29 22:02:49.051904+00', NULL),
	('tolls', 'log', 'tolls-flights', 'tolls-20261129T220248-8cd84e', 'flights', 2, 2, 'UNCHANGED', '', '2026-11-29 22:02:49.060327+00', NULL),
	('ferries', 'log', 'ferries-flights', 'ferries-20261129T220254-8e95b3', 'flights', 2, 2, 'UNCHANGED', '', '2026-11-29 22:02:54.335731+00', NULL);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.assignments
    ADD CONSTRAINT pk_assignments PRIMARY KEY (job, system, stream, partition);
ALTER TABLE ONLY public.audit_events
    ADD CONSTRAINT pk_audit_events PRIMARY KEY (seq);
ALTER TABLE ONLY public.baselines
    ADD CONSTRAINT pk_baselines PRIMARY KEY (job, system, stream);
ALTER TABLE ONLY public.browser_sessions
    ADD CONSTRAINT pk_browser_sessions PRIMARY KEY (digest);
ALTER TABLE ONLY public.claims
    ADD CONSTRAINT pk_claims PRIMARY KEY (name);
ALTER TABLE ONLY public.cleanups
    ADD CONSTRAINT pk_cleanups PRIMARY KEY (kind, blob_store, subject);
ALTER TABLE ONLY public.condemned
    ADD CONSTRAINT pk_condemned PRIMARY KEY (blob_store, blob);
ALTER TABLE ONLY public.containers
    ADD CONSTRAINT pk_containers PRIMARY KEY (execution_id);
ALTER TABLE ONLY public.drain_stages
    ADD CONSTRAINT pk_drain_stages PRIMARY KEY (drain_id, task, stage);
ALTER TABLE ONLY public.drains
    ADD CONSTRAINT pk_drains PRIMARY KEY (drain_id);
ALTER TABLE ONLY public.holds
    ADD CONSTRAINT pk_holds PRIMARY KEY (job, task);
ALTER TABLE ONLY public.issued
    ADD CONSTRAINT pk_issued PRIMARY KEY (name);
ALTER TABLE ONLY public.job_models
    ADD CONSTRAINT pk_job_models PRIMARY KEY (job, version);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (job);
ALTER TABLE ONLY public.lease_bounds
    ADD CONSTRAINT pk_lease_bounds PRIMARY KEY (name);
ALTER TABLE ONLY public.localities
    ADD CONSTRAINT pk_localities PRIMARY KEY (job, processor_id);
ALTER TABLE ONLY public.notices
    ADD CONSTRAINT pk_notices PRIMARY KEY (run_id, seq);
ALTER TABLE ONLY public.pins
    ADD CONSTRAINT pk_pins PRIMARY KEY (pin_id, job, task, stage);
ALTER TABLE ONLY public.registries
    ADD CONSTRAINT pk_registries PRIMARY KEY (blob_store);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT pk_runs PRIMARY KEY (run_id);
ALTER TABLE ONLY public.snapshots
    ADD CONSTRAINT pk_snapshots PRIMARY KEY (job, seq);
ALTER TABLE ONLY public.starts
    ADD CONSTRAINT pk_starts PRIMARY KEY (run_id, system, stream, partition);
ALTER TABLE ONLY public.stores
    ADD CONSTRAINT pk_stores PRIMARY KEY (job, task, stage);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT pk_tokens PRIMARY KEY (token_id);
ALTER TABLE ONLY public.watched_streams
    ADD CONSTRAINT pk_watched_streams PRIMARY KEY (job, system, stream);
CREATE INDEX ix_audit_events_age ON public.audit_events USING btree (at);
CREATE INDEX ix_audit_events_job ON public.audit_events USING btree (job, seq);
CREATE INDEX ix_cleanups_due ON public.cleanups USING btree (due_at, kind, blob_store, subject);
CREATE INDEX ix_containers_standing ON public.containers USING btree (run_id, execution_id) WHERE (ended_at IS NULL);
CREATE INDEX ix_drain_stages_step ON public.drain_stages USING btree (drain_id, step);
CREATE INDEX ix_drains_active ON public.drains USING btree (job, seq) WHERE (ended_at IS NULL);
CREATE INDEX ix_drains_phase ON public.drains USING btree (phase);
CREATE INDEX ix_drains_run ON public.drains USING btree (run_id, seq);
CREATE INDEX ix_holds_holder ON public.holds USING btree (holder);
CREATE INDEX ix_pins_stage ON public.pins USING btree (job, task, stage, pin_id);
CREATE INDEX ix_runs_active ON public.runs USING btree (created_at, run_id) WHERE (ended_at IS NULL);
CREATE INDEX ix_runs_age ON public.runs USING btree (created_at, run_id);
CREATE INDEX ix_runs_job_age ON public.runs USING btree (job, created_at, run_id);
CREATE INDEX ix_snapshots_stage ON public.snapshots USING btree (job, stage, seq);
CREATE INDEX ix_snapshots_store ON public.snapshots USING btree (job, task, stage, seq);
CREATE UNIQUE INDEX uq_containers_slot_epoch ON public.containers USING btree (run_id, processor_id, epoch);
CREATE UNIQUE INDEX uq_drains_job_seq ON public.drains USING btree (job, seq);
CREATE UNIQUE INDEX uq_snapshots_checkpoint ON public.snapshots USING btree (job, task, stage, checkpoint);
