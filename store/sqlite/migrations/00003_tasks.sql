-- +goose Up

-- How a task ended, once it is archived; empty for everything else. By it, those
-- tasks are found that ended in one way: of all projects, and of each. A query
-- must say state <> '' in these words to go by the indexes.
ALTER TABLE objects ADD COLUMN state TEXT NOT NULL DEFAULT '';
UPDATE objects SET state = coalesce(json_extract(CAST(status AS TEXT), '$.state'), '') WHERE kind = 'task' AND archived = 1;
CREATE INDEX tasks_ended            ON objects (state, id, project) WHERE state <> '';
CREATE INDEX tasks_ended_of_project ON objects (project, state, id) WHERE state <> '';
