-- +goose Up

-- The audit log. An id is the number of microseconds since 1970, or the last id
-- plus one if that is higher. See store.AuditMark for the reason. The columns
-- are for queries. The body contains the entry as JSON, without its id and
-- time. The indexes are on an expression instead of the id: by the primary key,
-- the planner might walk the whole log.
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

-- The counter's lock also protects the audit log, so that its ids become
-- visible in order.
ALTER TABLE counter
    ADD COLUMN audit     bigint NOT NULL DEFAULT 0,
    ADD COLUMN audit_lag bigint NOT NULL DEFAULT 0;

-- Metadata and stored responses are listed by project too.
DROP INDEX objects_of_project;
CREATE INDEX objects_of_project ON objects (kind, project, id)
    WHERE kind IN ('version', 'task', 'metadata', 'answer');
