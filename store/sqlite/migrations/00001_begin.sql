-- +goose Up

-- Instances are the bulk of this table and come and go by the hundred thousand:
-- they get no index but the key.
CREATE TABLE objects (
    kind       TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    project    TEXT    NOT NULL,
    archived   INTEGER NOT NULL,
    rev        INTEGER NOT NULL,
    spec_rev   INTEGER NOT NULL,
    status_rev INTEGER NOT NULL,
    spec       BLOB    NOT NULL,
    status     BLOB,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;

-- Written with OR, because a partial index is only used where one of its terms
-- stands literally in the query.
CREATE INDEX objects_of_project ON objects (kind, project, id)
    WHERE kind = 'version' OR kind = 'task';

-- One row per group commit: the changes first..last, encoded and compressed.
CREATE TABLE changes (
    first INTEGER PRIMARY KEY,
    last  INTEGER NOT NULL,
    at    INTEGER NOT NULL, -- nanoseconds since 1970
    body  BLOB    NOT NULL
);

-- Which projects and tasks a commit speaks of. Keyed by commit for trimming,
-- indexed by name for history.
CREATE TABLE change_project (
    first   INTEGER NOT NULL,
    project TEXT    NOT NULL,
    PRIMARY KEY (first, project)
) WITHOUT ROWID;
CREATE INDEX change_project_history ON change_project (project, first);

CREATE TABLE change_task (
    first INTEGER NOT NULL,
    task  TEXT    NOT NULL,
    PRIMARY KEY (first, task)
) WITHOUT ROWID;
CREATE INDEX change_task_history ON change_task (task, first);

CREATE TABLE leases (
    name   TEXT    PRIMARY KEY,
    holder TEXT    NOT NULL,
    epoch  INTEGER NOT NULL,
    until  INTEGER NOT NULL -- nanoseconds since 1970; 0: no lapse
) WITHOUT ROWID;

CREATE TABLE ledger (
    node      TEXT    PRIMARY KEY,
    instances INTEGER NOT NULL,
    milli_cpu INTEGER NOT NULL,
    memory    INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value      NOT NULL
) WITHOUT ROWID;
INSERT INTO meta (key, value) VALUES ('revision', 0), ('trimmed', 0), ('ping', 0);
