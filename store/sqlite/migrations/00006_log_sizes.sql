-- +goose Up

-- How much of a commit belongs to each project. The project '' is for changes
-- without a project. For older commits this is an estimate: an equal share for
-- each project.
ALTER TABLE change_project ADD COLUMN changes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE change_project ADD COLUMN bytes   INTEGER NOT NULL DEFAULT 0;
UPDATE change_project SET (changes, bytes) = (
    SELECT max(1, (c.last - c.first + 1) / t.n), length(c.body) / t.n
    FROM changes AS c, (SELECT count(*) AS n FROM change_project AS p WHERE p.first = change_project.first) AS t
    WHERE c.first = change_project.first);

-- Queries of sizes read only the index.
DROP INDEX change_project_history;
CREATE INDEX change_project_history ON change_project (project, first, changes, bytes);
