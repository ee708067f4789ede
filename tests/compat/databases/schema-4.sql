BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE assignments (
	rollout INTEGER NOT NULL, 
	device VARCHAR NOT NULL, 
	wave INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	sequence INTEGER, 
	offered_at DOUBLE, 
	decided_at DOUBLE, 
	because TEXT NOT NULL, 
	before_digest VARCHAR NOT NULL, 
	PRIMARY KEY (rollout, device), 
	FOREIGN KEY(rollout) REFERENCES rollouts (number), 
	FOREIGN KEY(device) REFERENCES devices (id)
);
INSERT INTO "assignments" VALUES(1,'sim0-2',0,'COMMITTED',1,1.79540565606595277784e+09,1.79540565763676118844e+09,'served 0.2 s without trouble','');
INSERT INTO "assignments" VALUES(1,'sim0-3',1,'COMMITTED',1,1.79540565764833950999e+09,1.79540565986655831342e+09,'served 0.2 s without trouble','');
INSERT INTO "assignments" VALUES(1,'sim0-1',1,'COMMITTED',1,1.79540565764833950999e+09,1.79540565986655831342e+09,'served 0.2 s without trouble','');
INSERT INTO "assignments" VALUES(2,'sim0-2',0,'WORKING',2,1.79540566037112355227e+09,NULL,'','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8');
INSERT INTO "assignments" VALUES(2,'sim0-3',1,'WAITING',NULL,NULL,NULL,'','');
INSERT INTO "assignments" VALUES(2,'sim0-1',1,'WAITING',NULL,NULL,NULL,'','');
CREATE TABLE devices (
	id VARCHAR NOT NULL, 
	device_group VARCHAR NOT NULL, 
	enrolled_at DOUBLE NOT NULL, 
	online BOOLEAN NOT NULL, 
	last_seen DOUBLE, 
	boot VARCHAR NOT NULL, 
	report_count INTEGER NOT NULL, 
	reported TEXT, 
	reported_sequence INTEGER NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	desired TEXT, 
	desired_sequence INTEGER NOT NULL, 
	desired_sent_at DOUBLE NOT NULL, labels TEXT DEFAULT '{}' NOT NULL, certificate VARCHAR DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "devices" VALUES('sim0-1','cameras',1.79540565553662395475e+09,1,1.79540565986655831342e+09,'14ad8cddfa61e05f',6,'{"v":2,"minor":1,"online":true,"at":1795405659.8561006,"boot":"14ad8cddfa61e05f","count":6,"facts":{"arch":"aarch64","cpu_model":"sim-arm-a76","cpu_count":4,"cpu_features":[],"memory_bytes":4294967296,"os":"simulated","soc":"","python":"3.11","agent_version":"simulated","runtime":"simulated","providers":[{"name":"CPUExecutionProvider","available":true,"because":"edgepack simulate runs no model","version":"","devices":[],"is_simulator":true,"brought_by":""}],"drivers":{},"hardware_class":"sim-arm-a76"},"sequence":1,"models":{"tiny":{"state":"COMMITTED","because":"served 0.2 s without trouble","sequence":1,"acted_sequence":0,"rollout":"r1","target":{"name":"tiny","version":"1.1.0","release":1,"digest":"25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8"},"active":{"bundle":{"name":"tiny","version":"1.1.0","release":1,"digest":"25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8"},"choice":{"wanted":"","chosen":"simulated","provider":"CPUExecutionProvider","because":"simulated","is_fallback":false,"probes":[],"rejected":{}},"since":1795405659.8560665},"previous":null,"progress":0.0}},"warnings":[]}',1,'sim-arm-a76','{"v":2,"minor":1,"sequence":1,"models":{"tiny":{"do":"run","sequence":1,"rollout":"r1","bundle":{"name":"tiny","version":"1.1.0","release":1,"digest":"25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8"},"manifest":{"path":"manifest.json","size_bytes":1852,"sha256":"f5c5ad3d1f114bfc6f24f2e44fde9059aca721cc55d65f6b64f28cfd07295ead"},"signature":{"path":"model.sig","size_bytes":1428,"sha256":"8b00d3e2429ce292c0517147ff382818c15a500a66e532e3802a9b204ad7820c"},"soak_s":0.2,"rollback":false,"issued_at":1795405657.6483395,"expires_at":null}}}',1,1.79540565764833950999e+09,'{}','');
INSERT INTO "devices" VALUES('sim0-2','cameras',1.79540565556130313866e+09,1,1.79540566337940955161e+09,'a08c6c57b718e83b',10,'{"v":2,"minor":1,"online":true,"at":1795405663.3782477,"boot":"a08c6c57b718e83b","count":10,"facts":{"arch":"aarch64","cpu_model":"sim-hexagon-v73","cpu_count":4,"cpu_features":[],"memory_bytes":4294967296,"os":"simulated","soc":"","python":"3.11","agent_version":"simulated","runtime":"simulated","providers":[{"name":"CPUExecutionProvider","available":true,"because":"edgepack simulate runs no model","version":"","devices":[],"is_simulator":true,"brought_by":""}],"drivers":{},"hardware_class":"sim-hexagon-v73"},"sequence":2,"models":{"tiny":{"state":"SOAKING","because":"","sequence":2,"acted_sequence":0,"rollout":"r2","target":{"name":"tiny","version":"1.2.0","release":2,"digest":"89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850"},"active":{"bundle":{"name":"tiny","version":"1.1.0","release":1,"digest":"25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8"},"choice":{"wanted":"","chosen":"simulated","provider":"CPUExecutionProvider","because":"simulated","is_fallback":false,"probes":[],"rejected":{}},"since":1795405657.635326},"previous":null,"progress":0.0}},"warnings":[]}',2,'sim-hexagon-v73','{"v":2,"minor":1,"sequence":2,"models":{"tiny":{"do":"run","sequence":2,"rollout":"r2","bundle":{"name":"tiny","version":"1.2.0","release":2,"digest":"89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850"},"manifest":{"path":"manifest.json","size_bytes":1852,"sha256":"d3681e6c8c507ce7066f905959c70a99f4146b242b3dabf55b4ee6bf46e4d41e"},"signature":{"path":"model.sig","size_bytes":1428,"sha256":"4f08c2bfb3ca46b2a05b14eab58d804f1c70f54cb81236e5731460788527abb3"},"soak_s":60.0,"rollback":false,"issued_at":1795405660.3711236,"expires_at":null}}}',2,1.79540566037112355227e+09,'{}','');
INSERT INTO "devices" VALUES('sim0-3','cameras',1.79540565560288238522e+09,1,1.79540565986655831342e+09,'b5ac720d7763282e',6,'{"v":2,"minor":1,"online":true,"at":1795405659.8572989,"boot":"b5ac720d7763282e","count":6,"facts":{"arch":"aarch64","cpu_model":"sim-arm-a76","cpu_count":4,"cpu_features":[],"memory_bytes":4294967296,"os":"simulated","soc":"","python":"3.11","agent_version":"simulated","runtime":"simulated","providers":[{"name":"CPUExecutionProvider","available":true,"because":"edgepack simulate runs no model","version":"","devices":[],"is_simulator":true,"brought_by":""}],"drivers":{},"hardware_class":"sim-arm-a76"},"sequence":1,"models":{"tiny":{"state":"COMMITTED","because":"served 0.2 s without trouble","sequence":1,"acted_sequence":0,"rollout":"r1","target":{"name":"tiny","version":"1.1.0","release":1,"digest":"25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8"},"active":{"bundle":{"name":"tiny","version":"1.1.0","release":1,"digest":"25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8"},"choice":{"wanted":"","chosen":"simulated","provider":"CPUExecutionProvider","because":"simulated","is_fallback":false,"probes":[],"rejected":{}},"since":1795405659.8572881},"previous":null,"progress":0.0}},"warnings":[]}',1,'sim-arm-a76','{"v":2,"minor":1,"sequence":1,"models":{"tiny":{"do":"run","sequence":1,"rollout":"r1","bundle":{"name":"tiny","version":"1.1.0","release":1,"digest":"25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8"},"manifest":{"path":"manifest.json","size_bytes":1852,"sha256":"f5c5ad3d1f114bfc6f24f2e44fde9059aca721cc55d65f6b64f28cfd07295ead"},"signature":{"path":"model.sig","size_bytes":1428,"sha256":"8b00d3e2429ce292c0517147ff382818c15a500a66e532e3802a9b204ad7820c"},"soak_s":0.2,"rollback":false,"issued_at":1795405657.6483395,"expires_at":null}}}',1,1.79540565764833950999e+09,'{}','');
CREATE TABLE events (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	received_at DOUBLE NOT NULL, 
	device VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	bundle VARCHAR NOT NULL, 
	from_state VARCHAR NOT NULL, 
	to_state VARCHAR NOT NULL, 
	because TEXT NOT NULL, 
	rollout VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "events" VALUES(1,1.79540565602400231364e+09,1.79540565602400231364e+09,'','rollout','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','','RUNNING','started for group cameras','r1');
INSERT INTO "events" VALUES(2,1.79540565606595277784e+09,1.79540565606595277784e+09,'','rollout','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','RUNNING','RUNNING','wave 1 of 2: 1 device','r1');
INSERT INTO "events" VALUES(3,1.79540565607800340656e+09,1.79540565613236737258e+09,'sim0-2','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','IDLE','DOWNLOADING','','r1');
INSERT INTO "events" VALUES(4,1.79540565717497253416e+09,1.79540565717586827272e+09,'sim0-2','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','DOWNLOADING','VERIFIED','','r1');
INSERT INTO "events" VALUES(5,1.79540565731745529174e+09,1.79540565733390641216e+09,'sim0-2','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','VERIFIED','PROBING','','r1');
INSERT INTO "events" VALUES(6,1.79540565742440772056e+09,1.79540565744174599642e+09,'sim0-2','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','PROBING','SOAKING','','r1');
INSERT INTO "events" VALUES(7,1.79540565763550734519e+09,1.79540565764115619658e+09,'sim0-2','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','SOAKING','COMMITTED','served 0.2 s without trouble','r1');
INSERT INTO "events" VALUES(8,1.79540565764833950999e+09,1.79540565764833950999e+09,'','rollout','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','RUNNING','RUNNING','wave 2 of 2: 2 devices','r1');
INSERT INTO "events" VALUES(9,1.79540565766505551335e+09,1.7954056576664676666e+09,'sim0-1','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','IDLE','DOWNLOADING','','r1');
INSERT INTO "events" VALUES(10,1.79540565766833448407e+09,1.79540565771667742726e+09,'sim0-3','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','IDLE','DOWNLOADING','','r1');
INSERT INTO "events" VALUES(11,1.79540565930534505838e+09,1.79540565930686211578e+09,'sim0-1','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','DOWNLOADING','VERIFIED','','r1');
INSERT INTO "events" VALUES(12,1.79540565930554938314e+09,1.79540565930686211578e+09,'sim0-3','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','DOWNLOADING','VERIFIED','','r1');
INSERT INTO "events" VALUES(13,1.79540565954067730903e+09,1.79540565955010271068e+09,'sim0-1','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','VERIFIED','PROBING','','r1');
INSERT INTO "events" VALUES(14,1.79540565954075217241e+09,1.79540565955010271068e+09,'sim0-3','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','VERIFIED','PROBING','','r1');
INSERT INTO "events" VALUES(15,1.79540565964822196962e+09,1.79540565965730500221e+09,'sim0-1','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','PROBING','SOAKING','','r1');
INSERT INTO "events" VALUES(16,1.79540565964828133585e+09,1.79540565965730500221e+09,'sim0-3','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','PROBING','SOAKING','','r1');
INSERT INTO "events" VALUES(17,1.7954056598562712669e+09,1.79540565986655831342e+09,'sim0-1','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','SOAKING','COMMITTED','served 0.2 s without trouble','r1');
INSERT INTO "events" VALUES(18,1.79540565985736846922e+09,1.79540565986655831342e+09,'sim0-3','transition','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','SOAKING','COMMITTED','served 0.2 s without trouble','r1');
INSERT INTO "events" VALUES(19,1.79540565993645238876e+09,1.79540565993645238876e+09,'','rollout','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','RUNNING','FINISHED','3 of 3 devices committed, 0 failed or stayed silent','r1');
INSERT INTO "events" VALUES(20,1.7954056603401505947e+09,1.7954056603401505947e+09,'','rollout','89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850','','RUNNING','started for group cameras','r2');
INSERT INTO "events" VALUES(21,1.79540566037112355227e+09,1.79540566037112355227e+09,'','rollout','89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850','RUNNING','RUNNING','wave 1 of 2: 1 device','r2');
INSERT INTO "events" VALUES(22,1.79540566040082120893e+09,1.79540566045242404942e+09,'sim0-2','transition','89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850','COMMITTED','DOWNLOADING','','r2');
INSERT INTO "events" VALUES(23,1.79540566060911560052e+09,1.79540566060911560052e+09,'','rollout','89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850','RUNNING','PAUSED','paused by a person','r2');
INSERT INTO "events" VALUES(24,1.79540566313414835927e+09,1.79540566313524508476e+09,'sim0-2','transition','89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850','DOWNLOADING','VERIFIED','','r2');
INSERT INTO "events" VALUES(25,1.79540566327712440486e+09,1.79540566329231452945e+09,'sim0-2','transition','89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850','VERIFIED','PROBING','','r2');
INSERT INTO "events" VALUES(26,1.79540566337842154506e+09,1.79540566339653015134e+09,'sim0-2','transition','89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850','PROBING','SOAKING','','r2');
CREATE TABLE releases (
	digest VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	release INTEGER NOT NULL, 
	folder VARCHAR NOT NULL, 
	size_bytes INTEGER NOT NULL, 
	manifest_sha256 VARCHAR NOT NULL, 
	manifest_bytes INTEGER NOT NULL, 
	signature_sha256 VARCHAR NOT NULL, 
	signature_bytes INTEGER NOT NULL, 
	added_at DOUBLE NOT NULL, deleted_at DOUBLE, 
	PRIMARY KEY (digest)
);
INSERT INTO "releases" VALUES('25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','tiny','1.1.0',1,'25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8',532039,'f5c5ad3d1f114bfc6f24f2e44fde9059aca721cc55d65f6b64f28cfd07295ead',1852,'8b00d3e2429ce292c0517147ff382818c15a500a66e532e3802a9b204ad7820c',1428,1795405655.96926,NULL);
INSERT INTO "releases" VALUES('89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850','tiny','1.2.0',2,'89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850',532039,'d3681e6c8c507ce7066f905959c70a99f4146b242b3dabf55b4ee6bf46e4d41e',1852,'4f08c2bfb3ca46b2a05b14eab58d804f1c70f54cb81236e5731460788527abb3',1428,1.79540566029723691935e+09,NULL);
CREATE TABLE rollouts (
	number INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	selector TEXT NOT NULL, 
	waves VARCHAR NOT NULL, 
	wave INTEGER NOT NULL, 
	wave_count INTEGER NOT NULL, 
	soak_s DOUBLE NOT NULL, 
	deadline_s DOUBLE NOT NULL, 
	max_failed_share DOUBLE NOT NULL, 
	min_sample INTEGER NOT NULL, 
	on_breach VARCHAR NOT NULL, 
	accepted_failures INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	because TEXT NOT NULL, 
	started_at DOUBLE NOT NULL, 
	changed_at DOUBLE NOT NULL, takes_back VARCHAR DEFAULT '' NOT NULL, 
	PRIMARY KEY (number), 
	FOREIGN KEY(digest) REFERENCES releases (digest)
);
INSERT INTO "rollouts" VALUES(1,'25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','{"kind":"group","group":"cameras","where":"","devices":[]}','1,100%',1,2,0.2,900.0,0.1,5,'pause',0,'FINISHED','3 of 3 devices committed, 0 failed or stayed silent',1.79540565602400231364e+09,1.79540565993645238876e+09,'');
INSERT INTO "rollouts" VALUES(2,'89c9c8fcf672432e8bba3c5fb78f3a674b3103c19a72b8356ba1cf665472d850','{"kind":"group","group":"cameras","where":"","devices":[]}','1,100%',0,2,60.0,900.0,0.1,5,'pause',0,'PAUSED','paused by a person',1.7954056603401505947e+09,1.79540566060911560052e+09,'');
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(2);
CREATE TABLE telemetry (
	id INTEGER NOT NULL, 
	device VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	variant VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	window_start DOUBLE NOT NULL, 
	window_s DOUBLE NOT NULL, 
	received_at DOUBLE NOT NULL, 
	failures INTEGER NOT NULL, 
	histogram TEXT NOT NULL, is_simulator BOOLEAN DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (device, digest, variant, provider, window_start)
);
INSERT INTO "telemetry" VALUES(1,'sim0-2','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','simulated','CPUExecutionProvider','sim-hexagon-v73',1.79540565763532590859e+09,2.019405364990234375e-04,1.79540565764115619658e+09,0,'{"growth":1.05,"counts":{"-2":2,"-1":3,"0":1,"1":3,"2":6,"3":9,"4":8,"5":7,"6":19,"7":17,"8":21,"9":15,"10":13,"11":18,"12":18,"13":17,"14":7,"15":9,"16":4,"17":1,"18":1,"21":1},"count":200,"sum_ms":305.3611247492235,"min_ms":0.8770561520995788,"max_ms":2.659511361371802}',1);
INSERT INTO "telemetry" VALUES(2,'sim0-1','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','simulated','CPUExecutionProvider','sim-arm-a76',1.79540565985606646532e+09,2.324581146240234375e-04,1.79540565986655831342e+09,0,'{"growth":1.05,"counts":{"31":2,"35":1,"36":3,"37":1,"38":2,"39":6,"40":3,"41":8,"42":18,"43":7,"44":18,"45":26,"46":21,"47":21,"48":13,"49":14,"50":15,"51":5,"52":7,"53":3,"54":2,"55":1,"56":1,"57":2},"count":200,"sum_ms":1855.9032167998243,"min_ms":4.465789080747524,"max_ms":16.10295150227699}',1);
INSERT INTO "telemetry" VALUES(3,'sim0-3','25ed40baabdb365cf1fdefb5faab8839015bc74aaa93c8455d3b8723973634b8','simulated','CPUExecutionProvider','sim-arm-a76',1.79540565985728812212e+09,1.00612640380859375e-04,1.79540565986655831342e+09,0,'{"growth":1.05,"counts":{"33":1,"34":1,"36":2,"37":4,"38":5,"39":2,"40":6,"41":7,"42":17,"43":20,"44":16,"45":18,"46":12,"47":15,"48":13,"49":19,"50":14,"51":8,"52":8,"53":7,"54":1,"55":2,"56":1,"57":1},"count":200,"sum_ms":1862.3067131073458,"min_ms":4.767636494513806,"max_ms":15.592465715027561}',1);
CREATE INDEX ix_devices_device_group ON devices (device_group);
CREATE INDEX ix_rollouts_state ON rollouts (state);
CREATE INDEX assignments_by_device ON assignments (device, sequence);
CREATE INDEX ix_events_received_at ON events (received_at);
CREATE INDEX ix_telemetry_digest ON telemetry (digest);
CREATE INDEX ix_telemetry_received_at ON telemetry (received_at);
COMMIT;
