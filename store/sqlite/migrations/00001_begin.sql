-- +goose Up

-- Most rows are instances, which are created and deleted by the hundred
-- thousand, so they have no index except the key.
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

-- Written with OR, because SQLite uses a partial index only if the query
-- contains one of its terms literally.
CREATE INDEX objects_of_project ON objects (kind, project, id)
    WHERE kind = 'version' OR kind = 'task';

-- One row per group commit: the changes first..last, encoded and compressed.
CREATE TABLE changes (
    first INTEGER PRIMARY KEY,
    last  INTEGER NOT NULL,
    at    INTEGER NOT NULL, -- nanoseconds since 1970
    body  BLOB    NOT NULL
);

-- The projects and tasks of each commit, keyed by commit for trimming and
-- indexed by name for histories.
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
