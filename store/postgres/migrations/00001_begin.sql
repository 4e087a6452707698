-- +goose Up

-- Names are compared byte by byte, as Go does. Halves are JSON, stored as
-- bytes: jsonb would reject \u0000 and lose the order of keys.
--
-- Most rows are instances, which are created and deleted by the hundred
-- thousand, so they have no index except the key. Most updates write a status.
-- Pages have free space for the next version of their rows, so that such an
-- update need not change the indexes.
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
-- The body is already compressed; compressing it again would only cost time.
ALTER TABLE changes ALTER COLUMN body SET STORAGE EXTERNAL;

-- The projects and tasks of each commit, keyed by name for histories. The index
-- for trimming is on an expression that only trimming uses: with an index on
-- first itself, the planner might use it to walk the log.
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
    until  timestamptz -- null: never expires
) WITH (fillfactor = 50);

-- The row of a node without claims is deleted when the log is next trimmed.
CREATE TABLE ledger (
    node      text   COLLATE "C" PRIMARY KEY,
    instances bigint NOT NULL,
    milli_cpu bigint NOT NULL,
    memory    bigint NOT NULL
) WITH (fillfactor = 50);

-- The revision of the newest change: only the holder of this row's lock may
-- change objects. The page is nearly empty, so that each new version of the row
-- fits into the same page.
CREATE TABLE counter (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    revision bigint  NOT NULL
) WITH (fillfactor = 10);
INSERT INTO counter (revision) VALUES (0);

-- The oldest revision after which the log is complete.
CREATE TABLE trimmed (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    revision bigint  NOT NULL
) WITH (fillfactor = 10);
INSERT INTO trimmed (revision) VALUES (0);

-- The newest committed group of each writer, so that a writer that lost the
-- response to a commit can find out whether it was committed.
CREATE TABLE writers (
    id   text        COLLATE "C" PRIMARY KEY,
    seq  bigint      NOT NULL,
    seen timestamptz NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE meta (
    key   text PRIMARY KEY,
    value text NOT NULL
);
