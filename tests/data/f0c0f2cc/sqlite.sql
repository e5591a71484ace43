BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0022');
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
CREATE TABLE audit_events (
	seq BIGINT NOT NULL, 
	at DATETIME NOT NULL, 
	actor VARCHAR(300) NOT NULL, 
	authenticated BOOLEAN NOT NULL, 
	source VARCHAR(300) NOT NULL, 
	action VARCHAR(300) NOT NULL, 
	subject TEXT NOT NULL, 
	request_id VARCHAR(64) NOT NULL, 
	status INTEGER, 
	reason TEXT NOT NULL, job VARCHAR(300) DEFAULT '' NOT NULL, "before" JSON, "after" JSON, 
	CONSTRAINT pk_audit_events PRIMARY KEY (seq)
);
INSERT INTO "audit_events" VALUES(1,'2026-11-29 22:01:59.028954','',0,'127.0.0.1','POST /runs','/runs','e8d3eaabd1d545ad98ac8d38cd1b6150',201,'','delays','{}','{"run": "delays-20261129T220159-fdc560", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}');
INSERT INTO "audit_events" VALUES(2,'2026-11-29 22:01:59.853793','',0,'127.0.0.1','POST /runs','/runs','c2a4d0330de546439e32bf594560d730',201,'','delays','{"run": "delays-20261129T220159-fdc560", "state": "RUNNING", "containers": "1", "job model version": "1"}','{"run": "delays-20261129T220159-673be8", "state": "CREATED", "containers": "2", "job model version": "2"}');
INSERT INTO "audit_events" VALUES(3,'2026-11-29 22:01:59.992889','',0,'127.0.0.1','POST /containers/{executionContainerId:path}/exit','/containers/delays-a/exit','1fe5da3daef744a59818c69ac5a8438d',200,'','delays','{}','{}');
INSERT INTO "audit_events" VALUES(4,'2026-11-29 22:02:01.421676','',0,'127.0.0.1','POST /jobs/{job}/pins','/jobs/delays/pins','f3f9d3f3a5e243feaabfe062bded2ab3',201,'','delays','{}','{"pin before-the-audit of Partition 0/hourly": "1700000000004-123456"}');
INSERT INTO "audit_events" VALUES(5,'2026-11-29 22:02:01.485694','',0,'127.0.0.1','POST /drain','/drain','6d4eadccd12443bdaabc934d2ce30602',202,'','delays','{"state": "RUNNING"}','{"state": "DRAINING", "drain": "e81696c8-708e-4b48-9220-4cd33642b3d8 STOPPING"}');
INSERT INTO "audit_events" VALUES(6,'2026-11-29 22:02:01.633944','',0,'127.0.0.1','POST /runs','/runs','25b1542c1e3148f0a95dfb4bb55e7e16',201,'','weather','{}','{"run": "weather-20261129T220201-13e53a", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}');
INSERT INTO "audit_events" VALUES(7,'2026-11-29 22:02:02.058829','',0,'127.0.0.1','POST /drain','/drain','3e84b136c647483fbe0d937d207c832c',202,'','weather','{"state": "RUNNING"}','{"state": "DRAINING", "drain": "bc076cdf-fdc8-45ee-8315-17832fd97a89 STOPPING"}');
INSERT INTO "audit_events" VALUES(8,'2026-11-29 22:02:02.465796','',0,'127.0.0.1','DELETE /drain/{uuid}','/drain/bc076cdf-fdc8-45ee-8315-17832fd97a89','80d5659d2b4a4c92a09f141f22f8cd20',200,'','weather','{"state": "DRAINING", "drain": "bc076cdf-fdc8-45ee-8315-17832fd97a89 STOPPING"}','{"state": "RUNNING", "drain": "bc076cdf-fdc8-45ee-8315-17832fd97a89 CANCELLED"}');
INSERT INTO "audit_events" VALUES(9,'2026-11-29 22:02:02.713588','',0,'127.0.0.1','POST /drain','/drain','92d9705896964d7b92591bb9bdc0295e',202,'','weather','{"state": "RUNNING", "drain": "bc076cdf-fdc8-45ee-8315-17832fd97a89 CANCELLED"}','{"state": "DRAINING", "drain": "3822241e-73fb-4046-8515-38b5c7fdac44 STOPPING"}');
INSERT INTO "audit_events" VALUES(10,'2026-11-29 22:02:03.151642','',0,'127.0.0.1','POST /containers/{executionContainerId:path}/exit','/containers/weather-a/exit','6090675ffb43499085e4d1d831521bd5',200,'','weather','{}','{}');
INSERT INTO "audit_events" VALUES(11,'2026-11-29 22:02:03.192548','',0,'127.0.0.1','POST /runs','/runs','d09178a5e14e4b05a32130f8c4aff0c4',201,'','weather','{"run": "weather-20261129T220201-13e53a", "state": "DRAINED", "drain": "3822241e-73fb-4046-8515-38b5c7fdac44 DRAINED"}','{"run": "weather-20261129T220203-d787c4", "state": "CREATED"}');
INSERT INTO "audit_events" VALUES(12,'2026-11-29 22:02:03.391021','',0,'127.0.0.1','POST /runs','/runs','f325f2470b1c4924b406e3938a5c092f',201,'','tolls','{}','{"run": "tolls-20261129T220203-f91325", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}');
INSERT INTO "audit_events" VALUES(13,'2026-11-29 22:02:03.712058','',0,'127.0.0.1','POST /drain','/drain','02294af31eb849c2855940e4e6add40c',202,'','tolls','{"state": "RUNNING"}','{"state": "DRAINING", "drain": "fe926422-1570-4e91-aec7-8472530e450f STOPPING"}');
INSERT INTO "audit_events" VALUES(14,'2026-11-29 22:02:07.425523','',0,'127.0.0.1','POST /runs','/runs','f8d283511fcb48d9a62e041f59716eef',201,'','ferries','{}','{"run": "ferries-20261129T220207-ff029d", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}');
INSERT INTO "audit_events" VALUES(15,'2026-11-29 22:02:08.014393','',0,'127.0.0.1','POST /runs/{runId}/stop','/runs/ferries-20261129T220207-ff029d/stop','d91ad91157d24ac4b8c753b7f9da494a',202,'','ferries','{"stop requested": "no"}','{"stop requested": "yes"}');
INSERT INTO "audit_events" VALUES(16,'2026-11-29 22:02:08.180447','',0,'127.0.0.1','POST /containers/{executionContainerId:path}/exit','/containers/ferries-a/exit','abc1417a6c164eb8a67c7b46e1836714',200,'','ferries','{"state": "RUNNING"}','{"state": "STOPPED"}');
INSERT INTO "audit_events" VALUES(17,'2026-11-29 22:02:08.296975','',0,'127.0.0.1','POST /runs','/runs','4603f7e556b8442fb2c4557f41d85284',201,'','rail','{}','{"run": "rail-20261129T220208-aa4dc3", "state": "CREATED", "containers": "1", "job model version": "1", "stop requested": "no", "backup": "default"}');
INSERT INTO "audit_events" VALUES(18,'2026-11-29 22:02:08.600008','',0,'127.0.0.1','POST /runs/{runId}/stop','/runs/rail-20261129T220208-aa4dc3/stop','48fbaecc69414beb9e931383fd492f4c',202,'','rail','{"stop requested": "no"}','{"stop requested": "yes"}');
INSERT INTO "audit_events" VALUES(19,'2026-11-29 22:02:08.615476','',0,'127.0.0.1','POST /containers/{executionContainerId:path}/exit','/containers/rail-a/exit','7f6104b3bc324abf9c2c60d9019dd5ef',200,'','rail','{"state": "RUNNING"}','{"state": "FAILED"}');
INSERT INTO "audit_events" VALUES(20,'2026-11-29 22:02:08.635147','',0,'127.0.0.1','POST /jobs/{job}/snapshots/{checkpointId}/restore','/jobs/rail/snapshots/1700000000001-123456/restore','a6dcb42c68d44d67a16a8cc270d0cb98',200,'','rail','{}','{"chosen snapshot of Partition 0/hourly": "1700000000001-123456"}');
INSERT INTO "audit_events" VALUES(21,'2026-11-29 22:02:08.674419','',0,'127.0.0.1','POST /runs','/runs','a52f3b26145042c384a6cec2c87b5428',201,'','ferries','{"run": "ferries-20261129T220207-ff029d", "state": "STOPPED", "stop requested": "yes"}','{"run": "ferries-20261129T220208-98da53", "state": "CREATED", "stop requested": "no"}');
INSERT INTO "audit_events" VALUES(22,'2026-11-29 22:02:09.484229','',0,'127.0.0.1','POST /gc/run','/gc/run','2369f21d9591470687fb98c412837a8e',202,'','','{}','{}');
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
CREATE TABLE browser_sessions (
	digest VARCHAR(64) NOT NULL, 
	token_id VARCHAR(32) NOT NULL, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, provider VARCHAR(100) DEFAULT '' NOT NULL, name VARCHAR(200) DEFAULT '' NOT NULL, subject TEXT DEFAULT '' NOT NULL, groups JSON DEFAULT '[]' NOT NULL, 
	CONSTRAINT pk_browser_sessions PRIMARY KEY (digest)
);
CREATE TABLE claims (
	name VARCHAR(16) NOT NULL, 
	holder VARCHAR(300) NOT NULL, term BIGINT DEFAULT 0 NOT NULL, expires_at DATETIME, 
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
INSERT INTO "cleanups" VALUES('offsets','local','jobs/delays/Partition_0/route/offsets/0e3d2d5b-a2a9-4096-a55e-1dcd73ad2875/','delays','Partition 0','route','2026-11-29 22:02:02.100161','2026-11-29 22:02:59.931374',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/delays/Partition_0/hourly/offsets/3392f407-a881-4f7c-8574-b152611aa3c1/','delays','Partition 0','hourly','2026-11-29 22:02:02.110385','2026-11-29 22:02:59.939537',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/delays/Partition_1/route/offsets/1a9e091f-7736-46c3-84b3-ca867511845a/','delays','Partition 1','route','2026-11-29 22:02:02.117735','2026-11-29 22:02:59.943767',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/delays/Partition_1/hourly/offsets/e2d86b41-6ed1-4f61-b119-e6cef8dc4fac/','delays','Partition 1','hourly','2026-11-29 22:02:02.138183','2026-11-29 22:02:59.948230',0,'');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa','delays','Partition 0','route','2026-11-29 22:02:01.170843','2026-11-29 22:02:18.043584',2,'there is no blob jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa','delays','Partition 0','hourly','2026-11-29 22:02:01.207599','2026-11-29 22:02:18.026431',2,'there is no blob jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa','delays','Partition 1','route','2026-11-29 22:02:01.261045','2026-11-29 22:02:18.020743',2,'there is no blob jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa','delays','Partition 1','hourly','2026-11-29 22:02:01.292075','2026-11-29 22:02:18.023586',2,'there is no blob jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_0/route/offsets/9390cd2e-74ec-4d2d-8781-e2f5ca87f842/','weather','Partition 0','route','2026-11-29 22:02:02.149346','2026-11-29 22:03:02.149346',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_0/hourly/offsets/31facb96-7141-4cd0-8655-ea45aedd57a9/','weather','Partition 0','hourly','2026-11-29 22:02:02.161345','2026-11-29 22:03:02.161345',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_1/route/offsets/34976404-ab21-4a36-b771-addb790616da/','weather','Partition 1','route','2026-11-29 22:02:02.170085','2026-11-29 22:03:02.170085',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_1/hourly/offsets/40ee0a49-a069-4f3c-a355-385afc1e82c4/','weather','Partition 1','hourly','2026-11-29 22:02:02.191301','2026-11-29 22:03:02.191301',0,'');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa','weather','Partition 0','route','2026-11-29 22:02:03.289226','2026-11-29 22:02:19.294534',2,'there is no blob jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa','weather','Partition 0','hourly','2026-11-29 22:02:03.317866','2026-11-29 22:02:19.274382',2,'there is no blob jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa','weather','Partition 1','route','2026-11-29 22:02:03.356913','2026-11-29 22:02:19.272405',2,'there is no blob jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa','weather','Partition 1','hourly','2026-11-29 22:02:03.382543','2026-11-29 22:02:19.246704',2,'there is no blob jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa','tolls','Partition 0','route','2026-11-29 22:02:03.482366','2026-11-29 22:02:19.296316',2,'there is no blob jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa','tolls','Partition 0','hourly','2026-11-29 22:02:03.520477','2026-11-29 22:02:19.302438',2,'there is no blob jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa','tolls','Partition 1','route','2026-11-29 22:02:03.599440','2026-11-29 22:02:19.292758',2,'there is no blob jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_0/route/offsets/816e4b21-f87c-48bb-9654-c764d2357545/','weather','Partition 0','route','2026-11-29 22:02:03.626859','2026-11-29 22:03:03.626859',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_0/hourly/offsets/95ca0fcd-6117-4dbf-8c4a-70129b94604e/','weather','Partition 0','hourly','2026-11-29 22:02:03.632997','2026-11-29 22:03:03.632997',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_1/route/offsets/180fb752-9daa-467c-87b1-a487137814b6/','weather','Partition 1','route','2026-11-29 22:02:03.636140','2026-11-29 22:03:03.636140',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/weather/Partition_1/hourly/offsets/c898663b-ca3a-4e36-9046-83ff86399a08/','weather','Partition 1','hourly','2026-11-29 22:02:03.639720','2026-11-29 22:03:03.639720',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/tolls/Partition_0/route/offsets/cdfe0d69-62db-455f-9ce9-c900ca43eb5e/','tolls','Partition 0','route','2026-11-29 22:02:03.642922','2026-11-29 22:03:03.642922',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/tolls/Partition_0/hourly/offsets/feca5c71-7ee3-444d-9ac5-15d107a0e4b0/','tolls','Partition 0','hourly','2026-11-29 22:02:03.645940','2026-11-29 22:03:03.645940',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/tolls/Partition_1/route/offsets/b7997e59-7fe3-4ac3-9538-419edb1447bb/','tolls','Partition 1','route','2026-11-29 22:02:03.649025','2026-11-29 22:03:03.649025',0,'');
INSERT INTO "cleanups" VALUES('keep','local','jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa','tolls','Partition 1','hourly','2026-11-29 22:02:03.699002','2026-11-29 22:02:09.798499',1,'there is no blob jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/tolls/Partition_1/hourly/offsets/23629412-044d-4ac1-9726-d61540994396/','tolls','Partition 1','hourly','2026-11-29 22:02:04.759974','2026-11-29 22:03:04.759974',0,'');
INSERT INTO "cleanups" VALUES('keep','local','jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa','ferries','Partition 0','route','2026-11-29 22:02:07.808035','2026-11-29 22:02:13.137579',1,'there is no blob jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa','ferries','Partition 0','hourly','2026-11-29 22:02:07.950062','2026-11-29 22:02:14.252276',1,'there is no blob jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/ferries/Partition_0/route/offsets/8439ed02-698a-4ee7-bb34-3a0879a1dc43/','ferries','Partition 0','route','2026-11-29 22:02:08.000555','2026-11-29 22:03:08.000555',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/ferries/Partition_0/hourly/offsets/63ae0fed-4192-4d5e-8e4d-dd4a28f37e3f/','ferries','Partition 0','hourly','2026-11-29 22:02:08.012286','2026-11-29 22:03:08.012286',0,'');
INSERT INTO "cleanups" VALUES('keep','local','jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa','rail','Partition 0','route','2026-11-29 22:02:08.482618','2026-11-29 22:02:14.283848',1,'there is no blob jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('keep','local','jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa','rail','Partition 0','hourly','2026-11-29 22:02:08.591229','2026-11-29 22:02:14.281995',1,'there is no blob jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa in /var/lib/sluice/blobs');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/rail/Partition_0/route/offsets/b1dbc22e-c480-4a9f-96ac-f3289593d73b/','rail','Partition 0','route','2026-11-29 22:02:09.199237','2026-11-29 22:03:09.199237',0,'');
INSERT INTO "cleanups" VALUES('offsets','local','jobs/rail/Partition_0/hourly/offsets/fbe68e03-9e8a-43ad-adde-10a413542e49/','rail','Partition 0','hourly','2026-11-29 22:02:09.203619','2026-11-29 22:03:09.203619',0,'');
CREATE TABLE condemned (
	blob_store VARCHAR(249) NOT NULL, 
	blob VARCHAR(1000) NOT NULL, 
	size BIGINT NOT NULL, 
	condemned_at DATETIME NOT NULL, 
	CONSTRAINT pk_condemned PRIMARY KEY (blob_store, blob)
);
INSERT INTO "condemned" VALUES('local','jobs/weather/Partition_9/hourly/data/1700000000001-00000000000000ff',6,'2026-11-29 22:02:09.521435');
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
	reason TEXT NOT NULL, metrics_address VARCHAR(300), model_version INTEGER DEFAULT 0 NOT NULL, adopted_at DATETIME, can_keep_state BOOLEAN DEFAULT false NOT NULL, token VARCHAR(64), principal VARCHAR(200) DEFAULT '' NOT NULL, chose_token BOOLEAN DEFAULT false NOT NULL, 
	CONSTRAINT pk_containers PRIMARY KEY (execution_id)
);
INSERT INTO "containers" VALUES('delays-a','delays-20261129T220159-fdc560','delays','0',1,'delays-a.example',0,'EXITED','2026-11-29 22:01:59.273989','2026-11-29 22:01:59.273989','2026-11-29 22:02:00.015031',0,'told to','127.0.0.1:9400',1,'2026-11-29 22:01:59.273989',0,'dc08865c0fc4de9841a2f013c1451a9c3bf51dad031a52136030999355a0d50f','',0);
INSERT INTO "containers" VALUES('delays-b','delays-20261129T220159-673be8','delays','0',1,'delays-b.example',0,'REPLACED','2026-11-29 22:02:00.030510','2026-11-29 22:02:00.030510',NULL,NULL,'','127.0.0.1:9400',2,'2026-11-29 22:02:00.030510',0,'c0739ada2f38c60f6e6040dbf0af0042167224e50e8ff5de02624dae7bcbde87','',0);
INSERT INTO "containers" VALUES('delays-c','delays-20261129T220159-673be8','delays','0',2,'delays-c.example',0,'LIVE','2026-11-29 22:02:00.040931','2026-11-29 22:02:00.040931',NULL,NULL,'','127.0.0.1:9400',3,'2026-11-29 22:02:01.121959',0,'db16327f0b2fc5b267ea67daaf5a3673a3868fe9358305c1f5a1cded1d98adc8','',0);
INSERT INTO "containers" VALUES('delays-d','delays-20261129T220159-673be8','delays','1',1,'delays-d.example',0,'LIVE','2026-11-29 22:02:00.048202','2026-11-29 22:02:00.048202',NULL,NULL,'','127.0.0.1:9400',2,'2026-11-29 22:02:00.048202',0,'1c0fa270c61827ada0c89e46cd76b3c128266e1e14dd704521e064bfaa022475','',0);
INSERT INTO "containers" VALUES('weather-a','weather-20261129T220201-13e53a','weather','0',1,'weather-a.example',0,'EXITED','2026-11-29 22:02:01.725954','2026-11-29 22:02:01.725954','2026-11-29 22:02:03.157072',0,'told to','127.0.0.1:9400',1,'2026-11-29 22:02:01.725954',0,'9f0ae493f24c139dec555f140d7346e5bcd2e4f7cfe2d12f0c98a908b1a540ff','',0);
INSERT INTO "containers" VALUES('weather-b','weather-20261129T220203-d787c4','weather','0',1,'weather-b.example',0,'LIVE','2026-11-29 22:02:03.242613','2026-11-29 22:02:03.242613',NULL,NULL,'','127.0.0.1:9400',1,'2026-11-29 22:02:03.242613',0,'5e7f4ad5997981827d8710949a201f9a96779f47c2eefb6285498f07a8785a20','',0);
INSERT INTO "containers" VALUES('tolls-a','tolls-20261129T220203-f91325','tolls','0',1,'tolls-a.example',0,'LIVE','2026-11-29 22:02:03.443817','2026-11-29 22:02:03.443817',NULL,NULL,'','127.0.0.1:9400',1,'2026-11-29 22:02:03.443817',0,'3964796398ab9b1679624913558ee264b224da002cceb59d7dc6ae109cd2bc1c','',0);
INSERT INTO "containers" VALUES('ferries-a','ferries-20261129T220207-ff029d','ferries','0',1,'ferries-a.example',0,'EXITED','2026-11-29 22:02:07.614369','2026-11-29 22:02:07.614369','2026-11-29 22:02:08.239428',0,'told to','127.0.0.1:9400',1,'2026-11-29 22:02:07.614369',0,'bfe5de82b37abc373dfec6f6ff9fcc4d79ba1e25ec4391e0e3c6b1f27a906c94','',0);
INSERT INTO "containers" VALUES('rail-a','rail-20261129T220208-aa4dc3','rail','0',1,'rail-a.example',0,'EXITED','2026-11-29 22:02:08.431534','2026-11-29 22:02:08.431534','2026-11-29 22:02:08.618869',1,'told to','127.0.0.1:9400',1,'2026-11-29 22:02:08.431534',0,'ba944014274769ce01567411c51540c6a388e17d2b6dccef712f24ce66c82370','',0);
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
	reported_at DATETIME, lineage VARCHAR(100), operators JSON, 
	CONSTRAINT pk_drain_stages PRIMARY KEY (drain_id, task, stage)
);
INSERT INTO "drain_stages" VALUES('e81696c8-708e-4b48-9220-4cd33642b3d8','Partition 0','route',3,2,40,'[["log", "delays-flights", 0, 400]]','1700000000004-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:01.619764','0e3d2d5b-a2a9-4096-a55e-1dcd73ad2875','null');
INSERT INTO "drain_stages" VALUES('e81696c8-708e-4b48-9220-4cd33642b3d8','Partition 0','hourly',3,2,40,'[["log", "delays-by-carrier", 0, 400]]','1700000000004-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:01.627962','3392f407-a881-4f7c-8574-b152611aa3c1','null');
INSERT INTO "drain_stages" VALUES('e81696c8-708e-4b48-9220-4cd33642b3d8','Partition 1','route',1,2,40,'[["log", "delays-flights", 1, 400]]','1700000000004-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:01.542366','1a9e091f-7736-46c3-84b3-ca867511845a','null');
INSERT INTO "drain_stages" VALUES('e81696c8-708e-4b48-9220-4cd33642b3d8','Partition 1','hourly',1,2,40,'[["log", "delays-by-carrier", 1, 400]]','1700000000004-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:01.563988','e2d86b41-6ed1-4f61-b119-e6cef8dc4fac','null');
INSERT INTO "drain_stages" VALUES('bc076cdf-fdc8-45ee-8315-17832fd97a89','Partition 0','route',0,NULL,NULL,'[]',NULL,NULL,0,NULL,'[]','',NULL,NULL,'null');
INSERT INTO "drain_stages" VALUES('bc076cdf-fdc8-45ee-8315-17832fd97a89','Partition 0','hourly',0,NULL,NULL,'[]',NULL,NULL,0,NULL,'[]','',NULL,NULL,'null');
INSERT INTO "drain_stages" VALUES('bc076cdf-fdc8-45ee-8315-17832fd97a89','Partition 1','route',0,NULL,NULL,'[]',NULL,NULL,0,NULL,'[]','',NULL,NULL,'null');
INSERT INTO "drain_stages" VALUES('bc076cdf-fdc8-45ee-8315-17832fd97a89','Partition 1','hourly',0,NULL,NULL,'[]',NULL,NULL,0,NULL,'[]','',NULL,NULL,'null');
INSERT INTO "drain_stages" VALUES('3822241e-73fb-4046-8515-38b5c7fdac44','Partition 0','route',4,1,20,'[["log", "weather-flights", 0, 200]]','1700000000002-123456','1700000000002-123456',0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:03.063615','9390cd2e-74ec-4d2d-8781-e2f5ca87f842','null');
INSERT INTO "drain_stages" VALUES('3822241e-73fb-4046-8515-38b5c7fdac44','Partition 0','hourly',4,1,20,'[["log", "weather-by-carrier", 0, 200]]','1700000000002-123456','1700000000002-123456',0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:03.081486','31facb96-7141-4cd0-8655-ea45aedd57a9','null');
INSERT INTO "drain_stages" VALUES('3822241e-73fb-4046-8515-38b5c7fdac44','Partition 1','route',4,1,20,'[["log", "weather-flights", 1, 200]]','1700000000002-123456','1700000000002-123456',0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:03.073213','34976404-ab21-4a36-b771-addb790616da','null');
INSERT INTO "drain_stages" VALUES('3822241e-73fb-4046-8515-38b5c7fdac44','Partition 1','hourly',4,1,20,'[["log", "weather-by-carrier", 1, 200]]','1700000000002-123456','1700000000002-123456',0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:03.097105','40ee0a49-a069-4f3c-a355-385afc1e82c4','null');
INSERT INTO "drain_stages" VALUES('fe926422-1570-4e91-aec7-8472530e450f','Partition 0','route',3,1,20,'[["log", "tolls-flights", 0, 200]]','1700000000002-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:03.809482','cdfe0d69-62db-455f-9ce9-c900ca43eb5e','null');
INSERT INTO "drain_stages" VALUES('fe926422-1570-4e91-aec7-8472530e450f','Partition 0','hourly',3,1,20,'[["log", "tolls-by-carrier", 0, 200]]','1700000000002-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:03.825953','feca5c71-7ee3-444d-9ac5-15d107a0e4b0','null');
INSERT INTO "drain_stages" VALUES('fe926422-1570-4e91-aec7-8472530e450f','Partition 1','route',1,1,20,'[["log", "tolls-flights", 1, 200]]','1700000000002-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:03.757007','b7997e59-7fe3-4ac3-9538-419edb1447bb','null');
INSERT INTO "drain_stages" VALUES('fe926422-1570-4e91-aec7-8472530e450f','Partition 1','hourly',1,1,20,'[["log", "tolls-by-carrier", 1, 200]]','1700000000002-123456',NULL,0,3,'["dropDuplicates"]','3 rows of a state without a watermark','2026-11-29 22:02:03.782660','23629412-044d-4ac1-9726-d61540994396','null');
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
INSERT INTO "drains" VALUES('e81696c8-708e-4b48-9220-4cd33642b3d8','delays-20261129T220159-673be8','delays',1,'DEFAULT','FLUSHING',3,'2026-11-29 22:02:01.502846',500000000.0,1000000000.0,'{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}','[["log", "delays-by-carrier", 0, 0], ["log", "delays-by-carrier", 1, 0]]','[]','[]','2026-11-29 22:02:01.502846','2026-11-29 22:02:01.563988',NULL,NULL,'');
INSERT INTO "drains" VALUES('bc076cdf-fdc8-45ee-8315-17832fd97a89','weather-20261129T220201-13e53a','weather',1,'DEFAULT','CANCELLED',1,'2026-11-29 22:02:02.281130',500000000.0,1000000000.0,'{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}','[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0]]','[]','[]','2026-11-29 22:02:02.281130',NULL,NULL,'2026-11-29 22:02:02.619166','cancelled');
INSERT INTO "drains" VALUES('3822241e-73fb-4046-8515-38b5c7fdac44','weather-20261129T220201-13e53a','weather',2,'DEFAULT','DRAINED',1,'2026-11-29 22:02:02.770473',500000000.0,1000000000.0,'{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}','[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0]]','[]','[["log", "weather-by-carrier", 0, 0], ["log", "weather-by-carrier", 1, 0], ["log", "weather-flights", 0, 200], ["log", "weather-flights", 1, 200]]','2026-11-29 22:02:02.770473','2026-11-29 22:02:02.840342','2026-11-29 22:02:03.017552','2026-11-29 22:02:03.097105','');
INSERT INTO "drains" VALUES('fe926422-1570-4e91-aec7-8472530e450f','tolls-20261129T220203-f91325','tolls',1,'DEFAULT','FAILED',1,'2026-11-29 22:02:03.730024',1.5,3.0,'{"STOPPING": 1000000000.0, "FLUSHING": 1000000000.0, "COMMITTING": 1000000000.0}','[["log", "tolls-by-carrier", 0, 0], ["log", "tolls-by-carrier", 1, 0]]','[]','[]','2026-11-29 22:02:03.730024','2026-11-29 22:02:03.782660',NULL,'2026-11-29 22:02:07.319089','its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work');
CREATE TABLE holds (
	job VARCHAR(249) NOT NULL, 
	task VARCHAR(600) NOT NULL, 
	run_id VARCHAR(300) NOT NULL, 
	generation INTEGER NOT NULL, 
	holder VARCHAR(300) NOT NULL, 
	released BOOLEAN NOT NULL, 
	acquired_at DATETIME NOT NULL, model_version INTEGER DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_holds PRIMARY KEY (job, task)
);
INSERT INTO "holds" VALUES('delays','Partition 0','delays-20261129T220159-673be8',2,'delays-c',0,'2026-11-29 22:02:01.137152',3);
INSERT INTO "holds" VALUES('delays','Partition 1','delays-20261129T220159-673be8',2,'delays-d',0,'2026-11-29 22:02:01.223092',3);
INSERT INTO "holds" VALUES('weather','Partition 0','weather-20261129T220203-d787c4',2,'weather-b',0,'2026-11-29 22:02:03.253913',1);
INSERT INTO "holds" VALUES('weather','Partition 1','weather-20261129T220203-d787c4',2,'weather-b',0,'2026-11-29 22:02:03.327222',1);
INSERT INTO "holds" VALUES('tolls','Partition 0','tolls-20261129T220203-f91325',1,'tolls-a',0,'2026-11-29 22:02:03.452163',1);
INSERT INTO "holds" VALUES('tolls','Partition 1','tolls-20261129T220203-f91325',1,'tolls-a',0,'2026-11-29 22:02:03.533780',1);
INSERT INTO "holds" VALUES('ferries','Partition 0','ferries-20261129T220207-ff029d',1,'ferries-a',1,'2026-11-29 22:02:07.655337',1);
INSERT INTO "holds" VALUES('rail','Partition 0','rail-20261129T220208-aa4dc3',1,'rail-a',1,'2026-11-29 22:02:08.441801',1);
CREATE TABLE issued (
	name VARCHAR(16) NOT NULL, 
	origin VARCHAR(64) NOT NULL, 
	timeline VARCHAR(64) NOT NULL, 
	sequence BIGINT NOT NULL, 
	highest BIGINT NOT NULL, 
	floor BIGINT NOT NULL, 
	reserved BIGINT, 
	restored_at DATETIME, 
	CONSTRAINT pk_issued PRIMARY KEY (name)
);
INSERT INTO "issued" VALUES('coordinator','2701c5a4c59e47e0bd4453815ec04a34','77115ec5b35941c28da82c94cfff69f0',101,10,0,10000,NULL);
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
INSERT INTO "job_models" VALUES('delays',1,'delays-20261129T220159-fdc560','{"config":{"job.container.count":"1","job.name":"delays","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','f82e84b3caa81a69baef5098a77581379cafe2897f8d2d66ebf91aa30b7ccae5','2026-11-29 22:01:59.188174','run delays-20261129T220159-fdc560 was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('delays',2,'delays-20261129T220159-673be8','{"config":{"job.container.count":"2","job.name":"delays","standby.replicas":"1","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"}}},"1":{"processor-id":"1","tasks":{"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','511448eb15b8506ce9618907b1e8d9f171731cc8160cf5f4ec45a632ad7b8c79','2026-11-29 22:01:59.883401','run delays-20261129T220159-673be8 was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('delays',3,'delays-20261129T220159-673be8','{"config":{"job.container.count":"2","job.name":"delays","standby.replicas":"1","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"delays-flights","keyBucket":-1},{"system":"log","partition":2,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"}}},"1":{"processor-id":"1","tasks":{"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"delays-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"delays-flights","keyBucket":-1},{"system":"log","partition":3,"stream":"delays-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','ed95ce8764130b1e27b1a23ec3b09deafc527a18d7e193094775e86ce1cb9aac','2026-11-29 22:02:00.899331','log.delays-flights grew from 2 to 4 partitions','partition monitor');
INSERT INTO "job_models" VALUES('weather',1,'weather-20261129T220201-13e53a','{"config":{"job.container.count":"1","job.name":"weather","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"weather-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"weather-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"weather-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"weather-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','e0e0faccbd6fd3cf8e346eb91d7c42b929b78c26627e1fc11aa93b19b16da2a9','2026-11-29 22:02:01.704440','run weather-20261129T220201-13e53a was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('tolls',1,'tolls-20261129T220203-f91325','{"config":{"job.container.count":"1","job.name":"tolls","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"tolls-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"tolls-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"tolls-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"tolls-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','61a79c873084b07ce7e2a9b4eac2de155fd59f271f0b6d77ee202c4e95dc5922','2026-11-29 22:02:03.425746','run tolls-20261129T220203-f91325 was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('ferries',1,'ferries-20261129T220207-ff029d','{"config":{"job.container.count":"1","job.name":"ferries","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"ferries-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"ferries-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"ferries-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"ferries-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','33477fcf9ddf37d5d4839a965e5173dfc20249aeff69d23836e89f3812e76716','2026-11-29 22:02:07.596434','run ferries-20261129T220207-ff029d was deployed','operator@example.com');
INSERT INTO "job_models" VALUES('rail',1,'rail-20261129T220208-aa4dc3','{"config":{"job.container.count":"1","job.name":"rail","team":"Z\u00fcrich"},"containers":{"0":{"processor-id":"0","tasks":{"Partition 0":{"task-name":"Partition 0","system-stream-partitions":[{"system":"log","partition":0,"stream":"rail-by-carrier","keyBucket":-1},{"system":"log","partition":0,"stream":"rail-flights","keyBucket":-1}],"changelog-partition":0,"task-mode":"Active"},"Partition 1":{"task-name":"Partition 1","system-stream-partitions":[{"system":"log","partition":1,"stream":"rail-by-carrier","keyBucket":-1},{"system":"log","partition":1,"stream":"rail-flights","keyBucket":-1}],"changelog-partition":1,"task-mode":"Active"}}}},"max-change-log-stream-partitions":2}','87ba2f1918bf7f557b7b89677d253a8dedadf054a160b8fc2761eae5dd73688e','2026-11-29 22:02:08.395884','run rail-20261129T220208-aa4dc3 was deployed','operator@example.com');
CREATE TABLE jobs (
	job VARCHAR(249) NOT NULL, 
	current_run VARCHAR(300) NOT NULL, 
	grouping TEXT NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (job)
);
INSERT INTO "jobs" VALUES('delays','delays-20261129T220159-673be8','GroupByPartition');
INSERT INTO "jobs" VALUES('weather','weather-20261129T220203-d787c4','GroupByPartition');
INSERT INTO "jobs" VALUES('tolls','tolls-20261129T220203-f91325','GroupByPartition');
INSERT INTO "jobs" VALUES('ferries','ferries-20261129T220208-98da53','GroupByPartition');
INSERT INTO "jobs" VALUES('rail','rail-20261129T220208-aa4dc3','GroupByPartition');
CREATE TABLE lease_bounds (
	name VARCHAR(16) NOT NULL, 
	lease FLOAT NOT NULL, 
	grace FLOAT NOT NULL, 
	bare_lease FLOAT NOT NULL, 
	bare_grace FLOAT NOT NULL, outage FLOAT DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_lease_bounds PRIMARY KEY (name)
);
INSERT INTO "lease_bounds" VALUES('coordinator',40.0,5.0,160.0,120.0,0.0);
CREATE TABLE localities (
	job VARCHAR(249) NOT NULL, 
	processor_id VARCHAR(100) NOT NULL, 
	host VARCHAR(300) NOT NULL, 
	CONSTRAINT pk_localities PRIMARY KEY (job, processor_id)
);
INSERT INTO "localities" VALUES('delays','0','delays-a.example');
INSERT INTO "localities" VALUES('weather','0','weather-a.example');
INSERT INTO "localities" VALUES('ferries','0','ferries-a.example');
CREATE TABLE notices (
	run_id VARCHAR(300) NOT NULL, 
	seq INTEGER NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	at DATETIME NOT NULL, 
	detail JSON NOT NULL, 
	CONSTRAINT pk_notices PRIMARY KEY (run_id, seq)
);
INSERT INTO "notices" VALUES('delays-20261129T220159-fdc560',1,'STOP','2026-11-29 22:01:59.883401','{"reason": "replaced by run delays-20261129T220159-673be8"}');
INSERT INTO "notices" VALUES('delays-20261129T220159-fdc560',2,'ENDED','2026-11-29 22:02:00.017823','{"state": "STOPPED", "reason": "replaced by run delays-20261129T220159-673be8"}');
INSERT INTO "notices" VALUES('delays-20261129T220159-673be8',1,'MODEL','2026-11-29 22:02:00.899331','{"version": 3, "containers": 2, "why": "log.delays-flights grew from 2 to 4 partitions"}');
INSERT INTO "notices" VALUES('delays-20261129T220159-673be8',2,'DRAIN','2026-11-29 22:02:01.502846','{"uuid": "e81696c8-708e-4b48-9220-4cd33642b3d8", "phase": "REQUESTED"}');
INSERT INTO "notices" VALUES('delays-20261129T220159-673be8',3,'DRAIN','2026-11-29 22:02:01.502846','{"uuid": "e81696c8-708e-4b48-9220-4cd33642b3d8", "phase": "STOPPING"}');
INSERT INTO "notices" VALUES('delays-20261129T220159-673be8',4,'DRAIN','2026-11-29 22:02:01.563988','{"uuid": "e81696c8-708e-4b48-9220-4cd33642b3d8", "phase": "FLUSHING", "flushed": []}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',1,'DRAIN','2026-11-29 22:02:02.281130','{"uuid": "bc076cdf-fdc8-45ee-8315-17832fd97a89", "phase": "REQUESTED"}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',2,'DRAIN','2026-11-29 22:02:02.281130','{"uuid": "bc076cdf-fdc8-45ee-8315-17832fd97a89", "phase": "STOPPING"}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',3,'DRAIN','2026-11-29 22:02:02.619166','{"uuid": "bc076cdf-fdc8-45ee-8315-17832fd97a89", "phase": "CANCELLED", "reason": "cancelled"}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',4,'DRAIN','2026-11-29 22:02:02.770473','{"uuid": "3822241e-73fb-4046-8515-38b5c7fdac44", "phase": "REQUESTED"}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',5,'DRAIN','2026-11-29 22:02:02.770473','{"uuid": "3822241e-73fb-4046-8515-38b5c7fdac44", "phase": "STOPPING"}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',6,'DRAIN','2026-11-29 22:02:02.840342','{"uuid": "3822241e-73fb-4046-8515-38b5c7fdac44", "phase": "FLUSHING", "flushed": []}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',7,'DRAIN','2026-11-29 22:02:02.895132','{"uuid": "3822241e-73fb-4046-8515-38b5c7fdac44", "phase": "FLUSHING", "flushed": ["route"]}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',8,'DRAIN','2026-11-29 22:02:03.017552','{"uuid": "3822241e-73fb-4046-8515-38b5c7fdac44", "phase": "COMMITTING"}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',9,'DRAIN','2026-11-29 22:02:03.097105','{"uuid": "3822241e-73fb-4046-8515-38b5c7fdac44", "phase": "DRAINED"}');
INSERT INTO "notices" VALUES('weather-20261129T220201-13e53a',10,'ENDED','2026-11-29 22:02:03.097105','{"state": "DRAINED", "reason": "drained: 3822241e-73fb-4046-8515-38b5c7fdac44"}');
INSERT INTO "notices" VALUES('tolls-20261129T220203-f91325',1,'DRAIN','2026-11-29 22:02:03.730024','{"uuid": "fe926422-1570-4e91-aec7-8472530e450f", "phase": "REQUESTED"}');
INSERT INTO "notices" VALUES('tolls-20261129T220203-f91325',2,'DRAIN','2026-11-29 22:02:03.730024','{"uuid": "fe926422-1570-4e91-aec7-8472530e450f", "phase": "STOPPING"}');
INSERT INTO "notices" VALUES('tolls-20261129T220203-f91325',3,'DRAIN','2026-11-29 22:02:03.782660','{"uuid": "fe926422-1570-4e91-aec7-8472530e450f", "phase": "FLUSHING", "flushed": []}');
INSERT INTO "notices" VALUES('tolls-20261129T220203-f91325',4,'DRAIN','2026-11-29 22:02:07.319089','{"uuid": "fe926422-1570-4e91-aec7-8472530e450f", "phase": "FAILED", "reason": "its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work"}');
INSERT INTO "notices" VALUES('tolls-20261129T220203-f91325',5,'STOP','2026-11-29 22:02:07.319089','{"reason": "the drain fe926422-1570-4e91-aec7-8472530e450f failed: its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work"}');
INSERT INTO "notices" VALUES('ferries-20261129T220207-ff029d',1,'STOP','2026-11-29 22:02:08.072769','{"reason": "the season is over"}');
INSERT INTO "notices" VALUES('ferries-20261129T220207-ff029d',2,'ENDED','2026-11-29 22:02:08.241194','{"state": "STOPPED", "reason": "the season is over"}');
INSERT INTO "notices" VALUES('rail-20261129T220208-aa4dc3',1,'STOP','2026-11-29 22:02:08.602688','{"reason": "derailed"}');
INSERT INTO "notices" VALUES('rail-20261129T220208-aa4dc3',2,'ENDED','2026-11-29 22:02:08.620443','{"state": "FAILED", "reason": "derailed"}');
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
INSERT INTO "pins" VALUES('before-the-audit','delays','Partition 0','hourly','1700000000004-123456','the auditors','2026-11-29 22:02:01.426547','2058-08-07 23:48:41.426547');
INSERT INTO "pins" VALUES('drain-e81696c8-708e-4b48-9220-4cd33642b3d8','delays','Partition 0','route','1700000000004-123456','to roll back to if the drain fails','2026-11-29 22:02:01.530877',NULL);
INSERT INTO "pins" VALUES('drain-e81696c8-708e-4b48-9220-4cd33642b3d8','delays','Partition 1','route','1700000000004-123456','to roll back to if the drain fails','2026-11-29 22:02:01.542366',NULL);
INSERT INTO "pins" VALUES('drain-e81696c8-708e-4b48-9220-4cd33642b3d8','delays','Partition 0','hourly','1700000000004-123456','to roll back to if the drain fails','2026-11-29 22:02:01.551070',NULL);
INSERT INTO "pins" VALUES('drain-e81696c8-708e-4b48-9220-4cd33642b3d8','delays','Partition 1','hourly','1700000000004-123456','to roll back to if the drain fails','2026-11-29 22:02:01.563988',NULL);
INSERT INTO "pins" VALUES('drain-fe926422-1570-4e91-aec7-8472530e450f','tolls','Partition 0','route','1700000000002-123456','to roll back to if the drain fails','2026-11-29 22:02:03.745358','2026-12-29 22:02:07.319089');
INSERT INTO "pins" VALUES('drain-fe926422-1570-4e91-aec7-8472530e450f','tolls','Partition 1','route','1700000000002-123456','to roll back to if the drain fails','2026-11-29 22:02:03.757007','2026-12-29 22:02:07.319089');
INSERT INTO "pins" VALUES('drain-fe926422-1570-4e91-aec7-8472530e450f','tolls','Partition 0','hourly','1700000000002-123456','to roll back to if the drain fails','2026-11-29 22:02:03.772344','2026-12-29 22:02:07.319089');
INSERT INTO "pins" VALUES('drain-fe926422-1570-4e91-aec7-8472530e450f','tolls','Partition 1','hourly','1700000000002-123456','to roll back to if the drain fails','2026-11-29 22:02:03.782660','2026-12-29 22:02:07.319089');
CREATE TABLE registries (
	blob_store VARCHAR(249) NOT NULL, 
	registry VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_registries PRIMARY KEY (blob_store)
);
INSERT INTO "registries" VALUES('local','0e2ab6373e594f3d988143024dd6ff5b');
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
	failing BOOLEAN NOT NULL, backup JSON, kept JSON, 
	CONSTRAINT pk_runs PRIMARY KEY (run_id)
);
INSERT INTO "runs" VALUES('delays-20261129T220159-fdc560','delays','STOPPED','delays-20261129T220159-fdc560','{"job": "delays", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "delays-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "delays-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "delays-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "delays-flights", "partitions": 2, "broadcast": false, "identity": "9d8f6549-71a0-4275-abc3-9c1bfb944940"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "delays-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "delays-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-29 22:01:59.188174','2026-11-29 22:01:59.273989','2026-11-29 22:01:59.883401','2026-11-29 22:02:00.017823','replaced by run delays-20261129T220159-673be8',0,NULL,NULL);
INSERT INTO "runs" VALUES('delays-20261129T220159-673be8','delays','DRAINING','delays-20261129T220159-fdc560','{"job": "delays", "containers": 2, "inputs": [{"name": "flights", "system": "log", "stream": "delays-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "delays-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "delays-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich", "standby.replicas": "1"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "delays-flights", "partitions": 4, "broadcast": false, "identity": "9d8f6549-71a0-4275-abc3-9c1bfb944940"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "delays-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "delays-delays", "partitions": 1, "broadcast": false, "identity": null}]',3,'2026-11-29 22:01:59.883401','2026-11-29 22:02:00.030510',NULL,NULL,'',0,NULL,NULL);
INSERT INTO "runs" VALUES('weather-20261129T220201-13e53a','weather','DRAINED','weather-20261129T220201-13e53a','{"job": "weather", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "weather-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "weather-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "weather-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "weather-flights", "partitions": 2, "broadcast": false, "identity": "47843812-3b23-437c-a23f-e75ee9b4944d"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "weather-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "weather-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-29 22:02:01.704440','2026-11-29 22:02:01.725954',NULL,'2026-11-29 22:02:03.097105','drained: 3822241e-73fb-4046-8515-38b5c7fdac44',0,NULL,NULL);
INSERT INTO "runs" VALUES('weather-20261129T220203-d787c4','weather','RUNNING','weather-20261129T220203-d787c4','{"job": "weather", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "weather-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "weather-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "weather-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "drained", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "weather-flights", "partitions": 2, "broadcast": false, "identity": "47843812-3b23-437c-a23f-e75ee9b4944d"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "weather-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "weather-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-29 22:02:03.212932','2026-11-29 22:02:03.242613',NULL,NULL,'',0,NULL,NULL);
INSERT INTO "runs" VALUES('tolls-20261129T220203-f91325','tolls','RUNNING','tolls-20261129T220203-f91325','{"job": "tolls", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "tolls-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "tolls-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "tolls-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "tolls-flights", "partitions": 2, "broadcast": false, "identity": "631f51e4-f239-4695-9be8-ab722c5447c7"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "tolls-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "tolls-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-29 22:02:03.425746','2026-11-29 22:02:03.443817','2026-11-29 22:02:07.319089',NULL,'the drain fe926422-1570-4e91-aec7-8472530e450f failed: its hard deadline has passed; it waits for Partition 1, stage route (slot 0): at work',0,NULL,NULL);
INSERT INTO "runs" VALUES('ferries-20261129T220207-ff029d','ferries','STOPPED','ferries-20261129T220207-ff029d','{"job": "ferries", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "ferries-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "ferries-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "ferries-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "ferries-flights", "partitions": 2, "broadcast": false, "identity": "594c2ddb-37e8-4f6a-9a31-2621e3da4fb5"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "ferries-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "ferries-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-29 22:02:07.596434','2026-11-29 22:02:07.614369','2026-11-29 22:02:08.072769','2026-11-29 22:02:08.241194','the season is over',0,NULL,NULL);
INSERT INTO "runs" VALUES('rail-20261129T220208-aa4dc3','rail','FAILED','rail-20261129T220208-aa4dc3','{"job": "rail", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "rail-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "rail-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "rail-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "checkpoint", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "rail-flights", "partitions": 2, "broadcast": false, "identity": "89a107a8-98e6-4e1f-a460-a5f661140f78"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "rail-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "rail-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-29 22:02:08.395884','2026-11-29 22:02:08.431534','2026-11-29 22:02:08.602688','2026-11-29 22:02:08.620443','derailed',1,NULL,NULL);
INSERT INTO "runs" VALUES('ferries-20261129T220208-98da53','ferries','CREATED','ferries-20261129T220208-98da53','{"job": "ferries", "containers": 1, "inputs": [{"name": "flights", "system": "log", "stream": "ferries-flights", "broadcast": false}], "intermediates": [{"name": "by-carrier", "system": "log", "stream": "ferries-by-carrier", "partitions": 2}], "outputs": [{"name": "delays", "system": "log", "stream": "ferries-delays", "partitions": 1}], "stages": [{"name": "route", "reads": ["flights"], "writes": ["by-carrier"]}, {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]}], "grouper": "GroupByPartition", "maxTasks": null, "stateful": true, "start": "earliest", "maxEventSkewSeconds": null, "config": {"team": "Z\u00fcrich"}}','[{"name": "flights", "role": "input", "system": "log", "stream": "ferries-flights", "partitions": 2, "broadcast": false, "identity": "594c2ddb-37e8-4f6a-9a31-2621e3da4fb5"}, {"name": "by-carrier", "role": "intermediate", "system": "log", "stream": "ferries-by-carrier", "partitions": 2, "broadcast": false, "identity": null}, {"name": "delays", "role": "output", "system": "log", "stream": "ferries-delays", "partitions": 1, "broadcast": false, "identity": null}]',1,'2026-11-29 22:02:08.702909',NULL,NULL,NULL,'',0,NULL,NULL);
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
INSERT INTO "snapshots" VALUES('delays',1,'Partition 0','route','1700000000001-123456','0e3d2d5b-a2a9-4096-a55e-1dcd73ad2875',10,1,'delays-20261129T220159-fdc560','2026-11-29 22:01:59.382671','[["log", "delays-flights", 0, 100]]','{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',2,'Partition 0','route','1700000000002-123456','0e3d2d5b-a2a9-4096-a55e-1dcd73ad2875',20,1,'delays-20261129T220159-fdc560','2026-11-29 22:01:59.422660','[["log", "delays-flights", 0, 200]]','{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',3,'Partition 0','hourly','1700000000001-123456','3392f407-a881-4f7c-8574-b152611aa3c1',10,1,'delays-20261129T220159-fdc560','2026-11-29 22:01:59.488663','[["log", "delays-by-carrier", 0, 100]]','{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',4,'Partition 0','hourly','1700000000002-123456','3392f407-a881-4f7c-8574-b152611aa3c1',20,1,'delays-20261129T220159-fdc560','2026-11-29 22:01:59.554711','[["log", "delays-by-carrier", 0, 200]]','{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',5,'Partition 1','route','1700000000001-123456','1a9e091f-7736-46c3-84b3-ca867511845a',10,1,'delays-20261129T220159-fdc560','2026-11-29 22:01:59.723411','[["log", "delays-flights", 1, 100]]','{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',6,'Partition 1','route','1700000000002-123456','1a9e091f-7736-46c3-84b3-ca867511845a',20,1,'delays-20261129T220159-fdc560','2026-11-29 22:01:59.798394','[["log", "delays-flights", 1, 200]]','{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',7,'Partition 1','hourly','1700000000001-123456','e2d86b41-6ed1-4f61-b119-e6cef8dc4fac',10,1,'delays-20261129T220159-fdc560','2026-11-29 22:01:59.810758','[["log", "delays-by-carrier", 1, 100]]','{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',8,'Partition 1','hourly','1700000000002-123456','e2d86b41-6ed1-4f61-b119-e6cef8dc4fac',20,1,'delays-20261129T220159-fdc560','2026-11-29 22:01:59.840051','[["log", "delays-by-carrier", 1, 200]]','{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',9,'Partition 0','route','1700000000003-123456','0e3d2d5b-a2a9-4096-a55e-1dcd73ad2875',30,2,'delays-20261129T220159-673be8','2026-11-29 22:02:01.154602','[["log", "delays-flights", 0, 300]]','{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',10,'Partition 0','route','1700000000004-123456','0e3d2d5b-a2a9-4096-a55e-1dcd73ad2875',40,2,'delays-20261129T220159-673be8','2026-11-29 22:02:01.170843','[["log", "delays-flights", 0, 400]]','{"local": {"index": "jobs/delays/Partition_0/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',11,'Partition 0','hourly','1700000000003-123456','3392f407-a881-4f7c-8574-b152611aa3c1',30,2,'delays-20261129T220159-673be8','2026-11-29 22:02:01.185217','[["log", "delays-by-carrier", 0, 300]]','{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',12,'Partition 0','hourly','1700000000004-123456','3392f407-a881-4f7c-8574-b152611aa3c1',40,2,'delays-20261129T220159-673be8','2026-11-29 22:02:01.207599','[["log", "delays-by-carrier", 0, 400]]','{"local": {"index": "jobs/delays/Partition_0/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',13,'Partition 1','route','1700000000003-123456','1a9e091f-7736-46c3-84b3-ca867511845a',30,2,'delays-20261129T220159-673be8','2026-11-29 22:02:01.246783','[["log", "delays-flights", 1, 300]]','{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',14,'Partition 1','route','1700000000004-123456','1a9e091f-7736-46c3-84b3-ca867511845a',40,2,'delays-20261129T220159-673be8','2026-11-29 22:02:01.261045','[["log", "delays-flights", 1, 400]]','{"local": {"index": "jobs/delays/Partition_1/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',15,'Partition 1','hourly','1700000000003-123456','e2d86b41-6ed1-4f61-b119-e6cef8dc4fac',30,2,'delays-20261129T220159-673be8','2026-11-29 22:02:01.276880','[["log", "delays-by-carrier", 1, 300]]','{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('delays',16,'Partition 1','hourly','1700000000004-123456','e2d86b41-6ed1-4f61-b119-e6cef8dc4fac',40,2,'delays-20261129T220159-673be8','2026-11-29 22:02:01.292075','[["log", "delays-by-carrier", 1, 400]]','{"local": {"index": "jobs/delays/Partition_1/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',1,'Partition 0','route','1700000000001-123456','9390cd2e-74ec-4d2d-8781-e2f5ca87f842',10,1,'weather-20261129T220201-13e53a','2026-11-29 22:02:01.761437','[["log", "weather-flights", 0, 100]]','{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',2,'Partition 0','route','1700000000002-123456','9390cd2e-74ec-4d2d-8781-e2f5ca87f842',20,1,'weather-20261129T220201-13e53a','2026-11-29 22:02:01.794725','[["log", "weather-flights", 0, 200]]','{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',3,'Partition 0','hourly','1700000000001-123456','31facb96-7141-4cd0-8655-ea45aedd57a9',10,1,'weather-20261129T220201-13e53a','2026-11-29 22:02:01.808316','[["log", "weather-by-carrier", 0, 100]]','{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',4,'Partition 0','hourly','1700000000002-123456','31facb96-7141-4cd0-8655-ea45aedd57a9',20,1,'weather-20261129T220201-13e53a','2026-11-29 22:02:01.848993','[["log", "weather-by-carrier", 0, 200]]','{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',5,'Partition 1','route','1700000000001-123456','34976404-ab21-4a36-b771-addb790616da',10,1,'weather-20261129T220201-13e53a','2026-11-29 22:02:01.902845','[["log", "weather-flights", 1, 100]]','{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',6,'Partition 1','route','1700000000002-123456','34976404-ab21-4a36-b771-addb790616da',20,1,'weather-20261129T220201-13e53a','2026-11-29 22:02:01.930152','[["log", "weather-flights", 1, 200]]','{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',7,'Partition 1','hourly','1700000000001-123456','40ee0a49-a069-4f3c-a355-385afc1e82c4',10,1,'weather-20261129T220201-13e53a','2026-11-29 22:02:01.962534','[["log", "weather-by-carrier", 1, 100]]','{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',8,'Partition 1','hourly','1700000000002-123456','40ee0a49-a069-4f3c-a355-385afc1e82c4',20,1,'weather-20261129T220201-13e53a','2026-11-29 22:02:02.006025','[["log", "weather-by-carrier", 1, 200]]','{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',9,'Partition 0','route','1700000000003-123456','816e4b21-f87c-48bb-9654-c764d2357545',30,2,'weather-20261129T220203-d787c4','2026-11-29 22:02:03.274767','[["log", "weather-flights", 0, 300]]','{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',10,'Partition 0','route','1700000000004-123456','816e4b21-f87c-48bb-9654-c764d2357545',40,2,'weather-20261129T220203-d787c4','2026-11-29 22:02:03.289226','[["log", "weather-flights", 0, 400]]','{"local": {"index": "jobs/weather/Partition_0/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',11,'Partition 0','hourly','1700000000003-123456','95ca0fcd-6117-4dbf-8c4a-70129b94604e',30,2,'weather-20261129T220203-d787c4','2026-11-29 22:02:03.302094','[["log", "weather-by-carrier", 0, 300]]','{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',12,'Partition 0','hourly','1700000000004-123456','95ca0fcd-6117-4dbf-8c4a-70129b94604e',40,2,'weather-20261129T220203-d787c4','2026-11-29 22:02:03.317866','[["log", "weather-by-carrier", 0, 400]]','{"local": {"index": "jobs/weather/Partition_0/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',13,'Partition 1','route','1700000000003-123456','180fb752-9daa-467c-87b1-a487137814b6',30,2,'weather-20261129T220203-d787c4','2026-11-29 22:02:03.342609','[["log", "weather-flights", 1, 300]]','{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',14,'Partition 1','route','1700000000004-123456','180fb752-9daa-467c-87b1-a487137814b6',40,2,'weather-20261129T220203-d787c4','2026-11-29 22:02:03.356913','[["log", "weather-flights", 1, 400]]','{"local": {"index": "jobs/weather/Partition_1/route/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',15,'Partition 1','hourly','1700000000003-123456','c898663b-ca3a-4e36-9046-83ff86399a08',30,2,'weather-20261129T220203-d787c4','2026-11-29 22:02:03.369236','[["log", "weather-by-carrier", 1, 300]]','{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000003-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('weather',16,'Partition 1','hourly','1700000000004-123456','c898663b-ca3a-4e36-9046-83ff86399a08',40,2,'weather-20261129T220203-d787c4','2026-11-29 22:02:03.382543','[["log", "weather-by-carrier", 1, 400]]','{"local": {"index": "jobs/weather/Partition_1/hourly/snapshots/1700000000004-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',1,'Partition 0','route','1700000000001-123456','cdfe0d69-62db-455f-9ce9-c900ca43eb5e',10,1,'tolls-20261129T220203-f91325','2026-11-29 22:02:03.466080','[["log", "tolls-flights", 0, 100]]','{"local": {"index": "jobs/tolls/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',2,'Partition 0','route','1700000000002-123456','cdfe0d69-62db-455f-9ce9-c900ca43eb5e',20,1,'tolls-20261129T220203-f91325','2026-11-29 22:02:03.482366','[["log", "tolls-flights", 0, 200]]','{"local": {"index": "jobs/tolls/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',3,'Partition 0','hourly','1700000000001-123456','feca5c71-7ee3-444d-9ac5-15d107a0e4b0',10,1,'tolls-20261129T220203-f91325','2026-11-29 22:02:03.501137','[["log", "tolls-by-carrier", 0, 100]]','{"local": {"index": "jobs/tolls/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',4,'Partition 0','hourly','1700000000002-123456','feca5c71-7ee3-444d-9ac5-15d107a0e4b0',20,1,'tolls-20261129T220203-f91325','2026-11-29 22:02:03.520477','[["log", "tolls-by-carrier", 0, 200]]','{"local": {"index": "jobs/tolls/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',5,'Partition 1','route','1700000000001-123456','b7997e59-7fe3-4ac3-9538-419edb1447bb',10,1,'tolls-20261129T220203-f91325','2026-11-29 22:02:03.555738','[["log", "tolls-flights", 1, 100]]','{"local": {"index": "jobs/tolls/Partition_1/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',6,'Partition 1','route','1700000000002-123456','b7997e59-7fe3-4ac3-9538-419edb1447bb',20,1,'tolls-20261129T220203-f91325','2026-11-29 22:02:03.599440','[["log", "tolls-flights", 1, 200]]','{"local": {"index": "jobs/tolls/Partition_1/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',7,'Partition 1','hourly','1700000000001-123456','23629412-044d-4ac1-9726-d61540994396',10,1,'tolls-20261129T220203-f91325','2026-11-29 22:02:03.654437','[["log", "tolls-by-carrier", 1, 100]]','{"local": {"index": "jobs/tolls/Partition_1/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('tolls',8,'Partition 1','hourly','1700000000002-123456','23629412-044d-4ac1-9726-d61540994396',20,1,'tolls-20261129T220203-f91325','2026-11-29 22:02:03.699002','[["log", "tolls-by-carrier", 1, 200]]','{"local": {"index": "jobs/tolls/Partition_1/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('ferries',1,'Partition 0','route','1700000000001-123456','8439ed02-698a-4ee7-bb34-3a0879a1dc43',10,1,'ferries-20261129T220207-ff029d','2026-11-29 22:02:07.716759','[["log", "ferries-flights", 0, 100]]','{"local": {"index": "jobs/ferries/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('ferries',2,'Partition 0','route','1700000000002-123456','8439ed02-698a-4ee7-bb34-3a0879a1dc43',20,1,'ferries-20261129T220207-ff029d','2026-11-29 22:02:07.808035','[["log", "ferries-flights", 0, 200]]','{"local": {"index": "jobs/ferries/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('ferries',3,'Partition 0','hourly','1700000000001-123456','63ae0fed-4192-4d5e-8e4d-dd4a28f37e3f',10,1,'ferries-20261129T220207-ff029d','2026-11-29 22:02:07.914979','[["log", "ferries-by-carrier", 0, 100]]','{"local": {"index": "jobs/ferries/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('ferries',4,'Partition 0','hourly','1700000000002-123456','63ae0fed-4192-4d5e-8e4d-dd4a28f37e3f',20,1,'ferries-20261129T220207-ff029d','2026-11-29 22:02:07.950062','[["log", "ferries-by-carrier", 0, 200]]','{"local": {"index": "jobs/ferries/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('rail',1,'Partition 0','route','1700000000001-123456','b1dbc22e-c480-4a9f-96ac-f3289593d73b',10,1,'rail-20261129T220208-aa4dc3','2026-11-29 22:02:08.464975','[["log", "rail-flights", 0, 100]]','{"local": {"index": "jobs/rail/Partition_0/route/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('rail',2,'Partition 0','route','1700000000002-123456','b1dbc22e-c480-4a9f-96ac-f3289593d73b',20,1,'rail-20261129T220208-aa4dc3','2026-11-29 22:02:08.482618','[["log", "rail-flights", 0, 200]]','{"local": {"index": "jobs/rail/Partition_0/route/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('rail',3,'Partition 0','hourly','1700000000001-123456','fbe68e03-9e8a-43ad-adde-10a413542e49',10,1,'rail-20261129T220208-aa4dc3','2026-11-29 22:02:08.498914','[["log", "rail-by-carrier", 0, 100]]','{"local": {"index": "jobs/rail/Partition_0/hourly/snapshots/1700000000001-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
INSERT INTO "snapshots" VALUES('rail',4,'Partition 0','hourly','1700000000002-123456','fbe68e03-9e8a-43ad-adde-10a413542e49',20,1,'rail-20261129T220208-aa4dc3','2026-11-29 22:02:08.591229','[["log", "rail-by-carrier", 0, 200]]','{"local": {"index": "jobs/rail/Partition_0/hourly/snapshots/1700000000002-00000000000000aa", "files": 3, "bytes": 70, "uploaded_files": 1, "uploaded_bytes": 9, "puts": 2, "kept": false}}');
CREATE TABLE starts (
	run_id VARCHAR(300) NOT NULL, 
	system VARCHAR(249) NOT NULL, 
	stream VARCHAR(249) NOT NULL, 
	partition INTEGER NOT NULL, 
	"offset" BIGINT NOT NULL, 
	CONSTRAINT pk_starts PRIMARY KEY (run_id, system, stream, partition)
);
INSERT INTO "starts" VALUES('delays-20261129T220159-fdc560','log','delays-by-carrier',0,0);
INSERT INTO "starts" VALUES('delays-20261129T220159-fdc560','log','delays-by-carrier',1,0);
INSERT INTO "starts" VALUES('delays-20261129T220159-fdc560','log','delays-flights',1,0);
INSERT INTO "starts" VALUES('delays-20261129T220159-fdc560','log','delays-flights',0,0);
INSERT INTO "starts" VALUES('delays-20261129T220159-673be8','log','delays-by-carrier',0,0);
INSERT INTO "starts" VALUES('delays-20261129T220159-673be8','log','delays-by-carrier',1,0);
INSERT INTO "starts" VALUES('delays-20261129T220159-673be8','log','delays-flights',1,0);
INSERT INTO "starts" VALUES('delays-20261129T220159-673be8','log','delays-flights',0,0);
INSERT INTO "starts" VALUES('delays-20261129T220159-673be8','log','delays-flights',2,0);
INSERT INTO "starts" VALUES('delays-20261129T220159-673be8','log','delays-flights',3,0);
INSERT INTO "starts" VALUES('weather-20261129T220201-13e53a','log','weather-by-carrier',0,0);
INSERT INTO "starts" VALUES('weather-20261129T220201-13e53a','log','weather-by-carrier',1,0);
INSERT INTO "starts" VALUES('weather-20261129T220201-13e53a','log','weather-flights',0,0);
INSERT INTO "starts" VALUES('weather-20261129T220201-13e53a','log','weather-flights',1,0);
INSERT INTO "starts" VALUES('weather-20261129T220203-d787c4','log','weather-by-carrier',0,0);
INSERT INTO "starts" VALUES('weather-20261129T220203-d787c4','log','weather-by-carrier',1,0);
INSERT INTO "starts" VALUES('weather-20261129T220203-d787c4','log','weather-flights',0,200);
INSERT INTO "starts" VALUES('weather-20261129T220203-d787c4','log','weather-flights',1,200);
INSERT INTO "starts" VALUES('tolls-20261129T220203-f91325','log','tolls-by-carrier',0,0);
INSERT INTO "starts" VALUES('tolls-20261129T220203-f91325','log','tolls-by-carrier',1,0);
INSERT INTO "starts" VALUES('tolls-20261129T220203-f91325','log','tolls-flights',1,0);
INSERT INTO "starts" VALUES('tolls-20261129T220203-f91325','log','tolls-flights',0,0);
INSERT INTO "starts" VALUES('ferries-20261129T220207-ff029d','log','ferries-by-carrier',1,0);
INSERT INTO "starts" VALUES('ferries-20261129T220207-ff029d','log','ferries-by-carrier',0,0);
INSERT INTO "starts" VALUES('ferries-20261129T220207-ff029d','log','ferries-flights',0,0);
INSERT INTO "starts" VALUES('ferries-20261129T220207-ff029d','log','ferries-flights',1,0);
INSERT INTO "starts" VALUES('rail-20261129T220208-aa4dc3','log','rail-by-carrier',1,0);
INSERT INTO "starts" VALUES('rail-20261129T220208-aa4dc3','log','rail-by-carrier',0,0);
INSERT INTO "starts" VALUES('rail-20261129T220208-aa4dc3','log','rail-flights',1,0);
INSERT INTO "starts" VALUES('rail-20261129T220208-aa4dc3','log','rail-flights',0,0);
INSERT INTO "starts" VALUES('ferries-20261129T220208-98da53','log','ferries-by-carrier',1,0);
INSERT INTO "starts" VALUES('ferries-20261129T220208-98da53','log','ferries-by-carrier',0,0);
INSERT INTO "starts" VALUES('ferries-20261129T220208-98da53','log','ferries-flights',0,0);
INSERT INTO "starts" VALUES('ferries-20261129T220208-98da53','log','ferries-flights',1,0);
CREATE TABLE stores (
	job VARCHAR(249) NOT NULL, 
	task VARCHAR(600) NOT NULL, 
	stage VARCHAR(249) NOT NULL, 
	lineage VARCHAR(100) NOT NULL, 
	batch_id BIGINT, 
	offsets JSON NOT NULL, 
	generation INTEGER, 
	reported_at DATETIME, head VARCHAR(64), chosen BOOLEAN DEFAULT false NOT NULL, former VARCHAR(100), starts JSON DEFAULT '[]' NOT NULL, late_rows JSON, 
	CONSTRAINT pk_stores PRIMARY KEY (job, task, stage)
);
INSERT INTO "stores" VALUES('delays','Partition 0','route','0e3d2d5b-a2a9-4096-a55e-1dcd73ad2875',40,'[["log", "delays-flights", 0, 400]]',2,'2026-11-29 22:02:01.163073','1700000000004-123456',0,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('delays','Partition 0','hourly','3392f407-a881-4f7c-8574-b152611aa3c1',40,'[["log", "delays-by-carrier", 0, 400]]',2,'2026-11-29 22:02:01.193413','1700000000004-123456',0,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('delays','Partition 1','route','1a9e091f-7736-46c3-84b3-ca867511845a',40,'[["log", "delays-flights", 1, 400]]',2,'2026-11-29 22:02:01.254221','1700000000004-123456',0,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('delays','Partition 1','hourly','e2d86b41-6ed1-4f61-b119-e6cef8dc4fac',40,'[["log", "delays-by-carrier", 1, 400]]',2,'2026-11-29 22:02:01.285196','1700000000004-123456',0,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('weather','Partition 0','route','816e4b21-f87c-48bb-9654-c764d2357545',40,'[["log", "weather-flights", 0, 400]]',2,'2026-11-29 22:02:03.282414','1700000000004-123456',0,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('weather','Partition 0','hourly','95ca0fcd-6117-4dbf-8c4a-70129b94604e',40,'[["log", "weather-by-carrier", 0, 400]]',2,'2026-11-29 22:02:03.311407','1700000000004-123456',0,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('weather','Partition 1','route','180fb752-9daa-467c-87b1-a487137814b6',40,'[["log", "weather-flights", 1, 400]]',2,'2026-11-29 22:02:03.350259','1700000000004-123456',0,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('weather','Partition 1','hourly','c898663b-ca3a-4e36-9046-83ff86399a08',40,'[["log", "weather-by-carrier", 1, 400]]',2,'2026-11-29 22:02:03.376412','1700000000004-123456',0,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('tolls','Partition 0','route','cdfe0d69-62db-455f-9ce9-c900ca43eb5e',20,'[["log", "tolls-flights", 0, 200]]',1,'2026-11-29 22:02:03.474521','1700000000002-123456',1,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('tolls','Partition 0','hourly','feca5c71-7ee3-444d-9ac5-15d107a0e4b0',20,'[["log", "tolls-by-carrier", 0, 200]]',1,'2026-11-29 22:02:03.511712','1700000000002-123456',1,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('tolls','Partition 1','route','b7997e59-7fe3-4ac3-9538-419edb1447bb',20,'[["log", "tolls-flights", 1, 200]]',1,'2026-11-29 22:02:03.567238','1700000000002-123456',1,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('tolls','Partition 1','hourly','23629412-044d-4ac1-9726-d61540994396',20,'[["log", "tolls-by-carrier", 1, 200]]',1,'2026-11-29 22:02:03.682536','1700000000002-123456',1,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('rail','Partition 0','route','b1dbc22e-c480-4a9f-96ac-f3289593d73b',20,'[["log", "rail-flights", 0, 200]]',1,'2026-11-29 22:02:08.473446','1700000000002-123456',0,NULL,'[]',NULL);
INSERT INTO "stores" VALUES('rail','Partition 0','hourly','fbe68e03-9e8a-43ad-adde-10a413542e49',20,'[["log", "rail-by-carrier", 0, 200]]',1,'2026-11-29 22:02:08.561911','1700000000001-123456',1,NULL,'[]',NULL);
CREATE TABLE tokens (
	token_id VARCHAR(32) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	roles JSON NOT NULL, 
	jobs JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	created_by VARCHAR(200) NOT NULL, 
	expires_at DATETIME, 
	revoked_at DATETIME, 
	CONSTRAINT pk_tokens PRIMARY KEY (token_id)
);
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
INSERT INTO "watched_streams" VALUES('delays','log','delays-flights','delays-20261129T220159-673be8','flights',4,4,'UNCHANGED','','2026-11-29 22:02:01.961696',NULL);
INSERT INTO "watched_streams" VALUES('weather','log','weather-flights','weather-20261129T220203-d787c4','flights',2,2,'UNCHANGED','','2026-11-29 22:02:04.081120',NULL);
INSERT INTO "watched_streams" VALUES('tolls','log','tolls-flights','tolls-20261129T220203-f91325','flights',2,2,'UNCHANGED','','2026-11-29 22:02:04.090921',NULL);
INSERT INTO "watched_streams" VALUES('ferries','log','ferries-flights','ferries-20261129T220208-98da53','flights',2,2,'UNCHANGED','','2026-11-29 22:02:09.380175',NULL);
CREATE UNIQUE INDEX uq_containers_slot_epoch ON containers (run_id, processor_id, epoch);
CREATE INDEX ix_holds_holder ON holds (holder);
CREATE INDEX ix_runs_job_age ON runs (job, created_at, run_id);
CREATE INDEX ix_runs_age ON runs (created_at, run_id);
CREATE INDEX ix_runs_active ON runs (created_at, run_id) WHERE ended_at IS NULL;
CREATE INDEX ix_containers_standing ON containers (run_id, execution_id) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX uq_snapshots_checkpoint ON snapshots (job, task, stage, checkpoint);
CREATE INDEX ix_snapshots_store ON snapshots (job, task, stage, seq);
CREATE INDEX ix_snapshots_stage ON snapshots (job, stage, seq);
CREATE INDEX ix_cleanups_due ON cleanups (due_at, kind, blob_store, subject);
CREATE INDEX ix_drains_phase ON drains (phase);
CREATE UNIQUE INDEX uq_drains_job_seq ON drains (job, seq);
CREATE INDEX ix_drains_run ON drains (run_id, seq);
CREATE INDEX ix_drains_active ON drains (job, seq) WHERE ended_at IS NULL;
CREATE INDEX ix_drain_stages_step ON drain_stages (drain_id, step);
CREATE INDEX ix_audit_events_age ON audit_events (at);
CREATE INDEX ix_audit_events_job ON audit_events (job, seq);
CREATE INDEX ix_pins_stage ON pins (job, task, stage, pin_id);
COMMIT;
