-- +goose Up

-- The audit log. An id is a microsecond since 1970 or, where that would not be
-- above the last, one more than that; store.AuditMark says why. The columns are
-- what is asked for; all that an entry says is in the body, as JSON. The indexes
-- are on an expression that only queries by them use, because by the key the
-- planner might walk the whole log instead.
CREATE TABLE audit (
    id           bigint      PRIMARY KEY,
    at           timestamptz NOT NULL,
    organization text        COLLATE "C" NOT NULL,
    project      text        COLLATE "C" NOT NULL,
    actor        text        COLLATE "C" NOT NULL,
    actor_name   text        COLLATE "C" NOT NULL,
    for_id       text        COLLATE "C" NOT NULL,
    for_name     text        COLLATE "C" NOT NULL,
    action       text        COLLATE "C" NOT NULL,
    outcome      text        COLLATE "C" NOT NULL,
    body         bytea       NOT NULL
);
CREATE INDEX audit_organization ON audit (organization, (id + 0));
CREATE INDEX audit_project      ON audit (project, (id + 0)) WHERE project <> '';
CREATE INDEX audit_actor        ON audit (actor, (id + 0));
CREATE INDEX audit_actor_name   ON audit (actor_name, (id + 0));
CREATE INDEX audit_for_id       ON audit (for_id, (id + 0)) WHERE for_id <> '';
CREATE INDEX audit_for_name     ON audit (for_name, (id + 0)) WHERE for_name <> '';
CREATE INDEX audit_action       ON audit (action, (id + 0));
CREATE INDEX audit_outcome      ON audit (outcome, (id + 0)) WHERE outcome <> 'done';

-- Who holds the counter's lock may write to the audit log too, so that its ids
-- become visible in their order.
ALTER TABLE counter
    ADD COLUMN audit     bigint NOT NULL DEFAULT 0,
    ADD COLUMN audit_lag bigint NOT NULL DEFAULT 0;

-- Metadata and kept answers are listed by project too.
DROP INDEX objects_of_project;
CREATE INDEX objects_of_project ON objects (kind, project, id)
    WHERE kind IN ('version', 'task', 'metadata', 'answer');
