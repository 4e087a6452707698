-- +goose Up

-- How a task ended, once it is archived; empty for everything else. By it, those
-- tasks are found that ended in one way: of all projects, and of each. A query
-- must say the condition of an index in these words to go by it; the first one
-- asks for more than the second, so that nobody looks a project up there.
ALTER TABLE objects ADD COLUMN state text COLLATE "C" NOT NULL DEFAULT '';
UPDATE objects SET state = coalesce(substring(convert_from(status, 'UTF8') FROM '^\{"state":"([a-z]+)"'), '')
    WHERE kind = 'task' AND archived;
CREATE INDEX tasks_ended            ON objects (state, id) INCLUDE (project) WHERE kind = 'task' AND state <> '' AND archived;
CREATE INDEX tasks_ended_of_project ON objects (project, state, id)          WHERE kind = 'task' AND state <> '';
