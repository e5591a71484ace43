BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0006');
CREATE TABLE assignments (
	job VARCHAR(249) NOT NULL, 
	system VARCHAR(249) NOT NULL, 
	stream VARCHAR(249) NOT NULL, 
	partition INTEGER NOT NULL, 
	task TEXT NOT NULL, 
	CONSTRAINT pk_assignments PRIMARY KEY (job, system, stream, partition)
);
INSERT INTO "assignments" VALUES('delays','log','delays-by-carrier',0,'Partition 0');
INSERT INTO "assignments" VALUES('delays','log','delays-by-carrier',1,'Partition 1');
INSERT INTO "assignments" VALUES('delays','log','delays-flights',0,'Partition 0');
INSERT INTO "assignments" VALUES('delays','log','delays-flights',1,'Partition 1');
INSERT INTO "assignments" VALUES('delays','log','delays-flights',2,'Partition 0');
INSERT INTO "assignments" VALUES('delays','log','delays-flights',3,'Partition 1');
INSERT INTO "assignments" VALUES('weather','log','weather-by-carrier',0,'Partition 0');
INSERT INTO "assignments" VALUES('weather','log','weather-by-carrier',1,'Partition 1');
INSERT INTO "assignments" VALUES('weather','log','weather-flights',0,'Partition 0');
INSERT INTO "assignments" VALUES('weather','log','weather-flights',1,'Partition 1');
INSERT INTO "assignments" VALUES('tolls','log','tolls-by-carrier',0,'Partition 0');
INSERT INTO "assignments" VALUES('tolls','log','tolls-by-carrier',1,'Partition 1');
INSERT INTO "assignments" VALUES('tolls','log','tolls-flights',0,'Partition 0');
INSERT INTO "assignments" VALUES('tolls','log','tolls-flights',1,'Partition 1');
INSERT INTO "assignments" VALUES('rail','log','rail-by-carrier',0,'Partition 0');
INSERT INTO "assignments" VALUES('rail','log','rail-by-carrier',1,'Partition 1');
INSERT INTO "assignments" VALUES('rail','log','rail-flights',0,'Partition 0');
INSERT INTO "assignments" VALUES('rail','log','rail-flights',1,'Partition 1');
INSERT INTO "assignments" VALUES('ferries','log','ferries-by-carrier',0,'Partition 0');
INSERT INTO "assignments" VALUES('ferries','log','ferries-by-carrier',1,'Partition 1');
INSERT INTO "assignments" VALUES('ferries','log','ferries-flights',0,'Partition 0');
INSERT INTO "assignments" VALUES('ferries','log','ferries-flights',1,'Partition 1');
CREATE TABLE baselines (
	job VARCHAR(249) NOT NULL, 
	system VARCHAR(249) NOT NULL, 
	stream VARCHAR(249) NOT NULL, 
	partitions INTEGER NOT NULL, 
	CONSTRAINT pk_baselines PRIMARY KEY (job, system, stream)
);
INSERT INTO "baselines" VALUES('delays','log','delays-by-carrier',2);
INSERT INTO "baselines" VALUES('delays','log','delays-flights',2);
INSERT INTO "baselines" VALUES('weather','log','weather-by-carrier',2);
INSERT INTO "baselines" VALUES('weather','log','weather-flights',2);
INSERT INTO "baselines" VALUES('tolls','log','tolls-by-carrier',2);
INSERT INTO "baselines" VALUES('tolls','log','tolls-flights',2);
INSERT INTO "baselines" VALUES('rail','log','rail-by-carrier',2);
INSERT INTO "baselines" VALUES('rail','log','rail-flights',2);
INSERT INTO "baselines" VALUES('ferries','log','ferries-by-carrier',2);
INSERT INTO "baselines" VALUES('ferries','log','ferries-flights',2);
CREATE TABLE claims (
	name VARCHAR(16) NOT NULL, 
	holder VARCHAR(300) NOT NULL, 
	CONSTRAINT pk_claims PRIMARY KEY (name)
);
CREATE TABLE cleanups (
	kind VARCHAR(16) NOT NULL, 
	blob_store VARCHAR(249) NOT NULL, 
	subject VARCHAR(1000) NOT NULL, 
	job VARCHAR(249) NOT NULL, 
	task VARCHAR(600) NOT NULL, 
	stage VARCHAR(249) NOT NULL, 
	queued_at DATETIME NOT NULL, 
	due_at DATETIME NOT NULL, 
	tries INTEGER NOT NULL, 
	error TEXT NOT NULL, 
	CONSTRAINT pk_cleanups PRIMARY KEY (kind, blob_store, subject)
);
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/route/snapshots/1700000000001-00000000000000aa','delays','Partition 0','route','2026-11-23 01:53:44.015624','2026-11-23 01:54:00.866763',2,'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/route/snapshots/1700000000002-00000000000000aa','delays','Partition 0','route','2026-11-23 01:53:44.033925','2026-11-23 01:54:01.005777',2,'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/hourly/snapshots/1700000000001-00000000000000aa','delays','Partition 0','hourly','2026-11-23 01:53:44.045268','2026-11-23 01:54:00.823291',2,'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/hourly/snapshots/1700000000002-00000000000000aa','delays','Partition 0','hourly','2026-11-23 01:53:44.082409','2026-11-23 01:54:00.966468',2,'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/route/snapshots/1700000000001-00000000000000aa','delays','Partition 1','route','2026-11-23 01:53:44.173705','2026-11-23 01:54:00.886658',2,'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/route/snapshots/1700000000002-00000000000000aa','delays','Partition 1','route','2026-11-23 01:53:44.229033','2026-11-23 01:54:01.018764',2,'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/hourly/snapshots/1700000000001-00000000000000aa','delays','Partition 1','hourly','2026-11-23 01:53:44.256202','2026-11-23 01:54:00.898971',2,'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/hourly/snapshots/1700000000002-00000000000000aa','delays','Partition 1','hourly','2026-11-23 01:53:44.309128','2026-11-23 01:54:01.040983',2,'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/delays/Partition_0/route/offsets/efe73915-379b-48cc-ac2f-ac1986c97ba8/','delays','Partition 0','route','2026-11-23 01:53:46.873257','2026-11-23 01:54:44.553744',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/delays/Partition_0/hourly/offsets/d9ef13e9-1ce5-4c20-b7f4-1898757d7381/','delays','Partition 0','hourly','2026-11-23 01:53:46.878628','2026-11-23 01:54:44.571105',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/delays/Partition_1/route/offsets/09996634-bb20-4186-95f2-8e9151828102/','delays','Partition 1','route','2026-11-23 01:53:46.885894','2026-11-23 01:54:44.588459',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/delays/Partition_1/hourly/offsets/2db8b7be-225d-466c-aba2-44e99bf887eb/','delays','Partition 1','hourly','2026-11-23 01:53:46.977424','2026-11-23 01:54:44.595334',0,'');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/route/snapshots/1700000000003-00000000000000aa','delays','Partition 0','route','2026-11-23 01:53:45.903413','2026-11-23 01:54:02.071581',2,'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa','delays','Partition 0','route','2026-11-23 01:53:45.960730','2026-11-23 01:54:03.234651',2,'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/hourly/snapshots/1700000000003-00000000000000aa','delays','Partition 0','hourly','2026-11-23 01:53:45.976408','2026-11-23 01:54:02.188289',2,'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa','delays','Partition 0','hourly','2026-11-23 01:53:46.062619','2026-11-23 01:54:03.230377',2,'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/route/snapshots/1700000000003-00000000000000aa','delays','Partition 1','route','2026-11-23 01:53:46.126759','2026-11-23 01:54:02.100630',2,'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa','delays','Partition 1','route','2026-11-23 01:53:46.242625','2026-11-23 01:54:03.232469',2,'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/hourly/snapshots/1700000000003-00000000000000aa','delays','Partition 1','hourly','2026-11-23 01:53:46.286705','2026-11-23 01:54:02.128678',2,'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa','delays','Partition 1','hourly','2026-11-23 01:53:46.356225','2026-11-23 01:54:03.236383',2,'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/route/snapshots/1700000000001-00000000000000aa','weather','Partition 0','route','2026-11-23 01:53:47.185302','2026-11-23 01:54:04.265480',2,'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/route/snapshots/1700000000002-00000000000000aa','weather','Partition 0','route','2026-11-23 01:53:47.204440','2026-11-23 01:54:04.277194',2,'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/hourly/snapshots/1700000000001-00000000000000aa','weather','Partition 0','hourly','2026-11-23 01:53:47.234679','2026-11-23 01:54:04.270000',2,'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/hourly/snapshots/1700000000002-00000000000000aa','weather','Partition 0','hourly','2026-11-23 01:53:47.251383','2026-11-23 01:54:04.284611',2,'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/route/snapshots/1700000000001-00000000000000aa','weather','Partition 1','route','2026-11-23 01:53:47.308826','2026-11-23 01:54:04.263268',2,'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/route/snapshots/1700000000002-00000000000000aa','weather','Partition 1','route','2026-11-23 01:53:47.406244','2026-11-23 01:54:04.275444',2,'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/hourly/snapshots/1700000000001-00000000000000aa','weather','Partition 1','hourly','2026-11-23 01:53:47.516485','2026-11-23 01:54:04.267943',2,'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/hourly/snapshots/1700000000002-00000000000000aa','weather','Partition 1','hourly','2026-11-23 01:53:47.662493','2026-11-23 01:54:04.278266',2,'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_0/hourly/offsets/d5fe8e46-5685-467f-94fe-7399bafacdc3/','weather','Partition 0','hourly','2026-11-23 01:53:48.244372','2026-11-23 01:54:48.244372',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_0/route/offsets/a7d2b913-2a4e-41d1-90c5-2d239feeb51d/','weather','Partition 0','route','2026-11-23 01:53:48.255745','2026-11-23 01:54:48.255745',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_1/hourly/offsets/7709fb98-e2c8-484b-802d-d70516996afa/','weather','Partition 1','hourly','2026-11-23 01:53:48.260095','2026-11-23 01:54:48.260095',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_1/route/offsets/3fe929f8-a137-4305-a25a-dbb7242e5dd1/','weather','Partition 1','route','2026-11-23 01:53:48.262973','2026-11-23 01:54:48.262973',0,'');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/route/snapshots/1700000000003-00000000000000aa','weather','Partition 0','route','2026-11-23 01:53:48.500146','2026-11-23 01:54:05.465074',2,'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa','weather','Partition 0','route','2026-11-23 01:53:48.564760','2026-11-23 01:54:06.233441',2,'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/hourly/snapshots/1700000000003-00000000000000aa','weather','Partition 0','hourly','2026-11-23 01:53:48.776282','2026-11-23 01:54:05.769134',2,'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa','weather','Partition 0','hourly','2026-11-23 01:53:48.800692','2026-11-23 01:54:06.215174',2,'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/route/snapshots/1700000000003-00000000000000aa','weather','Partition 1','route','2026-11-23 01:53:49.070234','2026-11-23 01:54:05.790124',2,'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa','weather','Partition 1','route','2026-11-23 01:53:49.108354','2026-11-23 01:54:06.225265',2,'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/hourly/snapshots/1700000000003-00000000000000aa','weather','Partition 1','hourly','2026-11-23 01:53:49.119587','2026-11-23 01:54:05.782650',2,'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000003-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa','weather','Partition 1','hourly','2026-11-23 01:53:49.139384','2026-11-23 01:54:06.239679',2,'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_0/route/offsets/757aea9f-4be9-495d-8f15-887bd30d1d3b/','weather','Partition 0','route','2026-11-23 01:53:49.527456','2026-11-23 01:54:49.527456',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_0/hourly/offsets/dcf72068-a134-4fe8-9a58-726bd3ae61ce/','weather','Partition 0','hourly','2026-11-23 01:53:49.559080','2026-11-23 01:54:49.559080',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_1/route/offsets/3adf1345-2a2e-4473-939d-1a8871270f96/','weather','Partition 1','route','2026-11-23 01:53:49.598553','2026-11-23 01:54:49.598553',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_1/hourly/offsets/2827a576-adae-4a33-b6b1-46931ca5c889/','weather','Partition 1','hourly','2026-11-23 01:53:49.630999','2026-11-23 01:54:49.630999',0,'');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_0/route/snapshots/1700000000001-00000000000000aa','tolls','Partition 0','route','2026-11-23 01:53:49.732912','2026-11-23 01:53:55.903698',1,'there is no blob jobs/tolls/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa','tolls','Partition 0','route','2026-11-23 01:53:49.781961','2026-11-23 01:53:56.043151',1,'there is no blob jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_0/hourly/snapshots/1700000000001-00000000000000aa','tolls','Partition 0','hourly','2026-11-23 01:53:49.807388','2026-11-23 01:53:56.037930',1,'there is no blob jobs/tolls/Partition_0/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa','tolls','Partition 0','hourly','2026-11-23 01:53:49.855556','2026-11-23 01:53:56.051811',1,'there is no blob jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_1/route/snapshots/1700000000001-00000000000000aa','tolls','Partition 1','route','2026-11-23 01:53:49.887415','2026-11-23 01:53:56.030143',1,'there is no blob jobs/tolls/Partition_1/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa','tolls','Partition 1','route','2026-11-23 01:53:50.033339','2026-11-23 01:53:56.046559',1,'there is no blob jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_1/hourly/snapshots/1700000000001-00000000000000aa','tolls','Partition 1','hourly','2026-11-23 01:53:50.200401','2026-11-23 01:53:56.027337',1,'there is no blob jobs/tolls/Partition_1/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa','tolls','Partition 1','hourly','2026-11-23 01:53:50.254584','2026-11-23 01:53:56.045155',1,'there is no blob jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/tolls/Partition_0/route/offsets/6acb8f62-c2e0-4864-873e-4c2db68bd4bf/','tolls','Partition 0','route','2026-11-23 01:53:50.757535','2026-11-23 01:54:50.757535',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/tolls/Partition_0/hourly/offsets/00e37aa7-edcc-442f-b363-e953a047e9b2/','tolls','Partition 0','hourly','2026-11-23 01:53:50.764099','2026-11-23 01:54:50.764099',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/tolls/Partition_1/route/offsets/fd36747a-a33f-43de-ae38-c7c9eb8f2281/','tolls','Partition 1','route','2026-11-23 01:53:50.768039','2026-11-23 01:54:50.768039',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/tolls/Partition_1/hourly/offsets/4c5e3a34-adbf-4a53-8558-1be55da48392/','tolls','Partition 1','hourly','2026-11-23 01:53:50.772960','2026-11-23 01:54:50.772960',0,'');
INSERT INTO "cleanups" VALUES('keep','local','jobs/ferries/Partition_0/route/snapshots/1700000000001-00000000000000aa','ferries','Partition 0','route','2026-11-23 01:53:54.296357','2026-11-23 01:54:00.362434',1,'there is no blob jobs/ferries/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa','ferries','Partition 0','route','2026-11-23 01:53:54.361342','2026-11-23 01:54:01.007441',1,'there is no blob jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/ferries/Partition_0/hourly/snapshots/1700000000001-00000000000000aa','ferries','Partition 0','hourly','2026-11-23 01:53:54.419376','2026-11-23 01:54:00.486818',1,'there is no blob jobs/ferries/Partition_0/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa','ferries','Partition 0','hourly','2026-11-23 01:53:54.466230','2026-11-23 01:54:01.045473',1,'there is no blob jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/rail/Partition_0/route/snapshots/1700000000001-00000000000000aa','rail','Partition 0','route','2026-11-23 01:53:54.736506','2026-11-23 01:54:01.242029',1,'there is no blob jobs/rail/Partition_0/route/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa','rail','Partition 0','route','2026-11-23 01:53:54.757175','2026-11-23 01:54:01.252201',1,'there is no blob jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/rail/Partition_0/hourly/snapshots/1700000000001-00000000000000aa','rail','Partition 0','hourly','2026-11-23 01:53:54.769393','2026-11-23 01:54:01.244977',1,'there is no blob jobs/rail/Partition_0/hourly/snapshots/1700000000001-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa','rail','Partition 0','hourly','2026-11-23 01:53:54.785021','2026-11-23 01:54:01.254263',1,'there is no blob jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/rail/Partition_0/route/offsets/8ea459a6-8c06-4b56-847b-b6a3e86dfea0/','rail','Partition 0','route','2026-11-23 01:53:55.355246','2026-11-23 01:54:55.355246',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/rail/Partition_0/hourly/offsets/d346b5e0-44cb-4a02-b0ee-a26e1433ab4a/','rail','Partition 0','hourly','2026-11-23 01:53:55.358846','2026-11-23 01:54:55.358846',0,'');
CREATE TABLE condemned (
	blob_store VARCHAR(249) NOT NULL, 
	blob VARCHAR(1000) NOT NULL, 
	size BIGINT NOT NULL, 
	condemned_at DATETIME NOT NULL, 
	CONSTRAINT pk_condemned PRIMARY KEY (blob_store, blob)
);
INSERT INTO "condemned" VALUES('local','jobs/weather/Partition_9/hourly/data/1700000000001-00000000000000ff',6,'2026-11-23 01:53:56.240039');
CREATE TABLE containers (
	execution_id VARCHAR(300) NOT NULL, 
	run_id VARCHAR(300) NOT NULL, 
	job VARCHAR(249) NOT NULL, 
	processor_id VARCHAR(100) NOT NULL, 
	epoch INTEGER NOT NULL, 
	host VARCHAR(300) NOT NULL, 
	bare BOOLEAN NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	registered_at DATETIME NOT NULL, 
	last_seen_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	exit_code INTEGER, 
	reason TEXT NOT NULL, metrics_address VARCHAR(300), model_version INTEGER DEFAULT 0 NOT NULL, adopted_at DATETIME, 
	CONSTRAINT pk_containers PRIMARY KEY (execution_id)
);
INSERT INTO "containers" VALUES('delays-a','delays-20261123T015343-2faed8','delays','0',1,'delays-a.example',0,'EXITED','2026-11-23 01:53:43.966002','2026-11-23 01:53:43.966002','2026-11-23 01:53:44.362927',0,'told to','127.0.0.1:9400',1,'2026-11-23 01:53:43.966002');
INSERT INTO "containers" VALUES('delays-b','delays-20261123T015344-9f0218','delays','0',1,'delays-b.example',0,'REPLACED','2026-11-23 01:53:44.412654','2026-11-23 01:53:44.412654',NULL,NULL,'','127.0.0.1:9400',2,'2026-11-23 01:53:44.412654');
INSERT INTO "containers" VALUES('delays-c','delays-20261123T015344-9f0218','delays','0',2,'delays-c.example',0,'LIVE','2026-11-23 01:53:44.481387','2026-11-23 01:53:44.481387',NULL,NULL,'','127.0.0.1:9400',3,'2026-11-23 01:53:45.803979');
INSERT INTO "containers" VALUES('delays-d','delays-20261123T015344-9f0218','delays','1',1,'delays-d.example',0,'LIVE','2026-11-23 01:53:44.603470','2026-11-23 01:53:44.603470',NULL,NULL,'','127.0.0.1:9400',2,'2026-11-23 01:53:44.603470');
INSERT INTO "containers" VALUES('weather-a','weather-20261123T015347-57078c','weather','0',1,'weather-a.example',0,'EXITED','2026-11-23 01:53:47.113673','2026-11-23 01:53:47.113673','2026-11-23 01:53:48.266081',0,'told to','127.0.0.1:9400',1,'2026-11-23 01:53:47.113673');
INSERT INTO "containers" VALUES('weather-b','weather-20261123T015348-517d1b','weather','0',1,'weather-b.example',0,'LIVE','2026-11-23 01:53:48.411598','2026-11-23 01:53:48.411598',NULL,NULL,'','127.0.0.1:9400',1,'2026-11-23 01:53:48.411598');
INSERT INTO "containers" VALUES('tolls-a','tolls-20261123T015349-2600db','tolls','0',1,'tolls-a.example',0,'LIVE','2026-11-23 01:53:49.449549','2026-11-23 01:53:49.449549',NULL,NULL,'','127.0.0.1:9400',1,'2026-11-23 01:53:49.449549');
INSERT INTO "containers" VALUES('ferries-a','ferries-20261123T015354-8d7e50','ferries','0',1,'ferries-a.example',0,'EXITED','2026-11-23 01:53:54.273061','2026-11-23 01:53:54.273061','2026-11-23 01:53:54.528976',0,'told to','127.0.0.1:9400',1,'2026-11-23 01:53:54.273061');
INSERT INTO "containers" VALUES('rail-a','rail-20261123T015354-910ebd','rail','0',1,'rail-a.example',0,'EXITED','2026-11-23 01:53:54.679500','2026-11-23 01:53:54.679500','2026-11-23 01:53:54.803731',1,'told to','127.0.0.1:9400',1,'2026-11-23 01:53:54.679500');
CREATE TABLE drain_stages (
	drain_id VARCHAR(64) NOT NULL, 
	task VARCHAR(600) NOT NULL, 
	stage VARCHAR(249) NOT NULL, 
	step INTEGER NOT NULL, 
	generation INTEGER, 
	batch_id BIGINT, 
	offsets JSON NOT NULL, 
	pinned VARCHAR(64), 
	committed VARCHAR(64), 
	began_empty BOOLEAN NOT NULL, 
	rows_left BIGINT, 
	operators_left JSON NOT NULL, 
	note TEXT NOT NULL, 
	reported_at DATETIME, 
	CONSTRAINT pk_drain_stages PRIMARY KEY (drain_id, task, stage)
);
INSERT INTO "drain_stages" VALUES('7fb8c7ac-4a5f-4818-978e-41de7d1615f2','Partition 0','route',3,2,40,'[["log", "delays-flights", 0, 400]]','1700000000004-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:46.826722');
INSERT INTO "drain_stages" VALUES('7fb8c7ac-4a5f-4818-978e-41de7d1615f2','Partition 0','hourly',3,2,40,'[["log", "delays-by-carrier", 0, 400]]','1700000000004-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:46.863972');
INSERT INTO "drain_stages" VALUES('7fb8c7ac-4a5f-4818-978e-41de7d1615f2','Partition 1','route',1,2,40,'[["log", "delays-flights", 1, 400]]','1700000000004-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:46.570552');
INSERT INTO "drain_stages" VALUES('7fb8c7ac-4a5f-4818-978e-41de7d1615f2','Partition 1','hourly',1,2,40,'[["log", "delays-by-carrier", 1, 400]]','1700000000004-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:46.786818');
INSERT INTO "drain_stages" VALUES('d000385a-90e8-4971-b615-7095529eae02','Partition 0','route',0,NULL,NULL,'[]',NULL,NULL,0,NULL,'[]','',NULL);
INSERT INTO "drain_stages" VALUES('d000385a-90e8-4971-b615-7095529eae02','Partition 0','hourly',0,NULL,NULL,'[]',NULL,NULL,0,NULL,'[]','',NULL);
INSERT INTO "drain_stages" VALUES('d000385a-90e8-4971-b615-7095529eae02','Partition 1','route',0,NULL,NULL,'[]',NULL,NULL,0,NULL,'[]','',NULL);
INSERT INTO "drain_stages" VALUES('d000385a-90e8-4971-b615-7095529eae02','Partition 1','hourly',0,NULL,NULL,'[]',NULL,NULL,0,NULL,'[]','',NULL);
INSERT INTO "drain_stages" VALUES('a905ebd5-b55d-4d29-94fa-f3db88e8eb31','Partition 0','route',4,1,20,'[["log", "weather-flights", 0, 200]]','1700000000002-123456','1700000000002-123456',0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:48.060899');
INSERT INTO "drain_stages" VALUES('a905ebd5-b55d-4d29-94fa-f3db88e8eb31','Partition 0','hourly',4,1,20,'[["log", "weather-by-carrier", 0, 200]]','1700000000002-123456','1700000000002-123456',0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:48.102063');
INSERT INTO "drain_stages" VALUES('a905ebd5-b55d-4d29-94fa-f3db88e8eb31','Partition 1','route',4,1,20,'[["log", "weather-flights", 1, 200]]','1700000000002-123456','1700000000002-123456',0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:48.087454');
INSERT INTO "drain_stages" VALUES('a905ebd5-b55d-4d29-94fa-f3db88e8eb31','Partition 1','hourly',4,1,20,'[["log", "weather-by-carrier", 1, 200]]','1700000000002-123456','1700000000002-123456',0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:48.111499');
INSERT INTO "drain_stages" VALUES('8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7','Partition 0','route',3,1,20,'[["log", "tolls-flights", 0, 200]]','1700000000002-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:50.589418');
INSERT INTO "drain_stages" VALUES('8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7','Partition 0','hourly',3,1,20,'[["log", "tolls-by-carrier", 0, 200]]','1700000000002-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:50.686826');
INSERT INTO "drain_stages" VALUES('8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7','Partition 1','route',1,1,20,'[["log", "tolls-flights", 1, 200]]','1700000000002-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:50.461025');
INSERT INTO "drain_stages" VALUES('8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7','Partition 1','hourly',1,1,20,'[["log", "tolls-by-carrier", 1, 200]]','1700000000002-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-23 01:53:50.497075');
CREATE TABLE drains (
	drain_id VARCHAR(64) NOT NULL, 
	run_id VARCHAR(300) NOT NULL, 
	job VARCHAR(249) NOT NULL, 
	seq INTEGER NOT NULL, 
	mode VARCHAR(16) NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	model_version INTEGER NOT NULL, 
	requested_at DATETIME NOT NULL, 
	soft FLOAT NOT NULL, 
	hard FLOAT NOT NULL, 
	budgets JSON NOT NULL, 
	pinned JSON NOT NULL, 
	catch_up JSON NOT NULL, 
	drained JSON NOT NULL, 
	stopping_at DATETIME, 
	flushing_at DATETIME, 
	committing_at DATETIME, 
	ended_at DATETIME, 
	reason TEXT NOT NULL, 
	CONSTRAINT pk_drains PRIMARY KEY (drain_id)
);
INSERT INTO "drains" VALUES('7fb8c7ac-4a5f-4818-978e-41de7d1615f2','delays-20261123T015344-9f0218','delays',1,'DEFAULT','FLUSHING',3,'2026-11-23 01:53:46.446681',500000000.0,1000000000.0,'{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}','[["log", "delays-by-carrier", 0, 0], ["log", "delays-by-carrier", 1, 0]]','[]','[]','2026-11-23 01:53:46.446681','2026-11-23 01:53:46.786818',NULL,NULL,'');
INSERT INTO "drains" VALUES('d000385a-90e8-4971-b615-7095529eae02','weather-20261123T015347-57078c','weather',1,'DEFAULT','CANCELLED',1,'2026-11-23 01:53:47.678548',500000000.0,1000000000.0,'{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}','[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0]]','[]','[]','2026-11-23 01:53:47.678548',NULL,NULL,'2026-11-23 01:53:47.696801','cancelled');
INSERT INTO "drains" VALUES('a905ebd5-b55d-4d29-94fa-f3db88e8eb31','weather-20261123T015347-57078c','weather',2,'DEFAULT','DRAINED',1,'2026-11-23 01:53:47.733089',500000000.0,1000000000.0,'{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}','[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0]]','[]','[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0], ["log", "weather-flights", 0, 200], ["log", "weather-flights", 1, 200]]','2026-11-23 01:53:47.733089','2026-11-23 01:53:47.865864','2026-11-23 01:53:48.018063','2026-11-23 01:53:48.111499','');
INSERT INTO "drains" VALUES('8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7','tolls-20261123T015349-2600db','tolls',1,'DEFAULT','FAILED',1,'2026-11-23 01:53:50.300831',1.5,3.0,'{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}','[["log", "tolls-by-carrier", 0, 0], ["log", "tolls-by-carrier", 1, 0]]','[]','[]','2026-11-23 01:53:50.300831','2026-11-23 01:53:50.497075',NULL,'2026-11-23 01:53:53.875035','its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work');
CREATE TABLE holds (
	job VARCHAR(249) NOT NULL, 
	task VARCHAR(600) NOT NULL, 
	run_id VARCHAR(300) NOT NULL, 
	generation INTEGER NOT NULL, 
	holder VARCHAR(300) NOT NULL, 
	released BOOLEAN NOT NULL, 
	acquired_at DATETIME NOT NULL, 
	CONSTRAINT pk_holds PRIMARY KEY (job, task)
);
INSERT INTO "holds" VALUES('delays','Partition 0','delays-20261123T015344-9f0218',2,'delays-c',0,'2026-11-23 01:53:45.810106');
INSERT INTO "holds" VALUES('delays','Partition 1','delays-20261123T015344-9f0218',2,'delays-d',0,'2026-11-23 01:53:46.088318');
INSERT INTO "holds" VALUES('weather','Partition 0','weather-20261123T015348-517d1b',2,'weather-b',0,'2026-11-23 01:53:48.466507');
INSERT INTO "holds" VALUES('weather','Partition 1','weather-20261123T015348-517d1b',2,'weather-b',0,'2026-11-23 01:53:48.915903');
INSERT INTO "holds" VALUES('tolls','Partition 0','tolls-20261123T015349-2600db',1,'tolls-a',0,'2026-11-23 01:53:49.701804');
INSERT INTO "holds" VALUES('tolls','Partition 1','tolls-20261123T015349-2600db',1,'tolls-a',0,'2026-11-23 01:53:49.861480');
INSERT INTO "holds" VALUES('ferries','Partition 0','ferries-20261123T015354-8d7e50',1,'ferries-a',1,'2026-11-23 01:53:54.287063');
INSERT INTO "holds" VALUES('rail','Partition 0','rail-20261123T015354-910ebd',1,'rail-a',1,'2026-11-23 01:53:54.695177');
CREATE TABLE job_models (
	job VARCHAR(249) NOT NULL, 
	version INTEGER NOT NULL, 
	run_id VARCHAR(300) NOT NULL, 
	document TEXT NOT NULL, 
	content_hash VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	why TEXT NOT NULL, who VARCHAR(200) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_job_models PRIMARY KEY (job, version)
);
INSERT INTO "job_models" VALUES('delays',1,'delays-20261123T015343-2faed8','{"config":{"job.container.count":"1","job.name":"delays","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','f82e84b3caa81a69baef5098a77581379cafe2897f8d2d66ebf91aa30b7ccae5','2026-11-23 01:53:43.949341','run delays-20261123T015343-2faed8 was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('delays',2,'delays-20261123T015344-9f0218','{"config":{"job.container.count":"2","job.name":"delays","standby.replicas":"1","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"}}},"1":{"processor-id":"1","tasks":{"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','511448eb15b8506ce9618907b1e8d9f171731cc8160cf5f4ec45a632ad7b8c79','2026-11-23 01:53:44.328743','run delays-20261123T015344-9f0218 was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('delays',3,'delays-20261123T015344-9f0218','{"config":{"job.container.count":"2","job.name":"delays","standby.replicas":"1","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1},{"system":"log","partition":2,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"}}},"1":{"processor-id":"1","tasks":{"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1},{"system":"log","partition":3,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','ed95ce8764130b1e27b1a23ec3b09deafc527a18d7e193094775e86ce1cb9aac','2026-11-23 01:53:45.585620','log.delays-flights grew from 2 to 4 partitions','partition monitor');
INSERT INTO "job_models" VALUES('weather',1,'weather-20261123T015347-57078c','{"config":{"job.container.count":"1","job.name":"weather","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"weather-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"weather-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"weather-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"weather-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','e0e0faccbd6fd3cf8e346eb91d7c42b929b78c26627e1fc11aa93b19b16da2a9','2026-11-23 01:53:47.000281','run weather-20261123T015347-57078c was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('tolls',1,'tolls-20261123T015349-2600db','{"config":{"job.container.count":"1","job.name":"tolls","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"tolls-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"tolls-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"tolls-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"tolls-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','61a79c873084b07ce7e2a9b4eac2de155fd59f271f0b6d77ee202c4e95dc5922','2026-11-23 01:53:49.287422','run tolls-20261123T015349-2600db was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('ferries',1,'ferries-20261123T015354-8d7e50','{"config":{"job.container.count":"1","job.name":"ferries","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"ferries-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"ferries-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"ferries-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"ferries-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','33477fcf9ddf37d5d4839a965e5173dfc20249aeff69d23836e89f3812e76716','2026-11-23 01:53:54.252373','run ferries-20261123T015354-8d7e50 was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('rail',1,'rail-20261123T015354-910ebd','{"config":{"job.container.count":"1","job.name":"rail","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"rail-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"rail-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"rail-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"rail-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','87ba2f1918bf7f557b7b89677d253a8dedadf054a160b8fc2761eae5dd73688e','2026-11-23 01:53:54.668069','run rail-20261123T015354-910ebd was deployed','operator@example.com');
CREATE TABLE jobs (
	job VARCHAR(249) NOT NULL, 
	current_run VARCHAR(300) NOT NULL, 
	grouping TEXT NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (job)
);
INSERT INTO "jobs" VALUES('delays','delays-20261123T015344-9f0218','GroupByPartition');
INSERT INTO "jobs" VALUES('weather','weather-20261123T015348-517d1b','GroupByPartition');
INSERT INTO "jobs" VALUES('tolls','tolls-20261123T015349-2600db','GroupByPartition');
INSERT INTO "jobs" VALUES('ferries','ferries-20261123T015354-d70afb','GroupByPartition');
INSERT INTO "jobs" VALUES('rail','rail-20261123T015354-910ebd','GroupByPartition');
CREATE TABLE notices (
	run_id VARCHAR(300) NOT NULL, 
	seq INTEGER NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	at DATETIME NOT NULL, 
	detail JSON NOT NULL, 
	CONSTRAINT pk_notices PRIMARY KEY (run_id, seq)
);
INSERT INTO "notices" VALUES('delays-20261123T015343-2faed8',1,'STOP','2026-11-23 01:53:44.328743','{"reason": "replaced by run delays-20261123T015344-9f0218"}');
INSERT INTO "notices" VALUES('delays-20261123T015343-2faed8',2,'ENDED','2026-11-23 01:53:44.374395','{"state": "STOPPED", "reason": "replaced by run delays-20261123T015344-9f0218"}');
INSERT INTO "notices" VALUES('delays-20261123T015344-9f0218',1,'MODEL','2026-11-23 01:53:45.585620','{"version": 3, "containers": 2, "why": "log.delays-flights grew from 2 to 4 partitions"}');
INSERT INTO "notices" VALUES('delays-20261123T015344-9f0218',2,'DRAIN','2026-11-23 01:53:46.446681','{"uuid": "7fb8c7ac-4a5f-4818-978e-41de7d1615f2", "phase": "REQUESTED"}');
INSERT INTO "notices" VALUES('delays-20261123T015344-9f0218',3,'DRAIN','2026-11-23 01:53:46.446681','{"uuid": "7fb8c7ac-4a5f-4818-978e-41de7d1615f2", "phase": "STOPPING"}');
INSERT INTO "notices" VALUES('delays-20261123T015344-9f0218',4,'DRAIN','2026-11-23 01:53:46.786818','{"uuid": "7fb8c7ac-4a5f-4818-978e-41de7d1615f2", "phase": "FLUSHING"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',1,'DRAIN','2026-11-23 01:53:47.678548','{"uuid": "d000385a-90e8-4971-b615-7095529eae02", "phase": "REQUESTED"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',2,'DRAIN','2026-11-23 01:53:47.678548','{"uuid": "d000385a-90e8-4971-b615-7095529eae02", "phase": "STOPPING"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',3,'DRAIN','2026-11-23 01:53:47.696801','{"uuid": "d000385a-90e8-4971-b615-7095529eae02", "phase": "CANCELLED", "reason": "cancelled"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',4,'DRAIN','2026-11-23 01:53:47.733089','{"uuid": "a905ebd5-b55d-4d29-94fa-f3db88e8eb31", "phase": "REQUESTED"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',5,'DRAIN','2026-11-23 01:53:47.733089','{"uuid": "a905ebd5-b55d-4d29-94fa-f3db88e8eb31", "phase": "STOPPING"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',6,'DRAIN','2026-11-23 01:53:47.865864','{"uuid": "a905ebd5-b55d-4d29-94fa-f3db88e8eb31", "phase": "FLUSHING"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',7,'DRAIN','2026-11-23 01:53:47.938920','{"uuid": "a905ebd5-b55d-4d29-94fa-f3db88e8eb31", "phase": "FLUSHING"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',8,'DRAIN','2026-11-23 01:53:48.018063','{"uuid": "a905ebd5-b55d-4d29-94fa-f3db88e8eb31", "phase": "COMMITTING"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',9,'DRAIN','2026-11-23 01:53:48.111499','{"uuid": "a905ebd5-b55d-4d29-94fa-f3db88e8eb31", "phase": "DRAINED"}');
INSERT INTO "notices" VALUES('weather-20261123T015347-57078c',10,'ENDED','2026-11-23 01:53:48.111499','{"state": "DRAINED", "reason": "drained: a905ebd5-b55d-4d29-94fa-f3db88e8eb31"}');
INSERT INTO "notices" VALUES('tolls-20261123T015349-2600db',1,'DRAIN','2026-11-23 01:53:50.300831','{"uuid": "8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7", "phase": "REQUESTED"}');
INSERT INTO "notices" VALUES('tolls-20261123T015349-2600db',2,'DRAIN','2026-11-23 01:53:50.300831','{"uuid": "8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7", "phase": "STOPPING"}');
INSERT INTO "notices" VALUES('tolls-20261123T015349-2600db',3,'DRAIN','2026-11-23 01:53:50.497075','{"uuid": "8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7", "phase": "FLUSHING"}');
INSERT INTO "notices" VALUES('tolls-20261123T015349-2600db',4,'DRAIN','2026-11-23 01:53:53.875035','{"uuid": "8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7", "phase": "FAILED", "reason": "its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work"}');
INSERT INTO "notices" VALUES('tolls-20261123T015349-2600db',5,'STOP','2026-11-23 01:53:53.875035','{"reason": "the drain 8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7 failed: its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work"}');
INSERT INTO "notices" VALUES('ferries-20261123T015354-8d7e50',1,'STOP','2026-11-23 01:53:54.481321','{"reason": "the season is over"}');
INSERT INTO "notices" VALUES('ferries-20261123T015354-8d7e50',2,'ENDED','2026-11-23 01:53:54.530529','{"state": "STOPPED", "reason": "the season is over"}');
INSERT INTO "notices" VALUES('rail-20261123T015354-910ebd',1,'STOP','2026-11-23 01:53:54.791261','{"reason": "derailed"}');
INSERT INTO "notices" VALUES('rail-20261123T015354-910ebd',2,'ENDED','2026-11-23 01:53:54.805463','{"state": "FAILED", "reason": "derailed"}');
CREATE TABLE pins (
	pin_id VARCHAR(100) NOT NULL, 
	job VARCHAR(249) NOT NULL, 
	task VARCHAR(600) NOT NULL, 
	stage VARCHAR(249) NOT NULL, 
	checkpoint VARCHAR(64) NOT NULL, 
	reason TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME, 
	CONSTRAINT pk_pins PRIMARY KEY (pin_id, job, task, stage)
);
INSERT INTO "pins" VALUES('before-the-audit','delays','Partition 0','hourly','1700000000004-123456','the auditors','2026-11-23 01:53:46.378074','2058-08-01 03:40:26.378074');
INSERT INTO "pins" VALUES('drain-7fb8c7ac-4a5f-4818-978e-41de7d1615f2','delays','Partition 0','route','1700000000004-123456','to go back to if the drain fails','2026-11-23 01:53:46.512909',NULL);
INSERT INTO "pins" VALUES('drain-7fb8c7ac-4a5f-4818-978e-41de7d1615f2','delays','Partition 1','route','1700000000004-123456','to go back to if the drain fails','2026-11-23 01:53:46.570552',NULL);
INSERT INTO "pins" VALUES('drain-7fb8c7ac-4a5f-4818-978e-41de7d1615f2','delays','Partition 0','hourly','1700000000004-123456','to go back to if the drain fails','2026-11-23 01:53:46.718987',NULL);
INSERT INTO "pins" VALUES('drain-7fb8c7ac-4a5f-4818-978e-41de7d1615f2','delays','Partition 1','hourly','1700000000004-123456','to go back to if the drain fails','2026-11-23 01:53:46.786818',NULL);
INSERT INTO "pins" VALUES('drain-8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7','tolls','Partition 0','route','1700000000002-123456','to go back to if the drain fails','2026-11-23 01:53:50.452082','2026-12-23 01:53:53.875035');
INSERT INTO "pins" VALUES('drain-8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7','tolls','Partition 1','route','1700000000002-123456','to go back to if the drain fails','2026-11-23 01:53:50.461025','2026-12-23 01:53:53.875035');
INSERT INTO "pins" VALUES('drain-8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7','tolls','Partition 0','hourly','1700000000002-123456','to go back to if the drain fails','2026-11-23 01:53:50.473662','2026-12-23 01:53:53.875035');
INSERT INTO "pins" VALUES('drain-8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7','tolls','Partition 1','hourly','1700000000002-123456','to go back to if the drain fails','2026-11-23 01:53:50.497075','2026-12-23 01:53:53.875035');
CREATE TABLE registries (
	blob_store VARCHAR(249) NOT NULL, 
	registry VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_registries PRIMARY KEY (blob_store)
);
INSERT INTO "registries" VALUES('local','76dac5eb6c784517a9c2438c0e28f05d');
CREATE TABLE runs (
	run_id VARCHAR(300) NOT NULL, 
	job VARCHAR(249) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	origin VARCHAR(300) NOT NULL, 
	spec JSON NOT NULL, 
	streams JSON NOT NULL, 
	model_version INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	started_at DATETIME, 
	stop_requested_at DATETIME, 
	ended_at DATETIME, 
	reason TEXT NOT NULL, 
	failing BOOLEAN NOT NULL, backup JSON, 
	CONSTRAINT pk_runs PRIMARY KEY (run_id)
);
INSERT INTO "runs" VALUES('delays-20261123T015343-2faed8','delays','STOPPED','delays-20261123T015343-2faed8','{"job": "delays", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "delays-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "delays-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "delays-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "delays-flights", "partitions": 2, "broadcast": false, "identity": "0d83acd3-41d5-42f3-9391-e63093334f72"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "delays-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "delays-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-23 01:53:43.949341','2026-11-23 01:53:43.966002','2026-11-23 01:53:44.328743','2026-11-23 01:53:44.374395','replaced by run delays-20261123T015344-9f0218',0,NULL);
INSERT INTO "runs" VALUES('delays-20261123T015344-9f0218','delays','DRAINING','delays-20261123T015343-2faed8','{"job": "delays", "containers": 2, "inputs": [{"name": "flights", "system": "log", "stream": "delays-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "delays-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "delays-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich", "standby.replicas": "1"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "delays-flights", "partitions": 4, "broadcast": false, "identity": "0d83acd3-41d5-42f3-9391-e63093334f72"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "delays-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "delays-delays", "partitions": 1, "broadcast": false, "identity": null}]',3,'2026-11-23 01:53:44.328743','2026-11-23 01:53:44.412654',NULL,NULL,'',0,NULL);
INSERT INTO "runs" VALUES('weather-20261123T015347-57078c','weather','DRAINED','weather-20261123T015347-57078c','{"job": "weather", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "weather-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "weather-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "weather-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "weather-flights", "partitions": 2, "broadcast": false, "identity": "7965914c-1aec-45b7-bd36-80a8ea9637c5"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "weather-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "weather-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-23 01:53:47.000281','2026-11-23 01:53:47.113673',NULL,'2026-11-23 01:53:48.111499','drained: a905ebd5-b55d-4d29-94fa-f3db88e8eb31',0,NULL);
INSERT INTO "runs" VALUES('weather-20261123T015348-517d1b','weather','RUNNING','weather-20261123T015348-517d1b','{"job": "weather", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "weather-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "weather-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "weather-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "drained", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "weather-flights", "partitions": 2, "broadcast": false, "identity": "7965914c-1aec-45b7-bd36-80a8ea9637c5"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "weather-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "weather-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-23 01:53:48.326479','2026-11-23 01:53:48.411598',NULL,NULL,'',0,NULL);
INSERT INTO "runs" VALUES('tolls-20261123T015349-2600db','tolls','RUNNING','tolls-20261123T015349-2600db','{"job": "tolls", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "tolls-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "tolls-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "tolls-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "tolls-flights", "partitions": 2, "broadcast": false, "identity": "048b8d9c-6cb6-4c3a-b11a-6a1f50a828a6"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "tolls-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "tolls-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-23 01:53:49.287422','2026-11-23 01:53:49.449549','2026-11-23 01:53:53.875035',NULL,'the drain 8f41d9e6-869d-4ccf-8a2e-834ea5c53bf7 failed: its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work',0,NULL);
INSERT INTO "runs" VALUES('ferries-20261123T015354-8d7e50','ferries','STOPPED','ferries-20261123T015354-8d7e50','{"job": "ferries", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "ferries-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "ferries-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "ferries-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "ferries-flights", "partitions": 2, "broadcast": false, "identity": "2dcb3308-18e8-4414-81b1-f08afd4e1e64"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "ferries-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "ferries-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-23 01:53:54.252373','2026-11-23 01:53:54.273061','2026-11-23 01:53:54.481321','2026-11-23 01:53:54.530529','the season is over',0,NULL);
INSERT INTO "runs" VALUES('rail-20261123T015354-910ebd','rail','FAILED','rail-20261123T015354-910ebd','{"job": "rail", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "rail-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "rail-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "rail-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "rail-flights", "partitions": 2, "broadcast": false, "identity": "fa1fe4a0-932e-4a48-9dd5-9eebcb16987b"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "rail-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "rail-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-23 01:53:54.668069','2026-11-23 01:53:54.679500','2026-11-23 01:53:54.791261','2026-11-23 01:53:54.805463','derailed',1,NULL);
INSERT INTO "runs" VALUES('ferries-20261123T015354-d70afb','ferries','CREATED','ferries-20261123T015354-d70afb','{"job": "ferries", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "ferries-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "ferries-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "ferries-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "earliest", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "ferries-flights", "partitions": 2, "broadcast": false, "identity": "2dcb3308-18e8-4414-81b1-f08afd4e1e64"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "ferries-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "ferries-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-23 01:53:54.825837',NULL,NULL,NULL,'',0,NULL);
CREATE TABLE snapshots (
	job VARCHAR(249) NOT NULL, 
	seq BIGINT NOT NULL, 
	task VARCHAR(600) NOT NULL, 
	stage VARCHAR(249) NOT NULL, 
	checkpoint VARCHAR(64) NOT NULL, 
	lineage VARCHAR(100) NOT NULL, 
	batch_id BIGINT, 
	generation INTEGER NOT NULL, 
	run_id VARCHAR(300) NOT NULL, 
	reported_at DATETIME NOT NULL, 
	offsets JSON NOT NULL, 
	markers JSON NOT NULL, 
	CONSTRAINT pk_snapshots PRIMARY KEY (job, seq)
);
INSERT INTO "snapshots" VALUES('delays',1,'Partition 0','route','1700000000001-123456','efe73915-379b-48cc-ac2f-ac1986c97ba8',10,1,'delays-20261123T015343-2faed8','2026-11-23 01:53:44.015624','[["log", "delays-flights", 0, 100]]','{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',2,'Partition 0','route','1700000000002-123456','efe73915-379b-48cc-ac2f-ac1986c97ba8',20,1,'delays-20261123T015343-2faed8','2026-11-23 01:53:44.033925','[["log", "delays-flights", 0, 200]]','{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',3,'Partition 0','hourly','1700000000001-123456','d9ef13e9-1ce5-4c20-b7f4-1898757d7381',10,1,'delays-20261123T015343-2faed8','2026-11-23 01:53:44.045268','[["log", "delays-by-carrier", 0, 100]]','{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',4,'Partition 0','hourly','1700000000002-123456','d9ef13e9-1ce5-4c20-b7f4-1898757d7381',20,1,'delays-20261123T015343-2faed8','2026-11-23 01:53:44.082409','[["log", "delays-by-carrier", 0, 200]]','{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',5,'Partition 1','route','1700000000001-123456','09996634-bb20-4186-95f2-8e9151828102',10,1,'delays-20261123T015343-2faed8','2026-11-23 01:53:44.173705','[["log", "delays-flights", 1, 100]]','{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',6,'Partition 1','route','1700000000002-123456','09996634-bb20-4186-95f2-8e9151828102',20,1,'delays-20261123T015343-2faed8','2026-11-23 01:53:44.229033','[["log", "delays-flights", 1, 200]]','{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',7,'Partition 1','hourly','1700000000001-123456','2db8b7be-225d-466c-aba2-44e99bf887eb',10,1,'delays-20261123T015343-2faed8','2026-11-23 01:53:44.256202','[["log", "delays-by-carrier", 1, 100]]','{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',8,'Partition 1','hourly','1700000000002-123456','2db8b7be-225d-466c-aba2-44e99bf887eb',20,1,'delays-20261123T015343-2faed8','2026-11-23 01:53:44.309128','[["log", "delays-by-carrier", 1, 200]]','{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',9,'Partition 0','route','1700000000003-123456','efe73915-379b-48cc-ac2f-ac1986c97ba8',30,2,'delays-20261123T015344-9f0218','2026-11-23 01:53:45.903413','[["log", "delays-flights", 0, 300]]','{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',10,'Partition 0','route','1700000000004-123456','efe73915-379b-48cc-ac2f-ac1986c97ba8',40,2,'delays-20261123T015344-9f0218','2026-11-23 01:53:45.960730','[["log", "delays-flights", 0, 400]]','{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',11,'Partition 0','hourly','1700000000003-123456','d9ef13e9-1ce5-4c20-b7f4-1898757d7381',30,2,'delays-20261123T015344-9f0218','2026-11-23 01:53:45.976408','[["log", "delays-by-carrier", 0, 300]]','{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',12,'Partition 0','hourly','1700000000004-123456','d9ef13e9-1ce5-4c20-b7f4-1898757d7381',40,2,'delays-20261123T015344-9f0218','2026-11-23 01:53:46.062619','[["log", "delays-by-carrier", 0, 400]]','{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',13,'Partition 1','route','1700000000003-123456','09996634-bb20-4186-95f2-8e9151828102',30,2,'delays-20261123T015344-9f0218','2026-11-23 01:53:46.126759','[["log", "delays-flights", 1, 300]]','{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',14,'Partition 1','route','1700000000004-123456','09996634-bb20-4186-95f2-8e9151828102',40,2,'delays-20261123T015344-9f0218','2026-11-23 01:53:46.242625','[["log", "delays-flights", 1, 400]]','{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',15,'Partition 1','hourly','1700000000003-123456','2db8b7be-225d-466c-aba2-44e99bf887eb',30,2,'delays-20261123T015344-9f0218','2026-11-23 01:53:46.286705','[["log", "delays-by-carrier", 1, 300]]','{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',16,'Partition 1','hourly','1700000000004-123456','2db8b7be-225d-466c-aba2-44e99bf887eb',40,2,'delays-20261123T015344-9f0218','2026-11-23 01:53:46.356225','[["log", "delays-by-carrier", 1, 400]]','{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',1,'Partition 0','route','1700000000001-123456','a7d2b913-2a4e-41d1-90c5-2d239feeb51d',10,1,'weather-20261123T015347-57078c','2026-11-23 01:53:47.185302','[["log", "weather-flights", 0, 100]]','{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',2,'Partition 0','route','1700000000002-123456','a7d2b913-2a4e-41d1-90c5-2d239feeb51d',20,1,'weather-20261123T015347-57078c','2026-11-23 01:53:47.204440','[["log", "weather-flights", 0, 200]]','{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',3,'Partition 0','hourly','1700000000001-123456','d5fe8e46-5685-467f-94fe-7399bafacdc3',10,1,'weather-20261123T015347-57078c','2026-11-23 01:53:47.234679','[["log", "weather-by-carrier", 0, 100]]','{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',4,'Partition 0','hourly','1700000000002-123456','d5fe8e46-5685-467f-94fe-7399bafacdc3',20,1,'weather-20261123T015347-57078c','2026-11-23 01:53:47.251383','[["log", "weather-by-carrier", 0, 200]]','{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',5,'Partition 1','route','1700000000001-123456','3fe929f8-a137-4305-a25a-dbb7242e5dd1',10,1,'weather-20261123T015347-57078c','2026-11-23 01:53:47.308826','[["log", "weather-flights", 1, 100]]','{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',6,'Partition 1','route','1700000000002-123456','3fe929f8-a137-4305-a25a-dbb7242e5dd1',20,1,'weather-20261123T015347-57078c','2026-11-23 01:53:47.406244','[["log", "weather-flights", 1, 200]]','{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',7,'Partition 1','hourly','1700000000001-123456','7709fb98-e2c8-484b-802d-d70516996afa',10,1,'weather-20261123T015347-57078c','2026-11-23 01:53:47.516485','[["log", "weather-by-carrier", 1, 100]]','{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',8,'Partition 1','hourly','1700000000002-123456','7709fb98-e2c8-484b-802d-d70516996afa',20,1,'weather-20261123T015347-57078c','2026-11-23 01:53:47.662493','[["log", "weather-by-carrier", 1, 200]]','{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',9,'Partition 0','route','1700000000003-123456','757aea9f-4be9-495d-8f15-887bd30d1d3b',30,2,'weather-20261123T015348-517d1b','2026-11-23 01:53:48.500146','[["log", "weather-flights", 0, 300]]','{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',10,'Partition 0','route','1700000000004-123456','757aea9f-4be9-495d-8f15-887bd30d1d3b',40,2,'weather-20261123T015348-517d1b','2026-11-23 01:53:48.564760','[["log", "weather-flights", 0, 400]]','{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',11,'Partition 0','hourly','1700000000003-123456','dcf72068-a134-4fe8-9a58-726bd3ae61ce',30,2,'weather-20261123T015348-517d1b','2026-11-23 01:53:48.776282','[["log", "weather-by-carrier", 0, 300]]','{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',12,'Partition 0','hourly','1700000000004-123456','dcf72068-a134-4fe8-9a58-726bd3ae61ce',40,2,'weather-20261123T015348-517d1b','2026-11-23 01:53:48.800692','[["log", "weather-by-carrier", 0, 400]]','{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',13,'Partition 1','route','1700000000003-123456','3adf1345-2a2e-4473-939d-1a8871270f96',30,2,'weather-20261123T015348-517d1b','2026-11-23 01:53:49.070234','[["log", "weather-flights", 1, 300]]','{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',14,'Partition 1','route','1700000000004-123456','3adf1345-2a2e-4473-939d-1a8871270f96',40,2,'weather-20261123T015348-517d1b','2026-11-23 01:53:49.108354','[["log", "weather-flights", 1, 400]]','{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',15,'Partition 1','hourly','1700000000003-123456','2827a576-adae-4a33-b6b1-46931ca5c889',30,2,'weather-20261123T015348-517d1b','2026-11-23 01:53:49.119587','[["log", "weather-by-carrier", 1, 300]]','{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',16,'Partition 1','hourly','1700000000004-123456','2827a576-adae-4a33-b6b1-46931ca5c889',40,2,'weather-20261123T015348-517d1b','2026-11-23 01:53:49.139384','[["log", "weather-by-carrier", 1, 400]]','{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',1,'Partition 0','route','1700000000001-123456','6acb8f62-c2e0-4864-873e-4c2db68bd4bf',10,1,'tolls-20261123T015349-2600db','2026-11-23 01:53:49.732912','[["log", "tolls-flights", 0, 100]]','{"local": {"index": "jobs/tolls/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',2,'Partition 0','route','1700000000002-123456','6acb8f62-c2e0-4864-873e-4c2db68bd4bf',20,1,'tolls-20261123T015349-2600db','2026-11-23 01:53:49.781961','[["log", "tolls-flights", 0, 200]]','{"local": {"index": "jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',3,'Partition 0','hourly','1700000000001-123456','00e37aa7-edcc-442f-b363-e953a047e9b2',10,1,'tolls-20261123T015349-2600db','2026-11-23 01:53:49.807388','[["log", "tolls-by-carrier", 0, 100]]','{"local": {"index": "jobs/tolls/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',4,'Partition 0','hourly','1700000000002-123456','00e37aa7-edcc-442f-b363-e953a047e9b2',20,1,'tolls-20261123T015349-2600db','2026-11-23 01:53:49.855556','[["log", "tolls-by-carrier", 0, 200]]','{"local": {"index": "jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',5,'Partition 1','route','1700000000001-123456','fd36747a-a33f-43de-ae38-c7c9eb8f2281',10,1,'tolls-20261123T015349-2600db','2026-11-23 01:53:49.887415','[["log", "tolls-flights", 1, 100]]','{"local": {"index": "jobs/tolls/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',6,'Partition 1','route','1700000000002-123456','fd36747a-a33f-43de-ae38-c7c9eb8f2281',20,1,'tolls-20261123T015349-2600db','2026-11-23 01:53:50.033339','[["log", "tolls-flights", 1, 200]]','{"local": {"index": "jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',7,'Partition 1','hourly','1700000000001-123456','4c5e3a34-adbf-4a53-8558-1be55da48392',10,1,'tolls-20261123T015349-2600db','2026-11-23 01:53:50.200401','[["log", "tolls-by-carrier", 1, 100]]','{"local": {"index": "jobs/tolls/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',8,'Partition 1','hourly','1700000000002-123456','4c5e3a34-adbf-4a53-8558-1be55da48392',20,1,'tolls-20261123T015349-2600db','2026-11-23 01:53:50.254584','[["log", "tolls-by-carrier", 1, 200]]','{"local": {"index": "jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('ferries',1,'Partition 0','route','1700000000001-123456','0cb3c0ce-9e55-426f-9759-6e1ddb804d79',10,1,'ferries-20261123T015354-8d7e50','2026-11-23 01:53:54.296357','[["log", "ferries-flights", 0, 100]]','{"local": {"index": "jobs/ferries/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('ferries',2,'Partition 0','route','1700000000002-123456','0cb3c0ce-9e55-426f-9759-6e1ddb804d79',20,1,'ferries-20261123T015354-8d7e50','2026-11-23 01:53:54.361342','[["log", "ferries-flights", 0, 200]]','{"local": {"index": "jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('ferries',3,'Partition 0','hourly','1700000000001-123456','02d5957e-eeeb-4e6e-9b68-97e72a0e747e',10,1,'ferries-20261123T015354-8d7e50','2026-11-23 01:53:54.419376','[["log", "ferries-by-carrier", 0, 100]]','{"local": {"index": "jobs/ferries/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('ferries',4,'Partition 0','hourly','1700000000002-123456','02d5957e-eeeb-4e6e-9b68-97e72a0e747e',20,1,'ferries-20261123T015354-8d7e50','2026-11-23 01:53:54.466230','[["log", "ferries-by-carrier", 0, 200]]','{"local": {"index": "jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('rail',1,'Partition 0','route','1700000000001-123456','8ea459a6-8c06-4b56-847b-b6a3e86dfea0',10,1,'rail-20261123T015354-910ebd','2026-11-23 01:53:54.736506','[["log", "rail-flights", 0, 100]]','{"local": {"index": "jobs/rail/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('rail',2,'Partition 0','route','1700000000002-123456','8ea459a6-8c06-4b56-847b-b6a3e86dfea0',20,1,'rail-20261123T015354-910ebd','2026-11-23 01:53:54.757175','[["log", "rail-flights", 0, 200]]','{"local": {"index": "jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('rail',3,'Partition 0','hourly','1700000000001-123456','d346b5e0-44cb-4a02-b0ee-a26e1433ab4a',10,1,'rail-20261123T015354-910ebd','2026-11-23 01:53:54.769393','[["log", "rail-by-carrier", 0, 100]]','{"local": {"index": "jobs/rail/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('rail',4,'Partition 0','hourly','1700000000002-123456','d346b5e0-44cb-4a02-b0ee-a26e1433ab4a',20,1,'rail-20261123T015354-910ebd','2026-11-23 01:53:54.785021','[["log", "rail-by-carrier", 0, 200]]','{"local": {"index": "jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
CREATE TABLE starts (
	run_id VARCHAR(300) NOT NULL, 
	system VARCHAR(249) NOT NULL, 
	stream VARCHAR(249) NOT NULL, 
	partition INTEGER NOT NULL, 
	"offset" BIGINT NOT NULL, 
	CONSTRAINT pk_starts PRIMARY KEY (run_id, system, stream, partition)
);
INSERT INTO "starts" VALUES('delays-20261123T015343-2faed8','log','delays-by-carrier',1,0);
INSERT INTO "starts" VALUES('delays-20261123T015343-2faed8','log','delays-by-carrier',0,0);
INSERT INTO "starts" VALUES('delays-20261123T015343-2faed8','log','delays-flights',1,0);
INSERT INTO "starts" VALUES('delays-20261123T015343-2faed8','log','delays-flights',0,0);
INSERT INTO "starts" VALUES('delays-20261123T015344-9f0218','log','delays-by-carrier',1,0);
INSERT INTO "starts" VALUES('delays-20261123T015344-9f0218','log','delays-by-carrier',0,0);
INSERT INTO "starts" VALUES('delays-20261123T015344-9f0218','log','delays-flights',1,0);
INSERT INTO "starts" VALUES('delays-20261123T015344-9f0218','log','delays-flights',0,0);
INSERT INTO "starts" VALUES('delays-20261123T015344-9f0218','log','delays-flights',2,0);
INSERT INTO "starts" VALUES('delays-20261123T015344-9f0218','log','delays-flights',3,0);
INSERT INTO "starts" VALUES('weather-20261123T015347-57078c','log','weather-by-carrier',0,0);
INSERT INTO "starts" VALUES('weather-20261123T015347-57078c','log','weather-by-carrier',1,0);
INSERT INTO "starts" VALUES('weather-20261123T015347-57078c','log','weather-flights',0,0);
INSERT INTO "starts" VALUES('weather-20261123T015347-57078c','log','weather-flights',1,0);
INSERT INTO "starts" VALUES('weather-20261123T015348-517d1b','log','weather-by-carrier',0,0);
INSERT INTO "starts" VALUES('weather-20261123T015348-517d1b','log','weather-by-carrier',1,0);
INSERT INTO "starts" VALUES('weather-20261123T015348-517d1b','log','weather-flights',0,200);
INSERT INTO "starts" VALUES('weather-20261123T015348-517d1b','log','weather-flights',1,200);
INSERT INTO "starts" VALUES('tolls-20261123T015349-2600db','log','tolls-by-carrier',1,0);
INSERT INTO "starts" VALUES('tolls-20261123T015349-2600db','log','tolls-by-carrier',0,0);
INSERT INTO "starts" VALUES('tolls-20261123T015349-2600db','log','tolls-flights',1,0);
INSERT INTO "starts" VALUES('tolls-20261123T015349-2600db','log','tolls-flights',0,0);
INSERT INTO "starts" VALUES('ferries-20261123T015354-8d7e50','log','ferries-by-carrier',0,0);
INSERT INTO "starts" VALUES('ferries-20261123T015354-8d7e50','log','ferries-by-carrier',1,0);
INSERT INTO "starts" VALUES('ferries-20261123T015354-8d7e50','log','ferries-flights',1,0);
INSERT INTO "starts" VALUES('ferries-20261123T015354-8d7e50','log','ferries-flights',0,0);
INSERT INTO "starts" VALUES('rail-20261123T015354-910ebd','log','rail-by-carrier',0,0);
INSERT INTO "starts" VALUES('rail-20261123T015354-910ebd','log','rail-by-carrier',1,0);
INSERT INTO "starts" VALUES('rail-20261123T015354-910ebd','log','rail-flights',1,0);
INSERT INTO "starts" VALUES('rail-20261123T015354-910ebd','log','rail-flights',0,0);
INSERT INTO "starts" VALUES('ferries-20261123T015354-d70afb','log','ferries-by-carrier',0,0);
INSERT INTO "starts" VALUES('ferries-20261123T015354-d70afb','log','ferries-by-carrier',1,0);
INSERT INTO "starts" VALUES('ferries-20261123T015354-d70afb','log','ferries-flights',1,0);
INSERT INTO "starts" VALUES('ferries-20261123T015354-d70afb','log','ferries-flights',0,0);
CREATE TABLE stores (
	job VARCHAR(249) NOT NULL, 
	task VARCHAR(600) NOT NULL, 
	stage VARCHAR(249) NOT NULL, 
	lineage VARCHAR(100) NOT NULL, 
	batch_id BIGINT, 
	offsets JSON NOT NULL, 
	generation INTEGER, 
	reported_at DATETIME, head VARCHAR(64), chosen BOOLEAN DEFAULT false NOT NULL, former VARCHAR(100), 
	CONSTRAINT pk_stores PRIMARY KEY (job, task, stage)
);
INSERT INTO "stores" VALUES('delays','Partition 0','route','efe73915-379b-48cc-ac2f-ac1986c97ba8',40,'[["log", "delays-flights", 0, 400]]',2,'2026-11-23 01:53:45.925876','1700000000004-123456',0,NULL);
INSERT INTO "stores" VALUES('delays','Partition 0','hourly','d9ef13e9-1ce5-4c20-b7f4-1898757d7381',40,'[["log", "delays-by-carrier", 0, 400]]',2,'2026-11-23 01:53:46.011240','1700000000004-123456',0,NULL);
INSERT INTO "stores" VALUES('delays','Partition 1','route','09996634-bb20-4186-95f2-8e9151828102',40,'[["log", "delays-flights", 1, 400]]',2,'2026-11-23 01:53:46.174667','1700000000004-123456',0,NULL);
INSERT INTO "stores" VALUES('delays','Partition 1','hourly','2db8b7be-225d-466c-aba2-44e99bf887eb',40,'[["log", "delays-by-carrier", 1, 400]]',2,'2026-11-23 01:53:46.324471','1700000000004-123456',0,NULL);
INSERT INTO "stores" VALUES('weather','Partition 0','route','757aea9f-4be9-495d-8f15-887bd30d1d3b',40,'[["log", "weather-flights", 0, 400]]',2,'2026-11-23 01:53:48.510469','1700000000004-123456',0,NULL);
INSERT INTO "stores" VALUES('weather','Partition 0','hourly','dcf72068-a134-4fe8-9a58-726bd3ae61ce',40,'[["log", "weather-by-carrier", 0, 400]]',2,'2026-11-23 01:53:48.787373','1700000000004-123456',0,NULL);
INSERT INTO "stores" VALUES('weather','Partition 1','route','3adf1345-2a2e-4473-939d-1a8871270f96',40,'[["log", "weather-flights", 1, 400]]',2,'2026-11-23 01:53:49.084023','1700000000004-123456',0,NULL);
INSERT INTO "stores" VALUES('weather','Partition 1','hourly','2827a576-adae-4a33-b6b1-46931ca5c889',40,'[["log", "weather-by-carrier", 1, 400]]',2,'2026-11-23 01:53:49.130168','1700000000004-123456',0,NULL);
INSERT INTO "stores" VALUES('tolls','Partition 0','route','6acb8f62-c2e0-4864-873e-4c2db68bd4bf',20,'[["log", "tolls-flights", 0, 200]]',1,'2026-11-23 01:53:49.746695','1700000000002-123456',1,NULL);
INSERT INTO "stores" VALUES('tolls','Partition 0','hourly','00e37aa7-edcc-442f-b363-e953a047e9b2',20,'[["log", "tolls-by-carrier", 0, 200]]',1,'2026-11-23 01:53:49.839896','1700000000002-123456',1,NULL);
INSERT INTO "stores" VALUES('tolls','Partition 1','route','fd36747a-a33f-43de-ae38-c7c9eb8f2281',20,'[["log", "tolls-flights", 1, 200]]',1,'2026-11-23 01:53:49.960557','1700000000002-123456',1,NULL);
INSERT INTO "stores" VALUES('tolls','Partition 1','hourly','4c5e3a34-adbf-4a53-8558-1be55da48392',20,'[["log", "tolls-by-carrier", 1, 200]]',1,'2026-11-23 01:53:50.212313','1700000000002-123456',1,NULL);
INSERT INTO "stores" VALUES('rail','Partition 0','route','8ea459a6-8c06-4b56-847b-b6a3e86dfea0',20,'[["log", "rail-flights", 0, 200]]',1,'2026-11-23 01:53:54.748162','1700000000002-123456',0,NULL);
INSERT INTO "stores" VALUES('rail','Partition 0','hourly','d346b5e0-44cb-4a02-b0ee-a26e1433ab4a',20,'[["log", "rail-by-carrier", 0, 200]]',1,'2026-11-23 01:53:54.776476','1700000000001-123456',1,NULL);
CREATE TABLE watched_streams (
	job VARCHAR(249) NOT NULL, 
	system VARCHAR(249) NOT NULL, 
	stream VARCHAR(249) NOT NULL, 
	run_id VARCHAR(300) NOT NULL, 
	name VARCHAR(249) NOT NULL, 
	known INTEGER NOT NULL, 
	seen INTEGER, 
	verdict VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	since DATETIME NOT NULL, 
	kept_from INTEGER, 
	CONSTRAINT pk_watched_streams PRIMARY KEY (job, system, stream)
);
INSERT INTO "watched_streams" VALUES('delays','log','delays-flights','delays-20261123T015344-9f0218','flights',4,4,'UNCHANGED','','2026-11-23 01:53:46.727321',NULL);
INSERT INTO "watched_streams" VALUES('weather','log','weather-flights','weather-20261123T015348-517d1b','flights',2,2,'UNCHANGED','','2026-11-23 01:53:48.924401',NULL);
INSERT INTO "watched_streams" VALUES('tolls','log','tolls-flights','tolls-20261123T015349-2600db','flights',2,2,'UNCHANGED','','2026-11-23 01:53:50.200016',NULL);
INSERT INTO "watched_streams" VALUES('ferries','log','ferries-flights','ferries-20261123T015354-d70afb','flights',2,2,'UNCHANGED','','2026-11-23 01:53:55.770566',NULL);
CREATE UNIQUE INDEX uq_containers_slot_epoch ON containers (run_id, processor_id, epoch);
CREATE INDEX ix_holds_holder ON holds (holder);
CREATE INDEX ix_runs_job_age ON runs (job, created_at, run_id);
CREATE INDEX ix_runs_age ON runs (created_at, run_id);
CREATE INDEX ix_runs_active ON runs (created_at, run_id) WHERE ended_at IS NULL;
CREATE INDEX ix_containers_standing ON containers (run_id, execution_id) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX uq_snapshots_checkpoint ON snapshots (job, task, stage, checkpoint);
CREATE INDEX ix_snapshots_store ON snapshots (job, task, stage, seq);
CREATE INDEX ix_snapshots_stage ON snapshots (job, stage, seq);
CREATE INDEX ix_pins_job ON pins (job, pin_id, task, stage);
CREATE INDEX ix_cleanups_due ON cleanups (due_at, kind, blob_store, subject);
CREATE INDEX ix_drains_phase ON drains (phase);
CREATE UNIQUE INDEX uq_drains_job_seq ON drains (job, seq);
CREATE INDEX ix_drains_run ON drains (run_id, seq);
CREATE INDEX ix_drains_active ON drains (job, seq) WHERE ended_at IS NULL;
CREATE INDEX ix_drain_stages_step ON drain_stages (drain_id, step);
COMMIT;
