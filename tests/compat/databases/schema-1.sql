BEGIN TRANSACTION;
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
INSERT INTO "assignments" VALUES(1,'cam-2',0,'COMMITTED',1,1.79539242336488986018e+09,1.79539242511032962794e+09,'served 0.5 s without trouble','');
INSERT INTO "assignments" VALUES(1,'cam-1',1,'COMMITTED',1,1.795392425119125843e+09,1.79539242692241930959e+09,'served 0.5 s without trouble','');
INSERT INTO "assignments" VALUES(2,'cam-2',0,'WORKING',2,1.79539242732748723033e+09,NULL,'','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e');
INSERT INTO "assignments" VALUES(2,'cam-1',1,'WAITING',NULL,NULL,NULL,'','');
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
	desired_sent_at DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "devices" VALUES('cam-1','cameras',1.79539241940811777117e+09,1,1.79539242692241930959e+09,'54a7258c4ac19ad9',6,'{"v":1,"online":true,"at":1795392426.920058,"boot":"54a7258c4ac19ad9","count":6,"facts":{"arch":"aarch64","cpu_model":"sim-x86-vnni","cpu_count":4,"cpu_features":[],"memory_bytes":4294967296,"os":"simulated","soc":"","python":"3.11","agent_version":"simulated","runtime":"simulated","providers":[],"drivers":{},"hardware_class":"sim-x86-vnni"},"state":"COMMITTED","because":"served 0.5 s without trouble","sequence":1,"rollout":"r1","target":{"name":"digits","version":"1.0.0","release":1,"digest":"02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e"},"active":{"bundle":{"name":"digits","version":"1.0.0","release":1,"digest":"02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e"},"choice":{"wanted":"","chosen":"simulated","provider":"CPUExecutionProvider","because":"simulated","is_fallback":false,"probes":[],"rejected":{}},"since":1795392426.9200218},"previous":null,"progress":0.0}',1,'sim-x86-vnni','{"v":1,"sequence":1,"rollout":"r1","bundle":{"name":"digits","version":"1.0.0","release":1,"digest":"02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e"},"manifest":{"path":"manifest.json","size_bytes":1605,"sha256":"e5168c9846b1ca441c4a106476d454de9218f884e76da0ce51856444bfe97d42"},"signature":{"path":"model.sig","size_bytes":1444,"sha256":"c9c8be6f1b4a7125d2189dd59d7b8391b86c3b261da778f23089abb5582ed2a8"},"soak_s":0.5,"rollback":false,"issued_at":1795392425.1191258,"expires_at":null}',1,1.795392425119125843e+09);
INSERT INTO "devices" VALUES('cam-2','cameras',1.79539241942332029348e+09,1,1.79539242906593227381e+09,'d02474a5314e7029',11,'{"v":1,"online":true,"at":1795392429.064085,"boot":"d02474a5314e7029","count":11,"facts":{"arch":"aarch64","cpu_model":"sim-hexagon-v73","cpu_count":4,"cpu_features":[],"memory_bytes":4294967296,"os":"simulated","soc":"","python":"3.11","agent_version":"simulated","runtime":"simulated","providers":[],"drivers":{},"hardware_class":"sim-hexagon-v73"},"state":"SOAKING","because":"","sequence":2,"rollout":"r2","target":{"name":"digits","version":"2.0.0","release":2,"digest":"5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33"},"active":{"bundle":{"name":"digits","version":"1.0.0","release":1,"digest":"02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e"},"choice":{"wanted":"","chosen":"simulated","provider":"CPUExecutionProvider","because":"simulated","is_fallback":false,"probes":[],"rejected":{}},"since":1795392425.105143},"previous":null,"progress":0.0}',2,'sim-hexagon-v73','{"v":1,"sequence":2,"rollout":"r2","bundle":{"name":"digits","version":"2.0.0","release":2,"digest":"5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33"},"manifest":{"path":"manifest.json","size_bytes":1605,"sha256":"7d2891ad973ad406451e57a3eb1e9f948561be840c38dddbf7a9326d328109be"},"signature":{"path":"model.sig","size_bytes":1444,"sha256":"43ada0e8668509f772f11490082e11e950d40a3940ff7c8504c6c7646d3bfbe5"},"soak_s":60.0,"rollback":false,"issued_at":1795392427.3274872,"expires_at":null}',2,1.79539242732748723033e+09);
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
INSERT INTO "events" VALUES(1,1.79539242335405945776e+09,1.79539242335405945776e+09,'','rollout','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','','RUNNING','started for group cameras','r1');
INSERT INTO "events" VALUES(2,1.79539242336488986018e+09,1.79539242336488986018e+09,'','rollout','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','RUNNING','RUNNING','wave 1 of 2: 1 device','r1');
INSERT INTO "events" VALUES(3,1.79539242337856101987e+09,1.7953924234225895405e+09,'cam-2','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','IDLE','DOWNLOADING','','r1');
INSERT INTO "events" VALUES(4,1795392424.3884,1.79539242439256429674e+09,'cam-2','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','DOWNLOADING','VERIFIED','','r1');
INSERT INTO "events" VALUES(5,1.79539242449264383316e+09,1.79539242449629592897e+09,'cam-2','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','VERIFIED','PROBING','','r1');
INSERT INTO "events" VALUES(6,1.79539242459479355816e+09,1.79539242459941196438e+09,'cam-2','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','PROBING','SOAKING','','r1');
INSERT INTO "events" VALUES(7,1.79539242510533833506e+09,1.79539242511456775667e+09,'cam-2','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','SOAKING','COMMITTED','served 0.5 s without trouble','r1');
INSERT INTO "events" VALUES(8,1.795392425119125843e+09,1.795392425119125843e+09,'','rollout','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','RUNNING','RUNNING','wave 2 of 2: 1 device','r1');
INSERT INTO "events" VALUES(9,1.79539242512284660333e+09,1.79539242516683244708e+09,'cam-1','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','IDLE','DOWNLOADING','','r1');
INSERT INTO "events" VALUES(10,1.79539242621064019204e+09,1.79539242621501755718e+09,'cam-1','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','DOWNLOADING','VERIFIED','','r1');
INSERT INTO "events" VALUES(11,1.7953924263142857551e+09,1.79539242631965756413e+09,'cam-1','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','VERIFIED','PROBING','','r1');
INSERT INTO "events" VALUES(12,1.79539242641572713852e+09,1.79539242642129492758e+09,'cam-1','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','PROBING','SOAKING','','r1');
INSERT INTO "events" VALUES(13,1.79539242692579579358e+09,1.79539242692579579358e+09,'','rollout','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','RUNNING','FINISHED','2 of 2 devices committed, 0 failed or stayed silent','r1');
INSERT INTO "events" VALUES(14,1.79539242692022657389e+09,1.7953924269282529354e+09,'cam-1','transition','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','SOAKING','COMMITTED','served 0.5 s without trouble','r1');
INSERT INTO "events" VALUES(15,1.79539242732095026969e+09,1.79539242732095026969e+09,'','rollout','5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33','','RUNNING','started for group cameras','r2');
INSERT INTO "events" VALUES(16,1.79539242732748723033e+09,1.79539242732748723033e+09,'','rollout','5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33','RUNNING','RUNNING','wave 1 of 2: 1 device','r2');
INSERT INTO "events" VALUES(17,1.79539242733910441398e+09,1.7953924273856980801e+09,'cam-2','transition','5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33','COMMITTED','DOWNLOADING','','r2');
INSERT INTO "events" VALUES(18,1.79539242850276064872e+09,1.79539242850276064872e+09,'','rollout','5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33','RUNNING','PAUSED','paused by a person','r2');
INSERT INTO "events" VALUES(19,1.79539242881827640534e+09,1.79539242882040262221e+09,'cam-2','transition','5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33','DOWNLOADING','VERIFIED','','r2');
INSERT INTO "events" VALUES(20,1.79539242896268725398e+09,1.79539242896691608429e+09,'cam-2','transition','5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33','VERIFIED','PROBING','','r2');
INSERT INTO "events" VALUES(21,1.79539242906424951554e+09,1.79539242906593227381e+09,'cam-2','transition','5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33','PROBING','SOAKING','','r2');
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
	added_at DOUBLE NOT NULL, 
	PRIMARY KEY (digest)
);
INSERT INTO "releases" VALUES('02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','digits','1.0.0',1,'02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e',300504,'e5168c9846b1ca441c4a106476d454de9218f884e76da0ce51856444bfe97d42',1605,'c9c8be6f1b4a7125d2189dd59d7b8391b86c3b261da778f23089abb5582ed2a8',1444,1.79539242334787678715e+09);
INSERT INTO "releases" VALUES('5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33','digits','2.0.0',2,'5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33',300504,'7d2891ad973ad406451e57a3eb1e9f948561be840c38dddbf7a9326d328109be',1605,'43ada0e8668509f772f11490082e11e950d40a3940ff7c8504c6c7646d3bfbe5',1444,1.79539242731535339352e+09);
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
	changed_at DOUBLE NOT NULL, 
	PRIMARY KEY (number), 
	FOREIGN KEY(digest) REFERENCES releases (digest)
);
INSERT INTO "rollouts" VALUES(1,'02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','{"kind":"group","group":"cameras","devices":[]}','1,100%',1,2,0.5,900.0,0.1,5,'pause',0,'FINISHED','2 of 2 devices committed, 0 failed or stayed silent',1.79539242335405945776e+09,1.79539242692579579358e+09);
INSERT INTO "rollouts" VALUES(2,'5920d6729281bc76d05bc4bd7e26de7eaf948c5fae6854cb8403c59f1cf5de33','{"kind":"group","group":"cameras","devices":[]}','1,100%',0,2,60.0,900.0,0.1,5,'pause',0,'PAUSED','paused by a person',1.79539242732095026969e+09,1.79539242850276064872e+09);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
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
	histogram TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (device, digest, variant, provider, window_start)
);
INSERT INTO "telemetry" VALUES(1,'cam-2','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','simulated','CPUExecutionProvider','sim-hexagon-v73',1.79539242510514307025e+09,2.193450927734375e-04,1.79539242511456775667e+09,0,'{"growth":1.05,"counts":{"-4":1,"-1":1,"0":1,"1":4,"2":5,"3":8,"4":5,"5":9,"6":13,"7":21,"8":24,"9":26,"10":19,"11":11,"12":17,"13":13,"14":8,"15":2,"16":6,"17":2,"18":2,"19":2},"count":200,"sum_ms":306.49280406244833,"min_ms":0.792269157007218,"max_ms":2.454628358844775}');
INSERT INTO "telemetry" VALUES(2,'cam-1','02c6962b60179f3d3f42524c23fd3798d77f9ed09fe6e3ccc13477a312e5388e','simulated','CPUExecutionProvider','sim-x86-vnni',1.79539242692002177234e+09,0.00023651123046875,1.7953924269282529354e+09,0,'{"growth":1.05,"counts":{"18":1,"21":2,"22":2,"23":6,"24":6,"25":8,"26":13,"27":28,"28":18,"29":15,"30":15,"31":17,"32":16,"33":17,"34":12,"35":7,"36":6,"37":5,"38":2,"39":3,"40":1},"count":200,"sum_ms":849.8650255258323,"min_ms":2.3217376880205536,"max_ms":6.711719665353071}');
CREATE INDEX ix_devices_device_group ON devices (device_group);
CREATE INDEX ix_events_received_at ON events (received_at);
CREATE INDEX ix_telemetry_digest ON telemetry (digest);
CREATE INDEX ix_telemetry_received_at ON telemetry (received_at);
CREATE INDEX ix_rollouts_state ON rollouts (state);
CREATE INDEX assignments_by_device ON assignments (device, sequence);
COMMIT;
