-- +goose Up

-- The final state of an archived task; empty for everything else. The indexes
-- find tasks by state, of all projects or of one. A query must contain state <>
-- '' literally to use the indexes.
ALTER TABLE objects ADD COLUMN state TEXT NOT NULL DEFAULT '';
UPDATE objects SET state = coalesce(json_extract(CAST(status AS TEXT), '$.state'), '') WHERE kind = 'task' AND archived = 1;
CREATE INDEX tasks_ended            ON objects (state, id, project) WHERE state <> '';
CREATE INDEX tasks_ended_of_project ON objects (project, state, id) WHERE state <> '';
