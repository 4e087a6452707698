-- +goose Up

-- The final state of an archived task; empty for everything else. The indexes
-- find tasks by state, of all projects or of one. A query must contain the
-- condition of an index literally to use it. The first index has an additional
-- condition, so that queries of one project never use it.
ALTER TABLE objects ADD COLUMN state text COLLATE "C" NOT NULL DEFAULT '';
UPDATE objects SET state = coalesce(substring(convert_from(status, 'UTF8') FROM '^\{"state":"([a-z]+)"'), '')
    WHERE kind = 'task' AND archived;
CREATE INDEX tasks_ended            ON objects (state, id) INCLUDE (project) WHERE kind = 'task' AND state <> '' AND archived;
CREATE INDEX tasks_ended_of_project ON objects (project, state, id)          WHERE kind = 'task' AND state <> '';
