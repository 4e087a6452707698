-- +goose Up

-- The audit log. An id is the number of microseconds since 1970, or the last id
-- plus one if that is higher. See store.AuditMark for the reason. The columns
-- are for queries. The body contains the entry as JSON, without its id and
-- time. Each index contains the ids of a value in order.
CREATE TABLE audit (
    id           INTEGER PRIMARY KEY,
    at           INTEGER NOT NULL, -- nanoseconds since 1970
    organization TEXT    NOT NULL,
    project      TEXT    NOT NULL,
    actor        TEXT    NOT NULL,
    actor_name   TEXT    NOT NULL,
    for_id       TEXT    NOT NULL,
    for_name     TEXT    NOT NULL,
    action       TEXT    NOT NULL,
    outcome      TEXT    NOT NULL,
    body         BLOB    NOT NULL
);
CREATE INDEX audit_organization ON audit (organization);
CREATE INDEX audit_project      ON audit (project) WHERE project <> '';
CREATE INDEX audit_actor        ON audit (actor);
CREATE INDEX audit_actor_name   ON audit (actor_name);
CREATE INDEX audit_for_id       ON audit (for_id) WHERE for_id <> '';
CREATE INDEX audit_for_name     ON audit (for_name) WHERE for_name <> '';
CREATE INDEX audit_action       ON audit (action);
CREATE INDEX audit_outcome      ON audit (outcome) WHERE outcome <> 'done';
INSERT INTO meta (key, value) VALUES ('audit', 0), ('audit_lag', 0);

-- Metadata and stored responses are listed by project too.
DROP INDEX objects_of_project;
CREATE INDEX objects_of_project ON objects (kind, project, id)
    WHERE kind = 'version' OR kind = 'task' OR kind = 'metadata' OR kind = 'answer';
