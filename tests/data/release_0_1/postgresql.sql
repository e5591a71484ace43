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
CREATE TABLE public.baselines (
    job character varying(249) NOT NULL,
    system character varying(249) NOT NULL,
    stream character varying(249) NOT NULL,
    partitions integer NOT NULL
);
CREATE TABLE public.claims (
    name character varying(16) NOT NULL,
    holder character varying(300) NOT NULL
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
    adopted_at timestamp with time zone
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
    reported_at timestamp with time zone
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
    acquired_at timestamp with time zone NOT NULL
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
    backup json
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
    former character varying(100)
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
	('0006');
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
	('coordinator', 'coordinator.example pid 15622 16d62864a79b');
INSERT INTO public.cleanups VALUES
	('offsets', 'local', 'jobs/delays/Partition_0/route/offsets/10f79100-3302-4f60-84bb-6de18129f518/', 'delays', 'Partition 0', 'route', '2026-11-23 01:54:20.333393+00', '2026-11-23 01:55:17.701312+00', 0, ''),
	('offsets', 'local', 'jobs/delays/Partition_0/hourly/offsets/dc7b3619-59ad-4c19-98c9-286d0cfc24fd/', 'delays', 'Partition 0', 'hourly', '2026-11-23 01:54:20.395001+00', '2026-11-23 01:55:17.793039+00', 0, ''),
	('offsets', 'local', 'jobs/delays/Partition_1/route/offsets/1efeeb17-8c8a-4dec-a3e3-d10d6846117b/', 'delays', 'Partition 1', 'route', '2026-11-23 01:54:20.414775+00', '2026-11-23 01:55:17.889791+00', 0, ''),
	('offsets', 'local', 'jobs/delays/Partition_1/hourly/offsets/e461cb88-938c-402c-83c9-8fca30fa9f76/', 'delays', 'Partition 1', 'hourly', '2026-11-23 01:54:20.422977+00', '2026-11-23 01:55:17.930745+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_0/route/offsets/104e8cae-8265-4d9d-9a55-e7d435387b2f/', 'weather', 'Partition 0', 'route', '2026-11-23 01:54:21.858959+00', '2026-11-23 01:55:21.858959+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_0/hourly/offsets/99e4f4d3-8fa4-4382-aa22-ab13f408b436/', 'weather', 'Partition 0', 'hourly', '2026-11-23 01:54:21.994277+00', '2026-11-23 01:55:21.994277+00', 0, ''),
	('keep', 'local', 'jobs/delays/Partition_0/hourly/snapshots/1700000000001-00000000000000aa', 'delays', 'Partition 0', 'hourly', '2026-11-23 01:54:16.958932+00', '2026-11-23 01:54:33.383175+00', 2, 'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_0/route/snapshots/1700000000001-00000000000000aa', 'delays', 'Partition 0', 'route', '2026-11-23 01:54:16.57813+00', '2026-11-23 01:54:33.564909+00', 2, 'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_1/route/snapshots/1700000000001-00000000000000aa', 'delays', 'Partition 1', 'route', '2026-11-23 01:54:17.206446+00', '2026-11-23 01:54:33.660147+00', 2, 'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_0/hourly/snapshots/1700000000002-00000000000000aa', 'delays', 'Partition 0', 'hourly', '2026-11-23 01:54:17.066917+00', '2026-11-23 01:54:34.959151+00', 2, 'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_1/hourly/snapshots/1700000000002-00000000000000aa', 'delays', 'Partition 1', 'hourly', '2026-11-23 01:54:17.448922+00', '2026-11-23 01:54:34.962267+00', 2, 'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_1/route/snapshots/1700000000002-00000000000000aa', 'delays', 'Partition 1', 'route', '2026-11-23 01:54:17.322921+00', '2026-11-23 01:54:34.971412+00', 2, 'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_0/route/snapshots/1700000000002-00000000000000aa', 'delays', 'Partition 0', 'route', '2026-11-23 01:54:16.858972+00', '2026-11-23 01:54:34.976965+00', 2, 'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_0/hourly/snapshots/1700000000003-00000000000000aa', 'delays', 'Partition 0', 'hourly', '2026-11-23 01:54:19.737809+00', '2026-11-23 01:54:36.060118+00', 2, 'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_1/route/snapshots/1700000000003-00000000000000aa', 'delays', 'Partition 1', 'route', '2026-11-23 01:54:19.969145+00', '2026-11-23 01:54:36.064825+00', 2, 'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa', 'delays', 'Partition 0', 'hourly', '2026-11-23 01:54:19.820084+00', '2026-11-23 01:54:36.068059+00', 2, 'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_1/hourly/snapshots/1700000000003-00000000000000aa', 'delays', 'Partition 1', 'hourly', '2026-11-23 01:54:20.117141+00', '2026-11-23 01:54:36.06968+00', 2, 'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa', 'delays', 'Partition 1', 'route', '2026-11-23 01:54:20.068688+00', '2026-11-23 01:54:36.07608+00', 2, 'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa', 'delays', 'Partition 1', 'hourly', '2026-11-23 01:54:20.16515+00', '2026-11-23 01:54:36.080981+00', 2, 'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_0/route/snapshots/1700000000003-00000000000000aa', 'delays', 'Partition 0', 'route', '2026-11-23 01:54:19.580224+00', '2026-11-23 01:54:36.083199+00', 2, 'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa', 'delays', 'Partition 0', 'route', '2026-11-23 01:54:19.611633+00', '2026-11-23 01:54:36.087005+00', 2, 'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_0/hourly/snapshots/1700000000001-00000000000000aa', 'weather', 'Partition 0', 'hourly', '2026-11-23 01:54:21.186503+00', '2026-11-23 01:54:37.181589+00', 2, 'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_1/hourly/snapshots/1700000000002-00000000000000aa', 'weather', 'Partition 1', 'hourly', '2026-11-23 01:54:21.403001+00', '2026-11-23 01:54:37.195753+00', 2, 'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_1/route/snapshots/1700000000002-00000000000000aa', 'weather', 'Partition 1', 'route', '2026-11-23 01:54:21.328149+00', '2026-11-23 01:54:37.214828+00', 2, 'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_0/route/snapshots/1700000000002-00000000000000aa', 'weather', 'Partition 0', 'route', '2026-11-23 01:54:21.101607+00', '2026-11-23 01:54:38.276682+00', 2, 'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('offsets', 'local', 'jobs/weather/Partition_1/route/offsets/4832f7ef-f4a1-4ffd-93b1-d99692135a19/', 'weather', 'Partition 1', 'route', '2026-11-23 01:54:22.0122+00', '2026-11-23 01:55:22.0122+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_1/hourly/offsets/c17d3a31-73ee-4bc6-a96d-4ed27c686ec5/', 'weather', 'Partition 1', 'hourly', '2026-11-23 01:54:22.018855+00', '2026-11-23 01:55:22.018855+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_0/route/offsets/f68022b6-14de-42ac-bd59-172ff17cf76c/', 'weather', 'Partition 0', 'route', '2026-11-23 01:54:23.182103+00', '2026-11-23 01:55:23.182103+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_0/hourly/offsets/85337fc1-d756-47c4-9236-056eb1155602/', 'weather', 'Partition 0', 'hourly', '2026-11-23 01:54:23.201468+00', '2026-11-23 01:55:23.201468+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_1/route/offsets/469698ce-3f32-43fa-991f-e48bf671efb9/', 'weather', 'Partition 1', 'route', '2026-11-23 01:54:23.21199+00', '2026-11-23 01:55:23.21199+00', 0, ''),
	('offsets', 'local', 'jobs/weather/Partition_1/hourly/offsets/2f33e7ba-233f-4c2f-902d-41af5d184e67/', 'weather', 'Partition 1', 'hourly', '2026-11-23 01:54:23.224386+00', '2026-11-23 01:55:23.224386+00', 0, ''),
	('keep', 'local', 'jobs/delays/Partition_1/hourly/snapshots/1700000000001-00000000000000aa', 'delays', 'Partition 1', 'hourly', '2026-11-23 01:54:17.399036+00', '2026-11-23 01:54:33.2595+00', 2, 'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('offsets', 'local', 'jobs/tolls/Partition_0/route/offsets/b5ca74de-b9e0-4895-80ba-1ab9b0930d24/', 'tolls', 'Partition 0', 'route', '2026-11-23 01:54:24.779721+00', '2026-11-23 01:55:24.779721+00', 0, ''),
	('offsets', 'local', 'jobs/tolls/Partition_0/hourly/offsets/77b7aafa-f796-42ec-86ae-0e2ff7ffcc81/', 'tolls', 'Partition 0', 'hourly', '2026-11-23 01:54:24.844821+00', '2026-11-23 01:55:24.844821+00', 0, ''),
	('offsets', 'local', 'jobs/tolls/Partition_1/route/offsets/1f3bbd6e-24f6-405b-9b6e-930dec10bd45/', 'tolls', 'Partition 1', 'route', '2026-11-23 01:54:24.892972+00', '2026-11-23 01:55:24.892972+00', 0, ''),
	('offsets', 'local', 'jobs/tolls/Partition_1/hourly/offsets/15751c08-c139-460c-96c6-269edd50aa28/', 'tolls', 'Partition 1', 'hourly', '2026-11-23 01:54:24.929193+00', '2026-11-23 01:55:24.929193+00', 0, ''),
	('keep', 'local', 'jobs/tolls/Partition_0/route/snapshots/1700000000001-00000000000000aa', 'tolls', 'Partition 0', 'route', '2026-11-23 01:54:23.711033+00', '2026-11-23 01:54:29.966699+00', 1, 'there is no blob jobs/tolls/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_0/hourly/snapshots/1700000000001-00000000000000aa', 'tolls', 'Partition 0', 'hourly', '2026-11-23 01:54:23.982604+00', '2026-11-23 01:54:29.984616+00', 1, 'there is no blob jobs/tolls/Partition_0/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa', 'tolls', 'Partition 0', 'route', '2026-11-23 01:54:23.883042+00', '2026-11-23 01:54:29.998857+00', 1, 'there is no blob jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa', 'tolls', 'Partition 0', 'hourly', '2026-11-23 01:54:24.017858+00', '2026-11-23 01:54:30.008639+00', 1, 'there is no blob jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_1/route/snapshots/1700000000001-00000000000000aa', 'tolls', 'Partition 1', 'route', '2026-11-23 01:54:24.114983+00', '2026-11-23 01:54:30.01865+00', 1, 'there is no blob jobs/tolls/Partition_1/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_1/hourly/snapshots/1700000000001-00000000000000aa', 'tolls', 'Partition 1', 'hourly', '2026-11-23 01:54:24.175793+00', '2026-11-23 01:54:30.024161+00', 1, 'there is no blob jobs/tolls/Partition_1/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa', 'tolls', 'Partition 1', 'route', '2026-11-23 01:54:24.147539+00', '2026-11-23 01:54:30.028637+00', 1, 'there is no blob jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_0/route/snapshots/1700000000001-00000000000000aa', 'weather', 'Partition 0', 'route', '2026-11-23 01:54:21.053521+00', '2026-11-23 01:54:37.166714+00', 2, 'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_1/hourly/snapshots/1700000000001-00000000000000aa', 'weather', 'Partition 1', 'hourly', '2026-11-23 01:54:21.352014+00', '2026-11-23 01:54:37.169175+00', 2, 'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_1/route/snapshots/1700000000001-00000000000000aa', 'weather', 'Partition 1', 'route', '2026-11-23 01:54:21.288212+00', '2026-11-23 01:54:37.172846+00', 2, 'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_0/hourly/snapshots/1700000000003-00000000000000aa', 'weather', 'Partition 0', 'hourly', '2026-11-23 01:54:22.692293+00', '2026-11-23 01:54:39.403336+00', 2, 'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_1/route/snapshots/1700000000003-00000000000000aa', 'weather', 'Partition 1', 'route', '2026-11-23 01:54:22.947627+00', '2026-11-23 01:54:39.426283+00', 2, 'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa', 'weather', 'Partition 0', 'hourly', '2026-11-23 01:54:22.826534+00', '2026-11-23 01:54:39.49115+00', 2, 'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa', 'weather', 'Partition 1', 'route', '2026-11-23 01:54:22.978988+00', '2026-11-23 01:54:39.511572+00', 2, 'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa', 'weather', 'Partition 0', 'route', '2026-11-23 01:54:22.655887+00', '2026-11-23 01:54:39.516585+00', 2, 'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_1/hourly/snapshots/1700000000003-00000000000000aa', 'weather', 'Partition 1', 'hourly', '2026-11-23 01:54:23.079803+00', '2026-11-23 01:54:39.613471+00', 2, 'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa', 'weather', 'Partition 1', 'hourly', '2026-11-23 01:54:23.113281+00', '2026-11-23 01:54:39.698818+00', 2, 'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa', 'tolls', 'Partition 1', 'hourly', '2026-11-23 01:54:24.202958+00', '2026-11-23 01:54:30.030509+00', 1, 'there is no blob jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/weather/Partition_0/hourly/snapshots/1700000000002-00000000000000aa', 'weather', 'Partition 0', 'hourly', '2026-11-23 01:54:21.215084+00', '2026-11-23 01:54:37.232363+00', 2, 'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/rail/Partition_0/hourly/snapshots/1700000000001-00000000000000aa', 'rail', 'Partition 0', 'hourly', '2026-11-23 01:54:29.264345+00', '2026-11-23 01:54:29.264345+00', 0, ''),
	('offsets', 'local', 'jobs/ferries/Partition_0/route/offsets/e8981298-7794-4930-a783-ed1dc88f9c40/', 'ferries', 'Partition 0', 'route', '2026-11-23 01:54:29.353002+00', '2026-11-23 01:55:29.353002+00', 0, ''),
	('offsets', 'local', 'jobs/ferries/Partition_0/hourly/offsets/78a0e16e-804e-47d3-9d11-8eefbaa65b37/', 'ferries', 'Partition 0', 'hourly', '2026-11-23 01:54:29.370405+00', '2026-11-23 01:55:29.370405+00', 0, ''),
	('offsets', 'local', 'jobs/rail/Partition_0/route/offsets/63ec7750-e09a-49b8-ba06-cce26c6078db/', 'rail', 'Partition 0', 'route', '2026-11-23 01:54:29.393811+00', '2026-11-23 01:55:29.393811+00', 0, ''),
	('keep', 'local', 'jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa', 'rail', 'Partition 0', 'hourly', '2026-11-23 01:54:29.419899+00', '2026-11-23 01:54:29.419899+00', 0, ''),
	('retire', '', 'jobs/rail/Partition_0/hourly/', 'rail', 'Partition 0', 'hourly', '2026-11-23 01:54:29.419899+00', '2026-11-23 01:54:29.419899+00', 0, ''),
	('keep', 'local', 'jobs/weather/Partition_0/route/snapshots/1700000000003-00000000000000aa', 'weather', 'Partition 0', 'route', '2026-11-23 01:54:22.523399+00', '2026-11-23 01:54:39.433343+00', 2, 'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/ferries/Partition_0/route/snapshots/1700000000001-00000000000000aa', 'ferries', 'Partition 0', 'route', '2026-11-23 01:54:28.431306+00', '2026-11-23 01:54:34.46702+00', 1, 'there is no blob jobs/ferries/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa', 'ferries', 'Partition 0', 'route', '2026-11-23 01:54:28.472728+00', '2026-11-23 01:54:34.522758+00', 1, 'there is no blob jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/ferries/Partition_0/hourly/snapshots/1700000000001-00000000000000aa', 'ferries', 'Partition 0', 'hourly', '2026-11-23 01:54:28.507061+00', '2026-11-23 01:54:34.552434+00', 1, 'there is no blob jobs/ferries/Partition_0/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/rail/Partition_0/route/snapshots/1700000000001-00000000000000aa', 'rail', 'Partition 0', 'route', '2026-11-23 01:54:29.070794+00', '2026-11-23 01:54:34.555044+00', 1, 'there is no blob jobs/rail/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa', 'ferries', 'Partition 0', 'hourly', '2026-11-23 01:54:28.558957+00', '2026-11-23 01:54:34.660789+00', 1, 'there is no blob jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs'),
	('keep', 'local', 'jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa', 'rail', 'Partition 0', 'route', '2026-11-23 01:54:29.145357+00', '2026-11-23 01:54:34.693331+00', 1, 'there is no blob jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO public.condemned VALUES
	('local', 'jobs/weather/Partition_9/hourly/data/1700000000001-00000000000000ff', 6, '2026-11-23 01:54:30.433551+00');
INSERT INTO public.containers VALUES
	('delays-a', 'delays-20261123T015416-c36615', 'delays', '0', 1, 'delays-a.example', false, 'EXITED', '2026-11-23 01:54:16.323443+00', '2026-11-23 01:54:16.323443+00', '2026-11-23 01:54:17.957358+00', 0, 'told to', '127.0.0.1:9400', 1, '2026-11-23 01:54:16.323443+00'),
	('delays-b', 'delays-20261123T015417-69fd13', 'delays', '0', 1, 'delays-b.example', false, 'REPLACED', '2026-11-23 01:54:18.188196+00', '2026-11-23 01:54:18.188196+00', NULL, NULL, '', '127.0.0.1:9400', 2, '2026-11-23 01:54:18.188196+00'),
	('delays-d', 'delays-20261123T015417-69fd13', 'delays', '1', 1, 'delays-d.example', false, 'LIVE', '2026-11-23 01:54:18.293099+00', '2026-11-23 01:54:18.293099+00', NULL, NULL, '', '127.0.0.1:9400', 2, '2026-11-23 01:54:18.293099+00'),
	('delays-c', 'delays-20261123T015417-69fd13', 'delays', '0', 2, 'delays-c.example', false, 'LIVE', '2026-11-23 01:54:18.274894+00', '2026-11-23 01:54:18.274894+00', NULL, NULL, '', '127.0.0.1:9400', 3, '2026-11-23 01:54:19.534582+00'),
	('weather-a', 'weather-20261123T015420-5f0deb', 'weather', '0', 1, 'weather-a.example', false, 'EXITED', '2026-11-23 01:54:21.000696+00', '2026-11-23 01:54:21.000696+00', '2026-11-23 01:54:22.334208+00', 0, 'told to', '127.0.0.1:9400', 1, '2026-11-23 01:54:21.000696+00'),
	('weather-b', 'weather-20261123T015422-fc947d', 'weather', '0', 1, 'weather-b.example', false, 'LIVE', '2026-11-23 01:54:22.419962+00', '2026-11-23 01:54:22.419962+00', NULL, NULL, '', '127.0.0.1:9400', 1, '2026-11-23 01:54:22.419962+00'),
	('tolls-a', 'tolls-20261123T015423-058ba5', 'tolls', '0', 1, 'tolls-a.example', false, 'LIVE', '2026-11-23 01:54:23.467334+00', '2026-11-23 01:54:23.467334+00', NULL, NULL, '', '127.0.0.1:9400', 1, '2026-11-23 01:54:23.467334+00'),
	('ferries-a', 'ferries-20261123T015428-550564', 'ferries', '0', 1, 'ferries-a.example', false, 'EXITED', '2026-11-23 01:54:28.342658+00', '2026-11-23 01:54:28.342658+00', '2026-11-23 01:54:28.61579+00', 0, 'told to', '127.0.0.1:9400', 1, '2026-11-23 01:54:28.342658+00'),
	('rail-a', 'rail-20261123T015428-0adb8e', 'rail', '0', 1, 'rail-a.example', false, 'EXITED', '2026-11-23 01:54:28.874563+00', '2026-11-23 01:54:28.874563+00', '2026-11-23 01:54:29.532044+00', 1, 'told to', '127.0.0.1:9400', 1, '2026-11-23 01:54:28.874563+00');
INSERT INTO public.drain_stages VALUES
	('7bc50d96-4889-471f-93e5-38619855f437', 'Partition 1', 'route', 1, 2, 40, '[["log", "delays-flights", 1, 400]]', '1700000000004-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:20.657269+00'),
	('7bc50d96-4889-471f-93e5-38619855f437', 'Partition 1', 'hourly', 1, 2, 40, '[["log", "delays-by-carrier", 1, 400]]', '1700000000004-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:20.757275+00'),
	('7bc50d96-4889-471f-93e5-38619855f437', 'Partition 0', 'route', 3, 2, 40, '[["log", "delays-flights", 0, 400]]', '1700000000004-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:20.835263+00'),
	('7bc50d96-4889-471f-93e5-38619855f437', 'Partition 0', 'hourly', 3, 2, 40, '[["log", "delays-by-carrier", 0, 400]]', '1700000000004-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:20.868911+00'),
	('f5b3d036-179d-4c0b-a73e-52bef7725e3c', 'Partition 0', 'route', 0, NULL, NULL, '[]', NULL, NULL, false, NULL, '[]', '', NULL),
	('f5b3d036-179d-4c0b-a73e-52bef7725e3c', 'Partition 0', 'hourly', 0, NULL, NULL, '[]', NULL, NULL, false, NULL, '[]', '', NULL),
	('f5b3d036-179d-4c0b-a73e-52bef7725e3c', 'Partition 1', 'route', 0, NULL, NULL, '[]', NULL, NULL, false, NULL, '[]', '', NULL),
	('f5b3d036-179d-4c0b-a73e-52bef7725e3c', 'Partition 1', 'hourly', 0, NULL, NULL, '[]', NULL, NULL, false, NULL, '[]', '', NULL),
	('a286c9c9-efea-456a-b9a1-de5fe83f2050', 'Partition 0', 'route', 4, 1, 20, '[["log", "weather-flights", 0, 200]]', '1700000000002-123456', '1700000000002-123456', false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:22.091105+00'),
	('a286c9c9-efea-456a-b9a1-de5fe83f2050', 'Partition 1', 'route', 4, 1, 20, '[["log", "weather-flights", 1, 200]]', '1700000000002-123456', '1700000000002-123456', false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:22.169973+00'),
	('a286c9c9-efea-456a-b9a1-de5fe83f2050', 'Partition 0', 'hourly', 4, 1, 20, '[["log", "weather-by-carrier", 0, 200]]', '1700000000002-123456', '1700000000002-123456', false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:22.231827+00'),
	('a286c9c9-efea-456a-b9a1-de5fe83f2050', 'Partition 1', 'hourly', 4, 1, 20, '[["log", "weather-by-carrier", 1, 200]]', '1700000000002-123456', '1700000000002-123456', false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:22.246727+00'),
	('a04287f3-56da-496c-9eee-6fb35e453a7d', 'Partition 1', 'route', 1, 1, 20, '[["log", "tolls-flights", 1, 200]]', '1700000000002-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:24.304351+00'),
	('a04287f3-56da-496c-9eee-6fb35e453a7d', 'Partition 1', 'hourly', 1, 1, 20, '[["log", "tolls-by-carrier", 1, 200]]', '1700000000002-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:24.323784+00'),
	('a04287f3-56da-496c-9eee-6fb35e453a7d', 'Partition 0', 'route', 3, 1, 20, '[["log", "tolls-flights", 0, 200]]', '1700000000002-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:24.384602+00'),
	('a04287f3-56da-496c-9eee-6fb35e453a7d', 'Partition 0', 'hourly', 3, 1, 20, '[["log", "tolls-by-carrier", 0, 200]]', '1700000000002-123456', NULL, false, 3, '["dropDuplicates"]', '3 rows of a state without a watermark', '2026-11-23 01:54:24.402841+00');
INSERT INTO public.drains VALUES
	('7bc50d96-4889-471f-93e5-38619855f437', 'delays-20261123T015417-69fd13', 'delays', 1, 'DEFAULT', 'FLUSHING', 3, '2026-11-23 01:54:20.273063+00', 500000000, 1000000000, '{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}', '[["log", "delays-by-carrier", 0, 0], ["log", "delays-by-carrier", 1, 0]]', '[]', '[]', '2026-11-23 01:54:20.273063+00', '2026-11-23 01:54:20.757275+00', NULL, NULL, ''),
	('f5b3d036-179d-4c0b-a73e-52bef7725e3c', 'weather-20261123T015420-5f0deb', 'weather', 1, 'DEFAULT', 'CANCELLED', 1, '2026-11-23 01:54:21.428232+00', 500000000, 1000000000, '{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}', '[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0]]', '[]', '[]', '2026-11-23 01:54:21.428232+00', NULL, NULL, '2026-11-23 01:54:21.448278+00', 'cancelled'),
	('a286c9c9-efea-456a-b9a1-de5fe83f2050', 'weather-20261123T015420-5f0deb', 'weather', 2, 'DEFAULT', 'DRAINED', 1, '2026-11-23 01:54:21.510657+00', 500000000, 1000000000, '{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}', '[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0]]', '[]', '[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0], ["log", "weather-flights", 0, 200], ["log", "weather-flights", 1, 200]]', '2026-11-23 01:54:21.510657+00', '2026-11-23 01:54:21.597379+00', '2026-11-23 01:54:21.817382+00', '2026-11-23 01:54:22.246727+00', ''),
	('a04287f3-56da-496c-9eee-6fb35e453a7d', 'tolls-20261123T015423-058ba5', 'tolls', 1, 'DEFAULT', 'FAILED', 1, '2026-11-23 01:54:24.234873+00', 1.5, 3, '{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}', '[["log", "tolls-by-carrier", 0, 0], ["log", "tolls-by-carrier", 1, 0]]', '[]', '[]', '2026-11-23 01:54:24.234873+00', '2026-11-23 01:54:24.323784+00', NULL, '2026-11-23 01:54:28.118953+00', 'its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work');
INSERT INTO public.holds VALUES
	('delays', 'Partition 0', 'delays-20261123T015417-69fd13', 2, 'delays-c', false, '2026-11-23 01:54:19.555781+00'),
	('delays', 'Partition 1', 'delays-20261123T015417-69fd13', 2, 'delays-d', false, '2026-11-23 01:54:19.892676+00'),
	('weather', 'Partition 0', 'weather-20261123T015422-fc947d', 2, 'weather-b', false, '2026-11-23 01:54:22.458764+00'),
	('weather', 'Partition 1', 'weather-20261123T015422-fc947d', 2, 'weather-b', false, '2026-11-23 01:54:22.871138+00'),
	('tolls', 'Partition 0', 'tolls-20261123T015423-058ba5', 1, 'tolls-a', false, '2026-11-23 01:54:23.494909+00'),
	('tolls', 'Partition 1', 'tolls-20261123T015423-058ba5', 1, 'tolls-a', false, '2026-11-23 01:54:24.055888+00'),
	('ferries', 'Partition 0', 'ferries-20261123T015428-550564', 1, 'ferries-a', true, '2026-11-23 01:54:28.391713+00'),
	('rail', 'Partition 0', 'rail-20261123T015428-0adb8e', 1, 'rail-a', true, '2026-11-23 01:54:28.950885+00');
INSERT INTO public.job_models VALUES
	('delays', 1, 'delays-20261123T015416-c36615', '{"config":{"job.container.count":"1","job.name":"delays","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', 'f82e84b3caa81a69baef5098a77581379cafe2897f8d2d66ebf91aa30b7ccae5', '2026-11-23 01:54:16.207176+00', 'run delays-20261123T015416-c36615 was deployed', 'operator@example.com'),
	('delays', 2, 'delays-20261123T015417-69fd13', '{"config":{"job.container.count":"2","job.name":"delays","standby.replicas":"1","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"}}},"1":{"processor-id":"1","tasks":{"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', '511448eb15b8506ce9618907b1e8d9f171731cc8160cf5f4ec45a632ad7b8c79', '2026-11-23 01:54:17.574959+00', 'run delays-20261123T015417-69fd13 was deployed', 'operator@example.com'),
	('delays', 3, 'delays-20261123T015417-69fd13', '{"config":{"job.container.count":"2","job.name":"delays","standby.replicas":"1","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1},{"system":"log","partition":2,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"}}},"1":{"processor-id":"1","tasks":{"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1},{"system":"log","partition":3,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', 'ed95ce8764130b1e27b1a23ec3b09deafc527a18d7e193094775e86ce1cb9aac', '2026-11-23 01:54:19.250513+00', 'log.delays-flights grew from 2 to 4 partitions', 'partition monitor'),
	('weather', 1, 'weather-20261123T015420-5f0deb', '{"config":{"job.container.count":"1","job.name":"weather","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"weather-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"weather-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"weather-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"weather-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', 'e0e0faccbd6fd3cf8e346eb91d7c42b929b78c26627e1fc11aa93b19b16da2a9', '2026-11-23 01:54:20.968639+00', 'run weather-20261123T015420-5f0deb was deployed', 'operator@example.com'),
	('tolls', 1, 'tolls-20261123T015423-058ba5', '{"config":{"job.container.count":"1","job.name":"tolls","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"tolls-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"tolls-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"tolls-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"tolls-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', '61a79c873084b07ce7e2a9b4eac2de155fd59f271f0b6d77ee202c4e95dc5922', '2026-11-23 01:54:23.199184+00', 'run tolls-20261123T015423-058ba5 was deployed', 'operator@example.com'),
	('ferries', 1, 'ferries-20261123T015428-550564', '{"config":{"job.container.count":"1","job.name":"ferries","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"ferries-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"ferries-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"ferries-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"ferries-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', '33477fcf9ddf37d5d4839a965e5173dfc20249aeff69d23836e89f3812e76716', '2026-11-23 01:54:28.317847+00', 'run ferries-20261123T015428-550564 was deployed', 'operator@example.com'),
	('rail', 1, 'rail-20261123T015428-0adb8e', '{"config":{"job.container.count":"1","job.name":"rail","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"rail-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"rail-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"rail-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"rail-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}', '87ba2f1918bf7f557b7b89677d253a8dedadf054a160b8fc2761eae5dd73688e', '2026-11-23 01:54:28.802478+00', 'run rail-20261123T015428-0adb8e was deployed', 'operator@example.com');
INSERT INTO public.jobs VALUES
	('delays', 'delays-20261123T015417-69fd13', 'GroupByPartition'),
	('weather', 'weather-20261123T015422-fc947d', 'GroupByPartition'),
	('tolls', 'tolls-20261123T015423-058ba5', 'GroupByPartition'),
	('rail', 'rail-20261123T015428-0adb8e', 'GroupByPartition'),
	('ferries', 'ferries-20261123T015429-02f087', 'GroupByPartition');
INSERT INTO public.notices VALUES
	('delays-20261123T015416-c36615', 1, 'STOP', '2026-11-23 01:54:17.574959+00', '{"reason": "replaced by run delays-20261123T015417-69fd13"}'),
	('delays-20261123T015416-c36615', 2, 'ENDED', '2026-11-23 01:54:17.979895+00', '{"state": "STOPPED", "reason": "replaced by run delays-20261123T015417-69fd13"}'),
	('delays-20261123T015417-69fd13', 1, 'MODEL', '2026-11-23 01:54:19.250513+00', '{"version": 3, "containers": 2, "why": "log.delays-flights grew from 2 to 4 partitions"}'),
	('delays-20261123T015417-69fd13', 2, 'DRAIN', '2026-11-23 01:54:20.273063+00', '{"uuid": "7bc50d96-4889-471f-93e5-38619855f437", "phase": "REQUESTED"}'),
	('delays-20261123T015417-69fd13', 3, 'DRAIN', '2026-11-23 01:54:20.273063+00', '{"uuid": "7bc50d96-4889-471f-93e5-38619855f437", "phase": "STOPPING"}'),
	('delays-20261123T015417-69fd13', 4, 'DRAIN', '2026-11-23 01:54:20.757275+00', '{"uuid": "7bc50d96-4889-471f-93e5-38619855f437", "phase": "FLUSHING"}'),
	('weather-20261123T015420-5f0deb', 1, 'DRAIN', '2026-11-23 01:54:21.428232+00', '{"uuid": "f5b3d036-179d-4c0b-a73e-52bef7725e3c", "phase": "REQUESTED"}'),
	('weather-20261123T015420-5f0deb', 2, 'DRAIN', '2026-11-23 01:54:21.428232+00', '{"uuid": "f5b3d036-179d-4c0b-a73e-52bef7725e3c", "phase": "STOPPING"}'),
	('weather-20261123T015420-5f0deb', 3, 'DRAIN', '2026-11-23 01:54:21.448278+00', '{"uuid": "f5b3d036-179d-4c0b-a73e-52bef7725e3c", "phase": "CANCELLED", "reason": "cancelled"}'),
	('weather-20261123T015420-5f0deb', 4, 'DRAIN', '2026-11-23 01:54:21.510657+00', '{"uuid": "a286c9c9-efea-456a-b9a1-de5fe83f2050", "phase": "REQUESTED"}'),
	('weather-20261123T015420-5f0deb', 5, 'DRAIN', '2026-11-23 01:54:21.510657+00', '{"uuid": "a286c9c9-efea-456a-b9a1-de5fe83f2050", "phase": "STOPPING"}'),
	('weather-20261123T015420-5f0deb', 6, 'DRAIN', '2026-11-23 01:54:21.597379+00', '{"uuid": "a286c9c9-efea-456a-b9a1-de5fe83f2050", "phase": "FLUSHING"}'),
	('weather-20261123T015420-5f0deb', 7, 'DRAIN', '2026-11-23 01:54:21.645312+00', '{"uuid": "a286c9c9-efea-456a-b9a1-de5fe83f2050", "phase": "FLUSHING"}'),
	('weather-20261123T015420-5f0deb', 8, 'DRAIN', '2026-11-23 01:54:21.817382+00', '{"uuid": "a286c9c9-efea-456a-b9a1-de5fe83f2050", "phase": "COMMITTING"}'),
	('weather-20261123T015420-5f0deb', 9, 'DRAIN', '2026-11-23 01:54:22.246727+00', '{"uuid": "a286c9c9-efea-456a-b9a1-de5fe83f2050", "phase": "DRAINED"}'),
	('weather-20261123T015420-5f0deb', 10, 'ENDED', '2026-11-23 01:54:22.246727+00', '{"state": "DRAINED", "reason": "drained: a286c9c9-efea-456a-b9a1-de5fe83f2050"}'),
	('tolls-20261123T015423-058ba5', 1, 'DRAIN', '2026-11-23 01:54:24.234873+00', '{"uuid": "a04287f3-56da-496c-9eee-6fb35e453a7d", "phase": "REQUESTED"}'),
	('tolls-20261123T015423-058ba5', 2, 'DRAIN', '2026-11-23 01:54:24.234873+00', '{"uuid": "a04287f3-56da-496c-9eee-6fb35e453a7d", "phase": "STOPPING"}'),
	('tolls-20261123T015423-058ba5', 3, 'DRAIN', '2026-11-23 01:54:24.323784+00', '{"uuid": "a04287f3-56da-496c-9eee-6fb35e453a7d", "phase": "FLUSHING"}'),
	('tolls-20261123T015423-058ba5', 4, 'DRAIN', '2026-11-23 01:54:28.118953+00', '{"uuid": "a04287f3-56da-496c-9eee-6fb35e453a7d", "phase": "FAILED", "reason": "its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work"}'),
	('tolls-20261123T015423-058ba5', 5, 'STOP', '2026-11-23 01:54:28.118953+00', '{"reason": "the drain a04287f3-56da-496c-9eee-6fb35e453a7d failed: its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work"}'),
	('ferries-20261123T015428-550564', 1, 'STOP', '2026-11-23 01:54:28.584868+00', '{"reason": "the season is over"}'),
	('ferries-20261123T015428-550564', 2, 'ENDED', '2026-11-23 01:54:28.629059+00', '{"state": "STOPPED", "reason": "the season is over"}'),
	('rail-20261123T015428-0adb8e', 1, 'STOP', '2026-11-23 01:54:29.492399+00', '{"reason": "derailed"}'),
	('rail-20261123T015428-0adb8e', 2, 'ENDED', '2026-11-23 01:54:29.53666+00', '{"state": "FAILED", "reason": "derailed"}');
INSERT INTO public.pins VALUES
	('before-the-audit', 'delays', 'Partition 0', 'hourly', '1700000000004-123456', 'the auditors', '2026-11-23 01:54:20.19733+00', '2058-08-01 03:41:00.19733+00'),
	('drain-7bc50d96-4889-471f-93e5-38619855f437', 'delays', 'Partition 0', 'route', '1700000000004-123456', 'to go back to if the drain fails', '2026-11-23 01:54:20.49891+00', NULL),
	('drain-7bc50d96-4889-471f-93e5-38619855f437', 'delays', 'Partition 1', 'route', '1700000000004-123456', 'to go back to if the drain fails', '2026-11-23 01:54:20.657269+00', NULL),
	('drain-7bc50d96-4889-471f-93e5-38619855f437', 'delays', 'Partition 0', 'hourly', '1700000000004-123456', 'to go back to if the drain fails', '2026-11-23 01:54:20.739035+00', NULL),
	('drain-7bc50d96-4889-471f-93e5-38619855f437', 'delays', 'Partition 1', 'hourly', '1700000000004-123456', 'to go back to if the drain fails', '2026-11-23 01:54:20.757275+00', NULL),
	('drain-a04287f3-56da-496c-9eee-6fb35e453a7d', 'tolls', 'Partition 0', 'hourly', '1700000000002-123456', 'to go back to if the drain fails', '2026-11-23 01:54:24.314828+00', '2026-12-23 01:54:28.118953+00'),
	('drain-a04287f3-56da-496c-9eee-6fb35e453a7d', 'tolls', 'Partition 0', 'route', '1700000000002-123456', 'to go back to if the drain fails', '2026-11-23 01:54:24.286848+00', '2026-12-23 01:54:28.118953+00'),
	('drain-a04287f3-56da-496c-9eee-6fb35e453a7d', 'tolls', 'Partition 1', 'hourly', '1700000000002-123456', 'to go back to if the drain fails', '2026-11-23 01:54:24.323784+00', '2026-12-23 01:54:28.118953+00'),
	('drain-a04287f3-56da-496c-9eee-6fb35e453a7d', 'tolls', 'Partition 1', 'route', '1700000000002-123456', 'to go back to if the drain fails', '2026-11-23 01:54:24.304351+00', '2026-12-23 01:54:28.118953+00');
INSERT INTO public.registries VALUES
	('local', '75f602eb39c546619e0e95fa2d3b5223');
INSERT INTO public.runs VALUES
	('weather-20261123T015420-5f0deb', 'weather', 'DRAINED', 'weather-20261123T015420-5f0deb', '{"job": "weather", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "weather-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "weather-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "weather-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "weather-flights", "partitions": 2, "broadcast": false, "identity": "ae9f7ddb-830f-41d2-9ba5-14846cdfccf3"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "weather-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "weather-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-23 01:54:20.968639+00', '2026-11-23 01:54:21.000696+00', NULL, '2026-11-23 01:54:22.246727+00', 'drained: a286c9c9-efea-456a-b9a1-de5fe83f2050', false, NULL),
	('delays-20261123T015417-69fd13', 'delays', 'DRAINING', 'delays-20261123T015416-c36615', '{"job": "delays", "containers": 2, "inputs": [{"name": "flights", "system": "log", "stream": "delays-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "delays-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "delays-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich", "standby.replicas": "1"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "delays-flights", "partitions": 4, "broadcast": false, "identity": "895600f3-9a9c-42cb-af84-8faef2467d3f"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "delays-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "delays-delays", "partitions": 1, "broadcast": false, "identity": null}]', 3, '2026-11-23 01:54:17.574959+00', '2026-11-23 01:54:18.188196+00', NULL, NULL, '', false, NULL),
	('delays-20261123T015416-c36615', 'delays', 'STOPPED', 'delays-20261123T015416-c36615', '{"job": "delays", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "delays-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "delays-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "delays-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "delays-flights", "partitions": 2, "broadcast": false, "identity": "895600f3-9a9c-42cb-af84-8faef2467d3f"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "delays-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "delays-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-23 01:54:16.207176+00', '2026-11-23 01:54:16.323443+00', '2026-11-23 01:54:17.574959+00', '2026-11-23 01:54:17.979895+00', 'replaced by run delays-20261123T015417-69fd13', false, NULL),
	('weather-20261123T015422-fc947d', 'weather', 'RUNNING', 'weather-20261123T015422-fc947d', '{"job": "weather", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "weather-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "weather-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "weather-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "drained", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "weather-flights", "partitions": 2, "broadcast": false, "identity": "ae9f7ddb-830f-41d2-9ba5-14846cdfccf3"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "weather-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "weather-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-23 01:54:22.386532+00', '2026-11-23 01:54:22.419962+00', NULL, NULL, '', false, NULL),
	('tolls-20261123T015423-058ba5', 'tolls', 'RUNNING', 'tolls-20261123T015423-058ba5', '{"job": "tolls", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "tolls-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "tolls-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "tolls-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "tolls-flights", "partitions": 2, "broadcast": false, "identity": "977bc0d5-f5f0-44a3-96d7-71623c89380e"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "tolls-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "tolls-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-23 01:54:23.199184+00', '2026-11-23 01:54:23.467334+00', '2026-11-23 01:54:28.118953+00', NULL, 'the drain a04287f3-56da-496c-9eee-6fb35e453a7d failed: its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work', false, NULL),
	('rail-20261123T015428-0adb8e', 'rail', 'FAILED', 'rail-20261123T015428-0adb8e', '{"job": "rail", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "rail-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "rail-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "rail-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "rail-flights", "partitions": 2, "broadcast": false, "identity": "61655c79-4dd7-4dd3-9cd3-416d0eb6e778"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "rail-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "rail-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-23 01:54:28.802478+00', '2026-11-23 01:54:28.874563+00', '2026-11-23 01:54:29.492399+00', '2026-11-23 01:54:29.53666+00', 'derailed', true, NULL),
	('ferries-20261123T015428-550564', 'ferries', 'STOPPED', 'ferries-20261123T015428-550564', '{"job": "ferries", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "ferries-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "ferries-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "ferries-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "ferries-flights", "partitions": 2, "broadcast": false, "identity": "54546f03-bf7e-4085-82d5-3b6640ceec4e"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "ferries-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "ferries-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-23 01:54:28.317847+00', '2026-11-23 01:54:28.342658+00', '2026-11-23 01:54:28.584868+00', '2026-11-23 01:54:28.629059+00', 'the season is over', false, NULL),
	('ferries-20261123T015429-02f087', 'ferries', 'CREATED', 'ferries-20261123T015429-02f087', '{"job": "ferries", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "ferries-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "ferries-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "ferries-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "earliest", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}', '[{"name": "flights", "role": "input", "system": "log", "stream": "ferries-flights", "partitions": 2, "broadcast": false, "identity": "54546f03-bf7e-4085-82d5-3b6640ceec4e"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "ferries-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "ferries-delays", "partitions": 1, "broadcast": false, "identity": null}]', 1, '2026-11-23 01:54:29.681115+00', NULL, NULL, NULL, '', false, NULL);
INSERT INTO public.snapshots VALUES
	('delays', 1, 'Partition 0', 'route', '1700000000001-123456', '10f79100-3302-4f60-84bb-6de18129f518', 10, 1, 'delays-20261123T015416-c36615', '2026-11-23 01:54:16.57813+00', '[["log", "delays-flights", 0, 100]]', '{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 2, 'Partition 0', 'route', '1700000000002-123456', '10f79100-3302-4f60-84bb-6de18129f518', 20, 1, 'delays-20261123T015416-c36615', '2026-11-23 01:54:16.858972+00', '[["log", "delays-flights", 0, 200]]', '{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 3, 'Partition 0', 'hourly', '1700000000001-123456', 'dc7b3619-59ad-4c19-98c9-286d0cfc24fd', 10, 1, 'delays-20261123T015416-c36615', '2026-11-23 01:54:16.958932+00', '[["log", "delays-by-carrier", 0, 100]]', '{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 4, 'Partition 0', 'hourly', '1700000000002-123456', 'dc7b3619-59ad-4c19-98c9-286d0cfc24fd', 20, 1, 'delays-20261123T015416-c36615', '2026-11-23 01:54:17.066917+00', '[["log", "delays-by-carrier", 0, 200]]', '{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 5, 'Partition 1', 'route', '1700000000001-123456', '1efeeb17-8c8a-4dec-a3e3-d10d6846117b', 10, 1, 'delays-20261123T015416-c36615', '2026-11-23 01:54:17.206446+00', '[["log", "delays-flights", 1, 100]]', '{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 6, 'Partition 1', 'route', '1700000000002-123456', '1efeeb17-8c8a-4dec-a3e3-d10d6846117b', 20, 1, 'delays-20261123T015416-c36615', '2026-11-23 01:54:17.322921+00', '[["log", "delays-flights", 1, 200]]', '{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 7, 'Partition 1', 'hourly', '1700000000001-123456', 'e461cb88-938c-402c-83c9-8fca30fa9f76', 10, 1, 'delays-20261123T015416-c36615', '2026-11-23 01:54:17.399036+00', '[["log", "delays-by-carrier", 1, 100]]', '{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 8, 'Partition 1', 'hourly', '1700000000002-123456', 'e461cb88-938c-402c-83c9-8fca30fa9f76', 20, 1, 'delays-20261123T015416-c36615', '2026-11-23 01:54:17.448922+00', '[["log", "delays-by-carrier", 1, 200]]', '{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 9, 'Partition 0', 'route', '1700000000003-123456', '10f79100-3302-4f60-84bb-6de18129f518', 30, 2, 'delays-20261123T015417-69fd13', '2026-11-23 01:54:19.580224+00', '[["log", "delays-flights", 0, 300]]', '{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 10, 'Partition 0', 'route', '1700000000004-123456', '10f79100-3302-4f60-84bb-6de18129f518', 40, 2, 'delays-20261123T015417-69fd13', '2026-11-23 01:54:19.611633+00', '[["log", "delays-flights", 0, 400]]', '{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 11, 'Partition 0', 'hourly', '1700000000003-123456', 'dc7b3619-59ad-4c19-98c9-286d0cfc24fd', 30, 2, 'delays-20261123T015417-69fd13', '2026-11-23 01:54:19.737809+00', '[["log", "delays-by-carrier", 0, 300]]', '{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 12, 'Partition 0', 'hourly', '1700000000004-123456', 'dc7b3619-59ad-4c19-98c9-286d0cfc24fd', 40, 2, 'delays-20261123T015417-69fd13', '2026-11-23 01:54:19.820084+00', '[["log", "delays-by-carrier", 0, 400]]', '{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 13, 'Partition 1', 'route', '1700000000003-123456', '1efeeb17-8c8a-4dec-a3e3-d10d6846117b', 30, 2, 'delays-20261123T015417-69fd13', '2026-11-23 01:54:19.969145+00', '[["log", "delays-flights", 1, 300]]', '{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 14, 'Partition 1', 'route', '1700000000004-123456', '1efeeb17-8c8a-4dec-a3e3-d10d6846117b', 40, 2, 'delays-20261123T015417-69fd13', '2026-11-23 01:54:20.068688+00', '[["log", "delays-flights", 1, 400]]', '{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 15, 'Partition 1', 'hourly', '1700000000003-123456', 'e461cb88-938c-402c-83c9-8fca30fa9f76', 30, 2, 'delays-20261123T015417-69fd13', '2026-11-23 01:54:20.117141+00', '[["log", "delays-by-carrier", 1, 300]]', '{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('delays', 16, 'Partition 1', 'hourly', '1700000000004-123456', 'e461cb88-938c-402c-83c9-8fca30fa9f76', 40, 2, 'delays-20261123T015417-69fd13', '2026-11-23 01:54:20.16515+00', '[["log", "delays-by-carrier", 1, 400]]', '{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 1, 'Partition 0', 'route', '1700000000001-123456', '104e8cae-8265-4d9d-9a55-e7d435387b2f', 10, 1, 'weather-20261123T015420-5f0deb', '2026-11-23 01:54:21.053521+00', '[["log", "weather-flights", 0, 100]]', '{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 2, 'Partition 0', 'route', '1700000000002-123456', '104e8cae-8265-4d9d-9a55-e7d435387b2f', 20, 1, 'weather-20261123T015420-5f0deb', '2026-11-23 01:54:21.101607+00', '[["log", "weather-flights", 0, 200]]', '{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 3, 'Partition 0', 'hourly', '1700000000001-123456', '99e4f4d3-8fa4-4382-aa22-ab13f408b436', 10, 1, 'weather-20261123T015420-5f0deb', '2026-11-23 01:54:21.186503+00', '[["log", "weather-by-carrier", 0, 100]]', '{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 4, 'Partition 0', 'hourly', '1700000000002-123456', '99e4f4d3-8fa4-4382-aa22-ab13f408b436', 20, 1, 'weather-20261123T015420-5f0deb', '2026-11-23 01:54:21.215084+00', '[["log", "weather-by-carrier", 0, 200]]', '{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 5, 'Partition 1', 'route', '1700000000001-123456', '4832f7ef-f4a1-4ffd-93b1-d99692135a19', 10, 1, 'weather-20261123T015420-5f0deb', '2026-11-23 01:54:21.288212+00', '[["log", "weather-flights", 1, 100]]', '{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 6, 'Partition 1', 'route', '1700000000002-123456', '4832f7ef-f4a1-4ffd-93b1-d99692135a19', 20, 1, 'weather-20261123T015420-5f0deb', '2026-11-23 01:54:21.328149+00', '[["log", "weather-flights", 1, 200]]', '{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 7, 'Partition 1', 'hourly', '1700000000001-123456', 'c17d3a31-73ee-4bc6-a96d-4ed27c686ec5', 10, 1, 'weather-20261123T015420-5f0deb', '2026-11-23 01:54:21.352014+00', '[["log", "weather-by-carrier", 1, 100]]', '{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 8, 'Partition 1', 'hourly', '1700000000002-123456', 'c17d3a31-73ee-4bc6-a96d-4ed27c686ec5', 20, 1, 'weather-20261123T015420-5f0deb', '2026-11-23 01:54:21.403001+00', '[["log", "weather-by-carrier", 1, 200]]', '{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 9, 'Partition 0', 'route', '1700000000003-123456', 'f68022b6-14de-42ac-bd59-172ff17cf76c', 30, 2, 'weather-20261123T015422-fc947d', '2026-11-23 01:54:22.523399+00', '[["log", "weather-flights", 0, 300]]', '{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 10, 'Partition 0', 'route', '1700000000004-123456', 'f68022b6-14de-42ac-bd59-172ff17cf76c', 40, 2, 'weather-20261123T015422-fc947d', '2026-11-23 01:54:22.655887+00', '[["log", "weather-flights", 0, 400]]', '{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 11, 'Partition 0', 'hourly', '1700000000003-123456', '85337fc1-d756-47c4-9236-056eb1155602', 30, 2, 'weather-20261123T015422-fc947d', '2026-11-23 01:54:22.692293+00', '[["log", "weather-by-carrier", 0, 300]]', '{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 12, 'Partition 0', 'hourly', '1700000000004-123456', '85337fc1-d756-47c4-9236-056eb1155602', 40, 2, 'weather-20261123T015422-fc947d', '2026-11-23 01:54:22.826534+00', '[["log", "weather-by-carrier", 0, 400]]', '{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 13, 'Partition 1', 'route', '1700000000003-123456', '469698ce-3f32-43fa-991f-e48bf671efb9', 30, 2, 'weather-20261123T015422-fc947d', '2026-11-23 01:54:22.947627+00', '[["log", "weather-flights", 1, 300]]', '{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 14, 'Partition 1', 'route', '1700000000004-123456', '469698ce-3f32-43fa-991f-e48bf671efb9', 40, 2, 'weather-20261123T015422-fc947d', '2026-11-23 01:54:22.978988+00', '[["log", "weather-flights", 1, 400]]', '{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 15, 'Partition 1', 'hourly', '1700000000003-123456', '2f33e7ba-233f-4c2f-902d-41af5d184e67', 30, 2, 'weather-20261123T015422-fc947d', '2026-11-23 01:54:23.079803+00', '[["log", "weather-by-carrier", 1, 300]]', '{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('weather', 16, 'Partition 1', 'hourly', '1700000000004-123456', '2f33e7ba-233f-4c2f-902d-41af5d184e67', 40, 2, 'weather-20261123T015422-fc947d', '2026-11-23 01:54:23.113281+00', '[["log", "weather-by-carrier", 1, 400]]', '{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 1, 'Partition 0', 'route', '1700000000001-123456', 'b5ca74de-b9e0-4895-80ba-1ab9b0930d24', 10, 1, 'tolls-20261123T015423-058ba5', '2026-11-23 01:54:23.711033+00', '[["log", "tolls-flights", 0, 100]]', '{"local": {"index": "jobs/tolls/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 2, 'Partition 0', 'route', '1700000000002-123456', 'b5ca74de-b9e0-4895-80ba-1ab9b0930d24', 20, 1, 'tolls-20261123T015423-058ba5', '2026-11-23 01:54:23.883042+00', '[["log", "tolls-flights", 0, 200]]', '{"local": {"index": "jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 3, 'Partition 0', 'hourly', '1700000000001-123456', '77b7aafa-f796-42ec-86ae-0e2ff7ffcc81', 10, 1, 'tolls-20261123T015423-058ba5', '2026-11-23 01:54:23.982604+00', '[["log", "tolls-by-carrier", 0, 100]]', '{"local": {"index": "jobs/tolls/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 4, 'Partition 0', 'hourly', '1700000000002-123456', '77b7aafa-f796-42ec-86ae-0e2ff7ffcc81', 20, 1, 'tolls-20261123T015423-058ba5', '2026-11-23 01:54:24.017858+00', '[["log", "tolls-by-carrier", 0, 200]]', '{"local": {"index": "jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 5, 'Partition 1', 'route', '1700000000001-123456', '1f3bbd6e-24f6-405b-9b6e-930dec10bd45', 10, 1, 'tolls-20261123T015423-058ba5', '2026-11-23 01:54:24.114983+00', '[["log", "tolls-flights", 1, 100]]', '{"local": {"index": "jobs/tolls/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 6, 'Partition 1', 'route', '1700000000002-123456', '1f3bbd6e-24f6-405b-9b6e-930dec10bd45', 20, 1, 'tolls-20261123T015423-058ba5', '2026-11-23 01:54:24.147539+00', '[["log", "tolls-flights", 1, 200]]', '{"local": {"index": "jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 7, 'Partition 1', 'hourly', '1700000000001-123456', '15751c08-c139-460c-96c6-269edd50aa28', 10, 1, 'tolls-20261123T015423-058ba5', '2026-11-23 01:54:24.175793+00', '[["log", "tolls-by-carrier", 1, 100]]', '{"local": {"index": "jobs/tolls/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('tolls', 8, 'Partition 1', 'hourly', '1700000000002-123456', '15751c08-c139-460c-96c6-269edd50aa28', 20, 1, 'tolls-20261123T015423-058ba5', '2026-11-23 01:54:24.202958+00', '[["log", "tolls-by-carrier", 1, 200]]', '{"local": {"index": "jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('ferries', 1, 'Partition 0', 'route', '1700000000001-123456', 'e8981298-7794-4930-a783-ed1dc88f9c40', 10, 1, 'ferries-20261123T015428-550564', '2026-11-23 01:54:28.431306+00', '[["log", "ferries-flights", 0, 100]]', '{"local": {"index": "jobs/ferries/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('ferries', 2, 'Partition 0', 'route', '1700000000002-123456', 'e8981298-7794-4930-a783-ed1dc88f9c40', 20, 1, 'ferries-20261123T015428-550564', '2026-11-23 01:54:28.472728+00', '[["log", "ferries-flights", 0, 200]]', '{"local": {"index": "jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('ferries', 3, 'Partition 0', 'hourly', '1700000000001-123456', '78a0e16e-804e-47d3-9d11-8eefbaa65b37', 10, 1, 'ferries-20261123T015428-550564', '2026-11-23 01:54:28.507061+00', '[["log", "ferries-by-carrier", 0, 100]]', '{"local": {"index": "jobs/ferries/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('ferries', 4, 'Partition 0', 'hourly', '1700000000002-123456', '78a0e16e-804e-47d3-9d11-8eefbaa65b37', 20, 1, 'ferries-20261123T015428-550564', '2026-11-23 01:54:28.558957+00', '[["log", "ferries-by-carrier", 0, 200]]', '{"local": {"index": "jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('rail', 1, 'Partition 0', 'route', '1700000000001-123456', '63ec7750-e09a-49b8-ba06-cce26c6078db', 10, 1, 'rail-20261123T015428-0adb8e', '2026-11-23 01:54:29.070794+00', '[["log", "rail-flights", 0, 100]]', '{"local": {"index": "jobs/rail/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('rail', 2, 'Partition 0', 'route', '1700000000002-123456', '63ec7750-e09a-49b8-ba06-cce26c6078db', 20, 1, 'rail-20261123T015428-0adb8e', '2026-11-23 01:54:29.145357+00', '[["log", "rail-flights", 0, 200]]', '{"local": {"index": "jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('rail', 3, 'Partition 0', 'hourly', '1700000000001-123456', '1bf68b25-fcd1-4c4e-9ae1-875bf24e51fe', 10, 1, 'rail-20261123T015428-0adb8e', '2026-11-23 01:54:29.264345+00', '[["log", "rail-by-carrier", 0, 100]]', '{"local": {"index": "jobs/rail/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}'),
	('rail', 4, 'Partition 0', 'hourly', '1700000000002-123456', '1bf68b25-fcd1-4c4e-9ae1-875bf24e51fe', 20, 1, 'rail-20261123T015428-0adb8e', '2026-11-23 01:54:29.419899+00', '[["log", "rail-by-carrier", 0, 200]]', '{"local": {"index": "jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO public.starts VALUES
	('delays-20261123T015416-c36615', 'log', 'delays-by-carrier', 0, 0),
	('delays-20261123T015416-c36615', 'log', 'delays-by-carrier', 1, 0),
	('delays-20261123T015416-c36615', 'log', 'delays-flights', 0, 0),
	('delays-20261123T015416-c36615', 'log', 'delays-flights', 1, 0),
	('delays-20261123T015417-69fd13', 'log', 'delays-by-carrier', 0, 0),
	('delays-20261123T015417-69fd13', 'log', 'delays-by-carrier', 1, 0),
	('delays-20261123T015417-69fd13', 'log', 'delays-flights', 0, 0),
	('delays-20261123T015417-69fd13', 'log', 'delays-flights', 1, 0),
	('delays-20261123T015417-69fd13', 'log', 'delays-flights', 2, 0),
	('delays-20261123T015417-69fd13', 'log', 'delays-flights', 3, 0),
	('weather-20261123T015420-5f0deb', 'log', 'weather-by-carrier', 0, 0),
	('weather-20261123T015420-5f0deb', 'log', 'weather-by-carrier', 1, 0),
	('weather-20261123T015420-5f0deb', 'log', 'weather-flights', 1, 0),
	('weather-20261123T015420-5f0deb', 'log', 'weather-flights', 0, 0),
	('weather-20261123T015422-fc947d', 'log', 'weather-by-carrier', 0, 0),
	('weather-20261123T015422-fc947d', 'log', 'weather-by-carrier', 1, 0),
	('weather-20261123T015422-fc947d', 'log', 'weather-flights', 1, 200),
	('weather-20261123T015422-fc947d', 'log', 'weather-flights', 0, 200),
	('tolls-20261123T015423-058ba5', 'log', 'tolls-by-carrier', 0, 0),
	('tolls-20261123T015423-058ba5', 'log', 'tolls-by-carrier', 1, 0),
	('tolls-20261123T015423-058ba5', 'log', 'tolls-flights', 1, 0),
	('tolls-20261123T015423-058ba5', 'log', 'tolls-flights', 0, 0),
	('ferries-20261123T015428-550564', 'log', 'ferries-by-carrier', 0, 0),
	('ferries-20261123T015428-550564', 'log', 'ferries-by-carrier', 1, 0),
	('ferries-20261123T015428-550564', 'log', 'ferries-flights', 0, 0),
	('ferries-20261123T015428-550564', 'log', 'ferries-flights', 1, 0),
	('rail-20261123T015428-0adb8e', 'log', 'rail-by-carrier', 1, 0),
	('rail-20261123T015428-0adb8e', 'log', 'rail-by-carrier', 0, 0),
	('rail-20261123T015428-0adb8e', 'log', 'rail-flights', 1, 0),
	('rail-20261123T015428-0adb8e', 'log', 'rail-flights', 0, 0),
	('ferries-20261123T015429-02f087', 'log', 'ferries-by-carrier', 0, 0),
	('ferries-20261123T015429-02f087', 'log', 'ferries-by-carrier', 1, 0),
	('ferries-20261123T015429-02f087', 'log', 'ferries-flights', 0, 0),
	('ferries-20261123T015429-02f087', 'log', 'ferries-flights', 1, 0);
INSERT INTO public.stores VALUES
	('rail', 'Partition 0', 'route', '63ec7750-e09a-49b8-ba06-cce26c6078db', 20, '[["log", "rail-flights", 0, 200]]', 1, '2026-11-23 01:54:29.123751+00', '1700000000002-123456', false, NULL),
	('rail', 'Partition 0', 'hourly', '1bf68b25-fcd1-4c4e-9ae1-875bf24e51fe', 20, '[["log", "rail-by-carrier", 0, 200]]', 1, '2026-11-23 01:54:29.33607+00', '1700000000001-123456', true, NULL),
	('weather', 'Partition 0', 'route', 'f68022b6-14de-42ac-bd59-172ff17cf76c', 40, '[["log", "weather-flights", 0, 400]]', 2, '2026-11-23 01:54:22.632768+00', '1700000000004-123456', false, NULL),
	('delays', 'Partition 0', 'route', '10f79100-3302-4f60-84bb-6de18129f518', 40, '[["log", "delays-flights", 0, 400]]', 2, '2026-11-23 01:54:19.586704+00', '1700000000004-123456', false, NULL),
	('tolls', 'Partition 0', 'hourly', '77b7aafa-f796-42ec-86ae-0e2ff7ffcc81', 20, '[["log", "tolls-by-carrier", 0, 200]]', 1, '2026-11-23 01:54:23.995234+00', '1700000000002-123456', true, NULL),
	('tolls', 'Partition 0', 'route', 'b5ca74de-b9e0-4895-80ba-1ab9b0930d24', 20, '[["log", "tolls-flights", 0, 200]]', 1, '2026-11-23 01:54:23.785877+00', '1700000000002-123456', true, NULL),
	('delays', 'Partition 0', 'hourly', 'dc7b3619-59ad-4c19-98c9-286d0cfc24fd', 40, '[["log", "delays-by-carrier", 0, 400]]', 2, '2026-11-23 01:54:19.769819+00', '1700000000004-123456', false, NULL),
	('weather', 'Partition 0', 'hourly', '85337fc1-d756-47c4-9236-056eb1155602', 40, '[["log", "weather-by-carrier", 0, 400]]', 2, '2026-11-23 01:54:22.783073+00', '1700000000004-123456', false, NULL),
	('delays', 'Partition 1', 'route', '1efeeb17-8c8a-4dec-a3e3-d10d6846117b', 40, '[["log", "delays-flights", 1, 400]]', 2, '2026-11-23 01:54:20.017995+00', '1700000000004-123456', false, NULL),
	('tolls', 'Partition 1', 'hourly', '15751c08-c139-460c-96c6-269edd50aa28', 20, '[["log", "tolls-by-carrier", 1, 200]]', 1, '2026-11-23 01:54:24.18961+00', '1700000000002-123456', true, NULL),
	('tolls', 'Partition 1', 'route', '1f3bbd6e-24f6-405b-9b6e-930dec10bd45', 20, '[["log", "tolls-flights", 1, 200]]', 1, '2026-11-23 01:54:24.136362+00', '1700000000002-123456', true, NULL),
	('delays', 'Partition 1', 'hourly', 'e461cb88-938c-402c-83c9-8fca30fa9f76', 40, '[["log", "delays-by-carrier", 1, 400]]', 2, '2026-11-23 01:54:20.134578+00', '1700000000004-123456', false, NULL),
	('weather', 'Partition 1', 'route', '469698ce-3f32-43fa-991f-e48bf671efb9', 40, '[["log", "weather-flights", 1, 400]]', 2, '2026-11-23 01:54:22.965036+00', '1700000000004-123456', false, NULL),
	('weather', 'Partition 1', 'hourly', '2f33e7ba-233f-4c2f-902d-41af5d184e67', 40, '[["log", "weather-by-carrier", 1, 400]]', 2, '2026-11-23 01:54:23.094772+00', '1700000000004-123456', false, NULL);
INSERT INTO public.watched_streams VALUES
	('delays', 'log', 'delays-flights', 'delays-20261123T015417-69fd13', 'flights', 4, 4, 'UNCHANGED', '', '2026-11-23 01:54:20.410374+00', NULL),
	('weather', 'log', 'weather-flights', 'weather-20261123T015422-fc947d', 'flights', 2, 2, 'UNCHANGED', '', '2026-11-23 01:54:22.656567+00', NULL),
	('tolls', 'log', 'tolls-flights', 'tolls-20261123T015423-058ba5', 'flights', 2, 2, 'UNCHANGED', '', '2026-11-23 01:54:23.751744+00', NULL),
	('rail', 'log', 'rail-flights', 'rail-20261123T015428-0adb8e', 'flights', 2, 2, 'UNCHANGED', '', '2026-11-23 01:54:29.22829+00', NULL),
	('ferries', 'log', 'ferries-flights', 'ferries-20261123T015429-02f087', 'flights', 2, 2, 'UNCHANGED', '', '2026-11-23 01:54:30.288113+00', NULL);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.assignments
    ADD CONSTRAINT pk_assignments PRIMARY KEY (job, system, stream, partition);
ALTER TABLE ONLY public.baselines
    ADD CONSTRAINT pk_baselines PRIMARY KEY (job, system, stream);
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
ALTER TABLE ONLY public.job_models
    ADD CONSTRAINT pk_job_models PRIMARY KEY (job, version);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (job);
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
ALTER TABLE ONLY public.watched_streams
    ADD CONSTRAINT pk_watched_streams PRIMARY KEY (job, system, stream);
CREATE INDEX ix_cleanups_due ON public.cleanups USING btree (due_at, kind, blob_store, subject);
CREATE INDEX ix_containers_standing ON public.containers USING btree (run_id, execution_id) WHERE (ended_at IS NULL);
CREATE INDEX ix_drain_stages_step ON public.drain_stages USING btree (drain_id, step);
CREATE INDEX ix_drains_active ON public.drains USING btree (job, seq) WHERE (ended_at IS NULL);
CREATE INDEX ix_drains_phase ON public.drains USING btree (phase);
CREATE INDEX ix_drains_run ON public.drains USING btree (run_id, seq);
CREATE INDEX ix_holds_holder ON public.holds USING btree (holder);
CREATE INDEX ix_pins_job ON public.pins USING btree (job, pin_id, task, stage);
CREATE INDEX ix_runs_active ON public.runs USING btree (created_at, run_id) WHERE (ended_at IS NULL);
CREATE INDEX ix_runs_age ON public.runs USING btree (created_at, run_id);
CREATE INDEX ix_runs_job_age ON public.runs USING btree (job, created_at, run_id);
CREATE INDEX ix_snapshots_stage ON public.snapshots USING btree (job, stage, seq);
CREATE INDEX ix_snapshots_store ON public.snapshots USING btree (job, task, stage, seq);
CREATE UNIQUE INDEX uq_containers_slot_epoch ON public.containers USING btree (run_id, processor_id, epoch);
CREATE UNIQUE INDEX uq_drains_job_seq ON public.drains USING btree (job, seq);
CREATE UNIQUE INDEX uq_snapshots_checkpoint ON public.snapshots USING btree (job, task, stage, checkpoint);
