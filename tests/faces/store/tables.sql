CREATE TABLE chunks (
	id INTEGER NOT NULL, 
	unit INTEGER NOT NULL, 
	resolution INTEGER NOT NULL, 
	begins DOUBLE NOT NULL, 
	ends DOUBLE NOT NULL, 
	points INTEGER NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (id)
)
CREATE INDEX chunks_by_age ON chunks (resolution, ends)
CREATE INDEX chunks_by_unit ON chunks (unit, begins)
CREATE TABLE hosts (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	last_time DOUBLE, 
	interval_s DOUBLE, 
	PRIMARY KEY (id), 
	UNIQUE (name)
)
CREATE TABLE jobs (
	id INTEGER NOT NULL, 
	job_id TEXT NOT NULL, 
	shown_id TEXT, 
	user TEXT, 
	state TEXT, 
	facts BLOB NOT NULL, 
	totals BLOB, 
	source TEXT NOT NULL, 
	home TEXT NOT NULL, 
	hosts TEXT NOT NULL, 
	nodes TEXT NOT NULL, 
	account TEXT, 
	partition TEXT, 
	name TEXT, 
	comment TEXT, 
	begins DOUBLE, 
	ends DOUBLE, 
	PRIMARY KEY (id)
)
CREATE INDEX jobs_by_end ON jobs (ends)
CREATE INDEX jobs_by_id ON jobs (job_id, source)
CREATE TABLE lowtide_schema (
	version INTEGER NOT NULL
)
CREATE TABLE origins (
	job INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	sluid TEXT NOT NULL, 
	PRIMARY KEY (job)
)
CREATE INDEX origins_by_sluid ON origins (sluid)
CREATE TABLE phases (
	job INTEGER NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (job)
)
CREATE TABLE synthetic_grids (
	id INTEGER NOT NULL, 
	host INTEGER NOT NULL, 
	begins DOUBLE NOT NULL, 
	ends DOUBLE NOT NULL, 
	PRIMARY KEY (id)
)
CREATE INDEX synthetic_grids_by_host ON synthetic_grids (host, ends)
CREATE TABLE ticks (
	id INTEGER NOT NULL, 
	host INTEGER NOT NULL, 
	since DOUBLE NOT NULL, 
	time DOUBLE NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (id)
)
CREATE INDEX ticks_by_host ON ticks (host, id)
CREATE TABLE units (
	id INTEGER NOT NULL, 
	host INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	job INTEGER, 
	started DOUBLE NOT NULL, 
	totals BLOB NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (host, "key")
)
CREATE INDEX units_by_job ON units (job)
