BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
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
	hardware_class VARCHAR NOT NULL, 
	site VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	PRIMARY KEY (rollout, device), 
	FOREIGN KEY(rollout) REFERENCES rollouts (number), 
	FOREIGN KEY(device) REFERENCES devices (id)
);
INSERT INTO "assignments" VALUES(1,'cam-1',0,'COMMITTED',1,1.79589928725114202504e+09,1.79589928731709337237e+09,'','','not reported yet','','');
INSERT INTO "assignments" VALUES(1,'cam-2',0,'COMMITTED',1,1.79589928725114202504e+09,1.79589928742067861553e+09,'','','not reported yet','','');
INSERT INTO "assignments" VALUES(1,'cam-3',0,'COMMITTED',1,1.79589928725114202504e+09,1.79589928749595618244e+09,'','','not reported yet','','');
INSERT INTO "assignments" VALUES(2,'cam-1',0,'WORKING',2,1.79589928764305686945e+09,NULL,'','0101010101010101010101010101010101010101010101010101010101010101','not reported yet','berlin','');
INSERT INTO "assignments" VALUES(2,'cam-2',0,'FAILED',2,1.79589928764305686945e+09,1.79589928771581912045e+09,'too hot','0101010101010101010101010101010101010101010101010101010101010101','not reported yet','berlin','');
INSERT INTO "assignments" VALUES(2,'cam-3',1,'WAITING',NULL,NULL,NULL,'','','not reported yet','berlin','');
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	actor VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	rollout VARCHAR NOT NULL, 
	device VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	because TEXT NOT NULL, 
	numbers TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "audit" VALUES(1,1.0,'controller','device.label','','cam-1','','','site=berlin','{}');
INSERT INTO "audit" VALUES(2,1.0,'controller','device.enroll','','cam-2','','','enrolled in group g','{}');
INSERT INTO "audit" VALUES(3,1.0,'controller','device.label','','cam-2','','','site=berlin','{}');
INSERT INTO "audit" VALUES(4,1.0,'controller','device.enroll','','cam-3','','','enrolled in group g','{}');
INSERT INTO "audit" VALUES(5,1.0,'controller','device.label','','cam-3','','','site=berlin','{}');
INSERT INTO "audit" VALUES(6,1.0,'controller','rollout.start','r1','','digits','0101010101010101010101010101010101010101010101010101010101010101','started for group g','{"devices":3,"waves":"100%","control":"","soak_s":2.0,"min_inferences":0,"shadow":false,"shadow_differs":0.02,"deadline_s":900.0,"max_failed_share":0.1,"min_sample":5,"on_breach":"pause","gate_evidence":"required","split_by":"","evidence_s":900.0,"look_s":600.0,"max_per_site":0,"approve_waves":false,"not_before":null,"window":"","supersede":false}');
INSERT INTO "audit" VALUES(7,1.79589928725114202504e+09,'controller','rollout.wave','r1','','digits','0101010101010101010101010101010101010101010101010101010101010101','wave 1 of 1: 3 devices','{"wave":1,"devices":3}');
INSERT INTO "audit" VALUES(8,1.79589928752303242681e+09,'controller','rollout.finish','r1','','digits','0101010101010101010101010101010101010101010101010101010101010101','3 of 3 devices committed, 0 failed or stayed silent','{"committed":3,"failures":0.0}');
INSERT INTO "audit" VALUES(9,1.0,'controller','rollout.start','r2','','digits','0202020202020202020202020202020202020202020202020202020202020202','started for group g','{"devices":3,"waves":"2,100%","control":"","soak_s":10.0,"min_inferences":0,"shadow":false,"shadow_differs":0.02,"deadline_s":900.0,"max_failed_share":0.1,"min_sample":1,"on_breach":"pause","gate_evidence":"required","split_by":"","evidence_s":900.0,"look_s":600.0,"max_per_site":3,"approve_waves":false,"not_before":null,"window":"","supersede":false}');
INSERT INTO "audit" VALUES(10,1.79589928764305686945e+09,'controller','rollout.wave','r2','','digits','0202020202020202020202020202020202020202020202020202020202020202','wave 1 of 2: 2 devices','{"wave":1,"devices":2}');
INSERT INTO "audit" VALUES(11,1.79589928773896813397e+09,'gate failures','rollout.breach','r2','','digits','0202020202020202020202020202020202020202020202020202020202020202','1 of 1 decided device of wave 1 failed or stayed silent (100%), more than 10%','{"gate":"failures","hardware_class":"","wave":1,"devices":1,"value":1.0,"bound":0.0013472437845109106,"threshold":0.1,"now":1.0,"on_breach":"pause"}');
CREATE TABLE captured_devices (
	capture INTEGER NOT NULL, 
	device VARCHAR NOT NULL, 
	PRIMARY KEY (capture, device)
);
CREATE TABLE captures (
	number INTEGER NOT NULL, 
	model VARCHAR NOT NULL, 
	"of" TEXT NOT NULL, 
	samples INTEGER NOT NULL, 
	share INTEGER NOT NULL, 
	recipient TEXT NOT NULL, 
	collect_s DOUBLE NOT NULL, 
	made_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	PRIMARY KEY (number)
);
CREATE TABLE certificates (
	serial VARCHAR NOT NULL, 
	device VARCHAR NOT NULL, 
	key_id VARCHAR NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	pem TEXT NOT NULL, 
	PRIMARY KEY (serial)
);
INSERT INTO "certificates" VALUES('1f241866babef5c81ab837f2b6f74f5e','cam-1','14b6ba6ac2c3f9b701f29166911c879d3066da07e9a699f1a658c0e990832be8',100000000000.0,'-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUYAJmmNWkcmBV/Uf/bo0hkkfpYZ0wCgYIKoZIzj0EAwIw
DjEMMAoGA1UEAwwDYW55MB4XDTI2MTEyODE5NTQzOVoXDTI2MTEyODIxNTQzOVow
DjEMMAoGA1UEAwwDYW55MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEA1OJCIMK
BjtfWP5kE6FlvHezqbCP5POkKxCK71c649+QgwhioKVIp4vjvXxUaq+Le9h0ItSP
tIJ7nDcYMSOlDqNhMF8wDAYDVR0TAQH/BAIwADAdBgNVHQ4EFgQU0l4f5M8/esDA
R1lZbhRbOBw9YdcwHwYDVR0jBBgwFoAU0l4f5M8/esDAR1lZbhRbOBw9YdcwDwYD
VR0RBAgwBocEfwAAATAKBggqhkjOPQQDAgNIADBFAiBbG8GFIjDpRoWpEMhJGexJ
GzQWlMfsbsYX+i8L7B8ONwIhAIwSsE466TQiQiwf0f7KB569EMXbqS2Zimsswg5l
YBYB
-----END CERTIFICATE-----
');
INSERT INTO "certificates" VALUES('b89d96e9d4b14fbe99016a2225581076','cam-2','14b6ba6ac2c3f9b701f29166911c879d3066da07e9a699f1a658c0e990832be8',100000000000.0,'-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUYAJmmNWkcmBV/Uf/bo0hkkfpYZ0wCgYIKoZIzj0EAwIw
DjEMMAoGA1UEAwwDYW55MB4XDTI2MTEyODE5NTQzOVoXDTI2MTEyODIxNTQzOVow
DjEMMAoGA1UEAwwDYW55MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEA1OJCIMK
BjtfWP5kE6FlvHezqbCP5POkKxCK71c649+QgwhioKVIp4vjvXxUaq+Le9h0ItSP
tIJ7nDcYMSOlDqNhMF8wDAYDVR0TAQH/BAIwADAdBgNVHQ4EFgQU0l4f5M8/esDA
R1lZbhRbOBw9YdcwHwYDVR0jBBgwFoAU0l4f5M8/esDAR1lZbhRbOBw9YdcwDwYD
VR0RBAgwBocEfwAAATAKBggqhkjOPQQDAgNIADBFAiBbG8GFIjDpRoWpEMhJGexJ
GzQWlMfsbsYX+i8L7B8ONwIhAIwSsE466TQiQiwf0f7KB569EMXbqS2Zimsswg5l
YBYB
-----END CERTIFICATE-----
');
INSERT INTO "certificates" VALUES('9d707e90429add53418f7ed0aeb4ca40','cam-3','14b6ba6ac2c3f9b701f29166911c879d3066da07e9a699f1a658c0e990832be8',100000000000.0,'-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUYAJmmNWkcmBV/Uf/bo0hkkfpYZ0wCgYIKoZIzj0EAwIw
DjEMMAoGA1UEAwwDYW55MB4XDTI2MTEyODE5NTQzOVoXDTI2MTEyODIxNTQzOVow
DjEMMAoGA1UEAwwDYW55MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEA1OJCIMK
BjtfWP5kE6FlvHezqbCP5POkKxCK71c649+QgwhioKVIp4vjvXxUaq+Le9h0ItSP
tIJ7nDcYMSOlDqNhMF8wDAYDVR0TAQH/BAIwADAdBgNVHQ4EFgQU0l4f5M8/esDA
R1lZbhRbOBw9YdcwHwYDVR0jBBgwFoAU0l4f5M8/esDAR1lZbhRbOBw9YdcwDwYD
VR0RBAgwBocEfwAAATAKBggqhkjOPQQDAgNIADBFAiBbG8GFIjDpRoWpEMhJGexJ
GzQWlMfsbsYX+i8L7B8ONwIhAIwSsE466TQiQiwf0f7KB569EMXbqS2Zimsswg5l
YBYB
-----END CERTIFICATE-----
');
CREATE TABLE device_logs (
	device VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	wanted INTEGER NOT NULL, 
	asked_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	received_at DOUBLE NOT NULL, 
	because VARCHAR NOT NULL, 
	lines TEXT NOT NULL, 
	PRIMARY KEY (device)
);
CREATE TABLE device_models (
	device VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	variant VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	is_fallback BOOLEAN NOT NULL, 
	PRIMARY KEY (device, name)
);
INSERT INTO "device_models" VALUES('cam-1','digits','SOAKING','0202020202020202020202020202020202020202020202020202020202020202','2.0.0','cpu','CPUExecutionProvider',0);
INSERT INTO "device_models" VALUES('cam-2','digits','ROLLED_BACK','0101010101010101010101010101010101010101010101010101010101010101','1.0.0','cpu','CPUExecutionProvider',0);
INSERT INTO "device_models" VALUES('cam-3','digits','COMMITTED','0101010101010101010101010101010101010101010101010101010101010101','1.0.0','cpu','CPUExecutionProvider',0);
CREATE TABLE devices (
	id VARCHAR NOT NULL, 
	device_group VARCHAR NOT NULL, 
	enrolled_at DOUBLE NOT NULL, 
	online BOOLEAN NOT NULL, 
	last_seen DOUBLE, 
	boot VARCHAR NOT NULL, 
	session VARCHAR NOT NULL, 
	report_count INTEGER NOT NULL, 
	event_count INTEGER NOT NULL, 
	reported TEXT, 
	reported_sequence INTEGER NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	desired TEXT, 
	desired_sequence INTEGER NOT NULL, 
	desired_sent_at DOUBLE NOT NULL, 
	labels TEXT NOT NULL, 
	certificate VARCHAR NOT NULL, 
	standing VARCHAR NOT NULL, 
	symptom VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "devices" VALUES('cam-1','g',1.0,1,1.79589928768058085446e+09,'b1','c3ff2e1dd621ae8c of cam-1 b1',3,0,'{"v":1,"minor":0,"online":true,"at":1.0,"boot":"b1","facts":null,"sequence":2,"models":{"digits":{"state":"SOAKING","because":"","sequence":2,"acted_sequence":0,"rollout":"","target":null,"active":{"bundle":{"name":"digits","version":"2.0.0","release":2,"digest":"0202020202020202020202020202020202020202020202020202020202020202"},"choice":{"wanted":"","chosen":"cpu","provider":"CPUExecutionProvider","because":"","is_fallback":false,"probes":[],"rejected":{}},"since":1.0},"previous":{"name":"digits","version":"1.0.0","release":1,"digest":"0101010101010101010101010101010101010101010101010101010101010101"},"is_too_slow":false,"progress":0.0,"outcomes":null,"drift":null,"watch":null,"capture":null}},"warnings":[],"trust":null,"renewal":null}',2,'','{"v":1,"minor":0,"sequence":2,"models":{"digits":{"do":"run","sequence":2,"rollout":"r2","bundle":{"name":"digits","version":"2.0.0","release":2,"digest":"0202020202020202020202020202020202020202020202020202020202020202"},"manifest":{"path":"manifest.json","size_bytes":10,"sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},"signature":{"path":"model.sig","size_bytes":10,"sha256":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"},"soak_s":10.0,"min_inferences":0,"deadline_s":810.0,"rollback":false,"max_slowdown":1.1,"shadow":null,"issued_at":1795899287.6430569,"expires_at":null}},"captures":{},"log":null}',2,1.79589928764305686945e+09,'{"site":"berlin"}','','updating','');
INSERT INTO "devices" VALUES('cam-2','g',1.0,1,1.79589928771581912045e+09,'b1','c3ff2e1dd621ae8c of cam-2 b1',3,0,'{"v":1,"minor":0,"online":true,"at":1.0,"boot":"b1","facts":null,"sequence":2,"models":{"digits":{"state":"ROLLED_BACK","because":"too hot","sequence":2,"acted_sequence":0,"rollout":"","target":null,"active":{"bundle":{"name":"digits","version":"1.0.0","release":1,"digest":"0101010101010101010101010101010101010101010101010101010101010101"},"choice":{"wanted":"","chosen":"cpu","provider":"CPUExecutionProvider","because":"","is_fallback":false,"probes":[],"rejected":{}},"since":1.0},"previous":null,"is_too_slow":false,"progress":0.0,"outcomes":null,"drift":null,"watch":null,"capture":null}},"warnings":[],"trust":null,"renewal":null}',2,'','{"v":1,"minor":0,"sequence":2,"models":{"digits":{"do":"run","sequence":2,"rollout":"r2","bundle":{"name":"digits","version":"2.0.0","release":2,"digest":"0202020202020202020202020202020202020202020202020202020202020202"},"manifest":{"path":"manifest.json","size_bytes":10,"sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},"signature":{"path":"model.sig","size_bytes":10,"sha256":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"},"soak_s":10.0,"min_inferences":0,"deadline_s":810.0,"rollback":false,"max_slowdown":1.1,"shadow":null,"issued_at":1795899287.6430569,"expires_at":null}},"captures":{},"log":null}',2,1.79589928764305686945e+09,'{"site":"berlin"}','','failing','');
INSERT INTO "devices" VALUES('cam-3','g',1.0,1,1.79589928749595618244e+09,'b1','c3ff2e1dd621ae8c of cam-3 b1',2,0,'{"v":1,"minor":0,"online":true,"at":1.0,"boot":"b1","facts":null,"sequence":1,"models":{"digits":{"state":"COMMITTED","because":"","sequence":1,"acted_sequence":0,"rollout":"","target":null,"active":{"bundle":{"name":"digits","version":"1.0.0","release":1,"digest":"0101010101010101010101010101010101010101010101010101010101010101"},"choice":{"wanted":"","chosen":"cpu","provider":"CPUExecutionProvider","because":"","is_fallback":false,"probes":[],"rejected":{}},"since":1.0},"previous":null,"is_too_slow":false,"progress":0.0,"outcomes":null,"drift":null,"watch":null,"capture":null}},"warnings":[],"trust":null,"renewal":null}',1,'','{"v":1,"minor":0,"sequence":1,"models":{"digits":{"do":"run","sequence":1,"rollout":"r1","bundle":{"name":"digits","version":"1.0.0","release":1,"digest":"0101010101010101010101010101010101010101010101010101010101010101"},"manifest":{"path":"manifest.json","size_bytes":10,"sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},"signature":{"path":"model.sig","size_bytes":10,"sha256":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"},"soak_s":2.0,"min_inferences":0,"deadline_s":810.0,"rollback":false,"max_slowdown":1.1,"shadow":null,"issued_at":1795899287.251142,"expires_at":null}},"captures":{},"log":null}',1,1.79589928725114202504e+09,'{"site":"berlin"}','','settled','');
CREATE TABLE enrolment_tokens (
	hash VARCHAR NOT NULL, 
	device VARCHAR NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	key_id VARCHAR NOT NULL, 
	PRIMARY KEY (hash)
);
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
INSERT INTO "events" VALUES(1,1.0,1.0,'','rollout','0101010101010101010101010101010101010101010101010101010101010101','','RUNNING','started for group g','r1');
INSERT INTO "events" VALUES(2,1.79589928725114202504e+09,1.79589928725114202504e+09,'','rollout','0101010101010101010101010101010101010101010101010101010101010101','RUNNING','RUNNING','wave 1 of 1: 3 devices','r1');
INSERT INTO "events" VALUES(3,1.79589928752303242681e+09,1.79589928752303242681e+09,'','rollout','0101010101010101010101010101010101010101010101010101010101010101','RUNNING','FINISHED','3 of 3 devices committed, 0 failed or stayed silent','r1');
INSERT INTO "events" VALUES(4,1.0,1.0,'','rollout','0202020202020202020202020202020202020202020202020202020202020202','','RUNNING','started for group g','r2');
INSERT INTO "events" VALUES(5,1.79589928764305686945e+09,1.79589928764305686945e+09,'','rollout','0202020202020202020202020202020202020202020202020202020202020202','RUNNING','RUNNING','wave 1 of 2: 2 devices','r2');
INSERT INTO "events" VALUES(6,1.79589928773896813397e+09,1.79589928773896813397e+09,'','rollout','0202020202020202020202020202020202020202020202020202020202020202','RUNNING','PAUSED','1 of 1 decided device of wave 1 failed or stayed silent (100%), more than 10%','r2');
CREATE TABLE label_sets (
	id INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	labels TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (digest)
);
INSERT INTO "label_sets" VALUES(1,'2a25fe5ded80a5f5b9d2f14d1109abf966fec225a38a12f0e9280a7985b8ccec','{"site":"berlin"}');
CREATE TABLE labelled_latency (
	label_set INTEGER NOT NULL, 
	rollout INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	device_group VARCHAR NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	variant VARCHAR NOT NULL, 
	is_simulator BOOLEAN NOT NULL, 
	length_s INTEGER NOT NULL, 
	start INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	histogram TEXT NOT NULL, 
	first_tokens TEXT NOT NULL, 
	PRIMARY KEY (label_set, rollout, digest, device_group, hardware_class, provider, variant, is_simulator, length_s, start)
);
INSERT INTO "labelled_latency" VALUES(1,1,'0101010101010101010101010101010101010101010101010101010101010101','g','','CPUExecutionProvider','cpu',0,3600,1795896000,0,'{"growth":1.05,"counts":{"0":3,"15":3,"23":3},"count":9,"sum_ms":18.0,"min_ms":1.0,"max_ms":3.0}','{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}');
INSERT INTO "labelled_latency" VALUES(1,1,'0101010101010101010101010101010101010101010101010101010101010101','g','','CPUExecutionProvider','cpu',0,86400,1795824000,0,'{"growth":1.05,"counts":{"0":3,"15":3,"23":3},"count":9,"sum_ms":18.0,"min_ms":1.0,"max_ms":3.0}','{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}');
CREATE TABLE latency (
	rollout INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	device_group VARCHAR NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	variant VARCHAR NOT NULL, 
	is_simulator BOOLEAN NOT NULL, 
	length_s INTEGER NOT NULL, 
	start INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	histogram TEXT NOT NULL, 
	first_tokens TEXT NOT NULL, 
	PRIMARY KEY (rollout, digest, device_group, hardware_class, provider, variant, is_simulator, length_s, start)
);
INSERT INTO "latency" VALUES(1,'0101010101010101010101010101010101010101010101010101010101010101','g','','CPUExecutionProvider','cpu',0,60,1795899240,0,'{"growth":1.05,"counts":{"0":3,"15":3,"23":3},"count":9,"sum_ms":18.0,"min_ms":1.0,"max_ms":3.0}','{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}');
INSERT INTO "latency" VALUES(1,'0101010101010101010101010101010101010101010101010101010101010101','g','','CPUExecutionProvider','cpu',0,3600,1795896000,0,'{"growth":1.05,"counts":{"0":3,"15":3,"23":3},"count":9,"sum_ms":18.0,"min_ms":1.0,"max_ms":3.0}','{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}');
INSERT INTO "latency" VALUES(1,'0101010101010101010101010101010101010101010101010101010101010101','g','','CPUExecutionProvider','cpu',0,86400,1795824000,0,'{"growth":1.05,"counts":{"0":3,"15":3,"23":3},"count":9,"sum_ms":18.0,"min_ms":1.0,"max_ms":3.0}','{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}');
CREATE TABLE latency_sources (
	device VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	variant VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	rollout INTEGER NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	is_simulator BOOLEAN NOT NULL, 
	told_at DOUBLE NOT NULL, 
	PRIMARY KEY (device, digest, variant, provider)
);
INSERT INTO "latency_sources" VALUES('cam-1','0101010101010101010101010101010101010101010101010101010101010101','cpu','CPUExecutionProvider',1,'',0,1.79589928735604500769e+09);
INSERT INTO "latency_sources" VALUES('cam-2','0101010101010101010101010101010101010101010101010101010101010101','cpu','CPUExecutionProvider',1,'',0,1.79589928746327638633e+09);
INSERT INTO "latency_sources" VALUES('cam-3','0101010101010101010101010101010101010101010101010101010101010101','cpu','CPUExecutionProvider',1,'',0,1.79589928757629847528e+09);
CREATE TABLE leases (
	name VARCHAR NOT NULL, 
	epoch INTEGER NOT NULL, 
	renewals INTEGER NOT NULL, 
	holder VARCHAR NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	asked INTEGER NOT NULL, 
	voice VARCHAR NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE looks (
	rollout INTEGER NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	wave INTEGER NOT NULL, 
	look INTEGER NOT NULL, 
	taken_at DOUBLE NOT NULL, 
	found TEXT NOT NULL, 
	PRIMARY KEY (rollout, hardware_class, wave, look)
);
INSERT INTO "looks" VALUES(1,'not reported yet',0,5,1.79589928752303242681e+09,'{"p95":{"devices":0,"unbased":0,"value":0.0,"bound":0.0,"before":0.0,"controls":null,"squares":0.0},"p99":{"devices":0,"unbased":0,"value":0.0,"bound":0.0,"before":0.0,"controls":null,"squares":0.0},"memory":{"devices":0,"unbased":0,"value":0.0,"bound":0.0,"before":0.0,"controls":null,"squares":0.0},"temperature":{"devices":0,"unbased":0,"value":0.0,"bound":0.0,"before":0.0,"controls":null,"squares":0.0},"drift":{"devices":0,"unbased":0,"value":0.0,"bound":0.0,"before":0.0,"controls":null,"squares":0.0},"energy":{"devices":0,"unbased":0,"value":0.0,"bound":0.0,"before":0.0,"controls":null,"squares":0.0},"first_token":{"devices":0,"unbased":0,"value":0.0,"bound":0.0,"before":0.0,"controls":null,"squares":0.0}}');
CREATE TABLE measurements (
	device VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	rollout INTEGER NOT NULL, 
	wave INTEGER NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	"before" VARCHAR NOT NULL, 
	look_s DOUBLE NOT NULL, 
	is_compared BOOLEAN NOT NULL, 
	baseline TEXT NOT NULL, 
	measured TEXT NOT NULL, 
	told TEXT NOT NULL, 
	PRIMARY KEY (device, digest)
);
INSERT INTO "measurements" VALUES('cam-1','0101010101010101010101010101010101010101010101010101010101010101',1,0,'not reported yet','',600.0,0,'{}','{"fallbacks":[0.0,null]}','{"older":[0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"recent":[1,{"growth":1.05,"counts":{"0":1,"15":1,"23":1},"count":3,"sum_ms":6.0,"min_ms":1.0,"max_ms":3.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"packed":[],"timed_s":0.0,"closed":0,"began":1795899257.356045,"current":[1,{"growth":1.05,"counts":{"0":1,"15":1,"23":1},"count":3,"sum_ms":6.0,"min_ms":1.0,"max_ms":3.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"since":1795899257.356045,"until":1795899287.356045}');
INSERT INTO "measurements" VALUES('cam-2','0101010101010101010101010101010101010101010101010101010101010101',1,0,'not reported yet','',600.0,0,'{}','{"fallbacks":[0.0,null]}','{"older":[0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"recent":[1,{"growth":1.05,"counts":{"0":1,"15":1,"23":1},"count":3,"sum_ms":6.0,"min_ms":1.0,"max_ms":3.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"packed":[],"timed_s":0.0,"closed":0,"began":1795899257.4632764,"current":[1,{"growth":1.05,"counts":{"0":1,"15":1,"23":1},"count":3,"sum_ms":6.0,"min_ms":1.0,"max_ms":3.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"since":1795899257.4632764,"until":1795899287.4632764}');
INSERT INTO "measurements" VALUES('cam-3','0101010101010101010101010101010101010101010101010101010101010101',1,0,'not reported yet','',600.0,0,'{}','{"fallbacks":[0.0,null]}','{"older":[0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"recent":[1,{"growth":1.05,"counts":{"0":1,"15":1,"23":1},"count":3,"sum_ms":6.0,"min_ms":1.0,"max_ms":3.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"packed":[],"timed_s":0.0,"closed":0,"began":1795899257.5762985,"current":[1,{"growth":1.05,"counts":{"0":1,"15":1,"23":1},"count":3,"sum_ms":6.0,"min_ms":1.0,"max_ms":3.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"since":1795899257.5762985,"until":1795899287.5762985}');
INSERT INTO "measurements" VALUES('cam-1','0202020202020202020202020202020202020202020202020202020202020202',2,0,'not reported yet','0101010101010101010101010101010101010101010101010101010101010101',600.0,0,'{"fallbacks":0.0}','{}','{"older":[0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"recent":[0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"packed":[],"timed_s":0.0,"closed":0,"began":0.0,"current":[0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"since":0.0,"until":0.0}');
INSERT INTO "measurements" VALUES('cam-2','0202020202020202020202020202020202020202020202020202020202020202',2,0,'not reported yet','0101010101010101010101010101010101010101010101010101010101010101',600.0,0,'{"fallbacks":0.0}','{}','{"older":[0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"recent":[0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"packed":[],"timed_s":0.0,"closed":0,"began":0.0,"current":[0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0},0,0,0,0.0,0,0.0,0,0,0,0,0.0,0,{"growth":1.05,"counts":{},"count":0,"sum_ms":0.0,"min_ms":0.0,"max_ms":0.0}],"since":0.0,"until":0.0}');
CREATE TABLE noise (
	digest VARCHAR NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	gate VARCHAR NOT NULL, 
	pairs INTEGER NOT NULL, 
	squares DOUBLE NOT NULL, 
	PRIMARY KEY (digest, hardware_class, gate)
);
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
	deleted_at DOUBLE, 
	source VARCHAR NOT NULL, 
	items VARCHAR NOT NULL, 
	PRIMARY KEY (digest)
);
INSERT INTO "releases" VALUES('0101010101010101010101010101010101010101010101010101010101010101','digits','1.0.0',1,'0101010101010101010101010101010101010101010101010101010101010101',1000,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',10,'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',10,1.0,NULL,'','answers');
INSERT INTO "releases" VALUES('0202020202020202020202020202020202020202020202020202020202020202','digits','2.0.0',2,'0202020202020202020202020202020202020202020202020202020202020202',1000,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',10,'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',10,1.0,NULL,'','answers');
CREATE TABLE rollouts (
	number INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	selector TEXT NOT NULL, 
	settings TEXT NOT NULL, 
	wave INTEGER NOT NULL, 
	wave_count INTEGER NOT NULL, 
	accepted_failures INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	because TEXT NOT NULL, 
	started_at DOUBLE NOT NULL, 
	changed_at DOUBLE NOT NULL, 
	takes_back VARCHAR NOT NULL, 
	evidence_since DOUBLE, 
	held TEXT NOT NULL, 
	accepted TEXT NOT NULL, 
	approved INTEGER NOT NULL, 
	zones TEXT NOT NULL, 
	waits_for TEXT NOT NULL, 
	waits_reason VARCHAR NOT NULL, 
	decided TEXT NOT NULL, 
	decided_at DOUBLE, 
	stopped_by VARCHAR NOT NULL, 
	set_aside TEXT NOT NULL, 
	PRIMARY KEY (number), 
	FOREIGN KEY(digest) REFERENCES releases (digest)
);
INSERT INTO "rollouts" VALUES(1,'0101010101010101010101010101010101010101010101010101010101010101','{"kind":"group","group":"g","where":"","devices":[]}','{"waves":"100%","control":"","soak_s":2.0,"min_inferences":0,"shadow":false,"shadow_differs":0.02,"deadline_s":900.0,"max_failed_share":0.1,"min_sample":5,"on_breach":"pause","gates":{},"gate_evidence":"required","split_by":"","evidence_s":900.0,"look_s":600.0,"max_per_site":0,"approve_waves":false,"not_before":null,"window":"","supersede":false}',0,1,0,'FINISHED','3 of 3 devices committed, 0 failed or stayed silent',1.0,1.79589928752303242681e+09,'',NULL,'{}','[]',0,'[]','','','[{"name":"failures","hardware_class":"","threshold":0.1,"comparison":"share","unit":"%","devices":3,"value":0.0,"bound":null,"before":null,"now":0.0,"verdict":"pass","because":"0 of 3 decided devices of wave 1 failed or stayed silent","controls":null},{"name":"p95","hardware_class":"","threshold":1.1,"comparison":"ratio","unit":"ms","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"p99","hardware_class":"","threshold":1.25,"comparison":"ratio","unit":"ms","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"errors","hardware_class":"","threshold":0.01,"comparison":"rise","unit":"%","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"fallbacks","hardware_class":"not reported yet","threshold":0.1,"comparison":"rise","unit":"%","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no baseline","because":"3 devices measured it, and nothing is known of the release before","controls":null},{"name":"memory","hardware_class":"","threshold":1.2,"comparison":"ratio","unit":"bytes","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"temperature","hardware_class":"","threshold":10.0,"comparison":"rise","unit":"°C","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"golden","hardware_class":"","threshold":0.05,"comparison":"rise","unit":"%","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"shadow","hardware_class":"","threshold":0.05,"comparison":"share","unit":"%","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"drift","hardware_class":"","threshold":null,"comparison":"rise","unit":"SD","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"off","because":"switched off","controls":null},{"name":"energy","hardware_class":"","threshold":null,"comparison":"ratio","unit":"J","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"off","because":"switched off","controls":null},{"name":"first_token","hardware_class":"","threshold":null,"comparison":"ratio","unit":"ms","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"off","because":"switched off","controls":null}]',1.79589928752303242681e+09,'','[]');
INSERT INTO "rollouts" VALUES(2,'0202020202020202020202020202020202020202020202020202020202020202','{"kind":"group","group":"g","where":"","devices":[]}','{"waves":"2,100%","control":"","soak_s":10.0,"min_inferences":0,"shadow":false,"shadow_differs":0.02,"deadline_s":900.0,"max_failed_share":0.1,"min_sample":1,"on_breach":"pause","gates":{},"gate_evidence":"required","split_by":"","evidence_s":900.0,"look_s":600.0,"max_per_site":3,"approve_waves":false,"not_before":null,"window":"","supersede":false}',0,2,0,'PAUSED','1 of 1 decided device of wave 1 failed or stayed silent (100%), more than 10%',1.0,1.79589928773896813397e+09,'',NULL,'{}','[]',0,'[]','','','[{"name":"failures","hardware_class":"","threshold":0.1,"comparison":"share","unit":"%","devices":1,"value":1.0,"bound":0.0013472437845109106,"before":null,"now":1.0,"verdict":"breach","because":"1 of 1 decided device of wave 1 failed or stayed silent (100%), more than 10%","controls":null},{"name":"p95","hardware_class":"","threshold":1.1,"comparison":"ratio","unit":"ms","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"p99","hardware_class":"","threshold":1.25,"comparison":"ratio","unit":"ms","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"errors","hardware_class":"","threshold":0.01,"comparison":"rise","unit":"%","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"fallbacks","hardware_class":"","threshold":0.1,"comparison":"rise","unit":"%","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"memory","hardware_class":"","threshold":1.2,"comparison":"ratio","unit":"bytes","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"temperature","hardware_class":"","threshold":10.0,"comparison":"rise","unit":"°C","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"golden","hardware_class":"","threshold":0.05,"comparison":"rise","unit":"%","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"shadow","hardware_class":"","threshold":0.05,"comparison":"share","unit":"%","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"no evidence","because":"no device measured it","controls":null},{"name":"drift","hardware_class":"","threshold":null,"comparison":"rise","unit":"SD","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"off","because":"switched off","controls":null},{"name":"energy","hardware_class":"","threshold":null,"comparison":"ratio","unit":"J","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"off","because":"switched off","controls":null},{"name":"first_token","hardware_class":"","threshold":null,"comparison":"ratio","unit":"ms","devices":0,"value":null,"bound":null,"before":null,"now":null,"verdict":"off","because":"switched off","controls":null}]',1.79589928773896813397e+09,'gate failures','[]');
CREATE TABLE sample_pieces (
	device VARCHAR NOT NULL, 
	sample VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	content BLOB NOT NULL, 
	PRIMARY KEY (device, sample, number)
);
CREATE TABLE samples (
	device VARCHAR NOT NULL, 
	sample VARCHAR NOT NULL, 
	capture INTEGER NOT NULL, 
	model VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	size_bytes INTEGER NOT NULL, 
	pieces INTEGER NOT NULL, 
	is_whole BOOLEAN NOT NULL, 
	problem VARCHAR NOT NULL, 
	received_at DOUBLE NOT NULL, 
	PRIMARY KEY (device, sample)
);
CREATE TABLE sessions (
	hash VARCHAR NOT NULL, 
	token_hash VARCHAR NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	actor VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	PRIMARY KEY (hash)
);
CREATE TABLE telemetry_sequences (
	device VARCHAR NOT NULL, 
	counted_in VARCHAR NOT NULL, 
	sequence INTEGER NOT NULL, 
	came INTEGER NOT NULL, 
	counted_until DOUBLE NOT NULL, 
	PRIMARY KEY (device)
);
INSERT INTO "telemetry_sequences" VALUES('cam-1','c3ff2e1dd621ae8c of cam-1 b1',1,1,1.79581288735604810719e+09);
INSERT INTO "telemetry_sequences" VALUES('cam-2','c3ff2e1dd621ae8c of cam-2 b1',1,1,1.79581288746327948566e+09);
INSERT INTO "telemetry_sequences" VALUES('cam-3','c3ff2e1dd621ae8c of cam-3 b1',1,1,1.79581288757630157465e+09);
CREATE TABLE tokens (
	name VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	hash VARCHAR NOT NULL, 
	made_at DOUBLE NOT NULL, 
	made_by VARCHAR NOT NULL, 
	expires_at DOUBLE, 
	PRIMARY KEY (name), 
	UNIQUE (hash)
);
CREATE TABLE unsent (
	id INTEGER NOT NULL, 
	device VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE wave_counts (
	rollout INTEGER NOT NULL, 
	wave INTEGER NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	waiting INTEGER NOT NULL, 
	offered INTEGER NOT NULL, 
	working INTEGER NOT NULL, 
	committed INTEGER NOT NULL, 
	failed INTEGER NOT NULL, 
	silent INTEGER NOT NULL, 
	withdrawn INTEGER NOT NULL, 
	recalled INTEGER NOT NULL, 
	PRIMARY KEY (rollout, wave, hardware_class), 
	FOREIGN KEY(rollout) REFERENCES rollouts (number)
);
INSERT INTO "wave_counts" VALUES(1,0,'not reported yet',0,0,0,3,0,0,0,0);
INSERT INTO "wave_counts" VALUES(2,0,'not reported yet',0,0,1,0,1,0,0,0);
INSERT INTO "wave_counts" VALUES(2,1,'not reported yet',1,0,0,0,0,0,0,0);
CREATE TABLE wave_measures (
	rollout INTEGER NOT NULL, 
	wave INTEGER NOT NULL, 
	hardware_class VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	devices INTEGER NOT NULL, 
	PRIMARY KEY (rollout, wave, hardware_class, name)
);
CREATE TABLE webhooks (
	name VARCHAR NOT NULL, 
	"key" VARCHAR NOT NULL, 
	url TEXT NOT NULL, 
	secret VARCHAR NOT NULL, 
	types TEXT NOT NULL, 
	is_unsafe BOOLEAN NOT NULL, 
	made_at DOUBLE NOT NULL, 
	made_by VARCHAR NOT NULL, 
	audit_after INTEGER NOT NULL, 
	event_after INTEGER NOT NULL, 
	delivered INTEGER NOT NULL, 
	skipped INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	because TEXT NOT NULL, 
	next_at DOUBLE NOT NULL, 
	PRIMARY KEY (name)
);
CREATE INDEX ix_devices_online ON devices (online);
CREATE INDEX devices_by_standing ON devices (standing, online, desired_sequence, reported_sequence, symptom, id);
CREATE INDEX ix_devices_device_group ON devices (device_group);
CREATE INDEX device_models_by_release ON device_models (name, digest, version, device);
CREATE INDEX measurements_by_rollout ON measurements (rollout, hardware_class, wave, device) WHERE rollout != 0;
CREATE INDEX events_by_device ON events (device, id);
CREATE INDEX ix_events_received_at ON events (received_at);
CREATE INDEX events_by_rollout ON events (rollout, device, id);
CREATE INDEX ix_certificates_device ON certificates (device);
CREATE INDEX ix_enrolment_tokens_device ON enrolment_tokens (device);
CREATE INDEX ix_sessions_expires_at ON sessions (expires_at);
CREATE INDEX ix_sessions_token_hash ON sessions (token_hash);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX audit_by_rollout ON audit (rollout, id);
CREATE INDEX audit_by_device ON audit (device, id);
CREATE INDEX latency_by_release ON latency (digest, length_s, start);
CREATE INDEX latency_by_age ON latency (length_s, start);
CREATE INDEX labelled_latency_by_age ON labelled_latency (length_s, start);
CREATE INDEX latency_sources_by_kind ON latency_sources (rollout, digest, is_simulator, hardware_class, provider, variant);
CREATE INDEX ix_captures_model ON captures (model);
CREATE INDEX ix_samples_capture ON samples (capture);
CREATE INDEX samples_by_model ON samples (model, is_whole, device, sample);
CREATE INDEX ix_rollouts_state ON rollouts (state);
CREATE INDEX assignments_by_state ON assignments (rollout, state, offered_at);
CREATE INDEX assignments_waiting ON assignments (rollout, wave, device) WHERE state = 'WAITING';
CREATE INDEX assignments_by_device ON assignments (device, sequence);
CREATE INDEX assignments_by_site ON assignments (rollout, site, state) WHERE site != '';
COMMIT;
