-- +goose Up

-- Names are compared byte by byte, as Go does. Halves are JSON, kept as the
-- bytes they came in: jsonb would refuse \u0000 and forget the order of keys.
--
-- Instances are the bulk of this table and come and go by the hundred thousand:
-- they get no index but the key. Most updates write a status: a page keeps room
-- for the next version of its rows, so that they stay out of the indexes.
CREATE TABLE objects (
    kind       text    COLLATE "C" NOT NULL,
    id         text    COLLATE "C" NOT NULL,
    project    text    COLLATE "C" NOT NULL,
    archived   boolean NOT NULL,
    rev        bigint  NOT NULL,
    spec_rev   bigint  NOT NULL,
    status_rev bigint  NOT NULL,
    spec       bytea   NOT NULL,
    status     bytea,
    PRIMARY KEY (kind, id)
) WITH (fillfactor = 70);

CREATE INDEX objects_of_project ON objects (kind, project, id)
    WHERE kind IN ('version', 'task');

-- One row per group commit: the changes first..last, encoded and compressed.
CREATE TABLE changes (
    first bigint      PRIMARY KEY,
    last  bigint      NOT NULL,
    at    timestamptz NOT NULL,
    body  bytea       NOT NULL
);
-- Compressed already: trying again would only cost time.
ALTER TABLE changes ALTER COLUMN body SET STORAGE EXTERNAL;

-- Which projects and tasks a commit speaks of: keyed by name for history. The
-- index for trimming is on an expression that only trimming uses, because by an
-- index on first itself the planner might walk the log instead.
CREATE TABLE change_project (
    first   bigint NOT NULL,
    project text   COLLATE "C" NOT NULL,
    PRIMARY KEY (project, first)
);
CREATE INDEX change_project_trim ON change_project ((first + 0));

CREATE TABLE change_task (
    first bigint NOT NULL,
    task  text   COLLATE "C" NOT NULL,
    PRIMARY KEY (task, first)
);
CREATE INDEX change_task_trim ON change_task ((first + 0));

CREATE TABLE leases (
    name   text        COLLATE "C" PRIMARY KEY,
    holder text        NOT NULL,
    epoch  bigint      NOT NULL,
    until  timestamptz -- null: no lapse
) WITH (fillfactor = 50);

-- A node of which nothing is claimed any more keeps its row until the log is
-- trimmed next.
CREATE TABLE ledger (
    node      text   COLLATE "C" PRIMARY KEY,
    instances bigint NOT NULL,
    milli_cpu bigint NOT NULL,
    memory    bigint NOT NULL
) WITH (fillfactor = 50);

-- The revision of the newest change: whoever holds the lock of this row is the
-- one who may change objects. Its page is nearly empty, so that each new
-- version of the row finds room beside the last.
CREATE TABLE counter (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    revision bigint  NOT NULL
) WITH (fillfactor = 10);
INSERT INTO counter (revision) VALUES (0);

-- The oldest revision after which the log is whole.
CREATE TABLE trimmed (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    revision bigint  NOT NULL
) WITH (fillfactor = 10);
INSERT INTO trimmed (revision) VALUES (0);

-- The newest group of each writer that was committed, so that one who lost the
-- answer to a commit can find out what became of it.
CREATE TABLE writers (
    id   text        COLLATE "C" PRIMARY KEY,
    seq  bigint      NOT NULL,
    seen timestamptz NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE meta (
    key   text PRIMARY KEY,
    value text NOT NULL
);
