-- +goose Up

-- How much of a commit belongs to each project. The project '' is for changes
-- without a project. For older commits this is an estimate: an equal share for
-- each project.
ALTER TABLE change_project
    ADD COLUMN changes bigint NOT NULL DEFAULT 0,
    ADD COLUMN bytes   bigint NOT NULL DEFAULT 0;
UPDATE change_project AS p SET changes = greatest(1, (c.last - c.first + 1) / t.n), bytes = octet_length(c.body) / t.n
    FROM changes AS c, (SELECT first, count(*) AS n FROM change_project GROUP BY first) AS t
    WHERE c.first = p.first AND t.first = p.first;

-- Queries of sizes read only the index.
ALTER TABLE change_project DROP CONSTRAINT change_project_pkey;
ALTER TABLE change_project ADD PRIMARY KEY (project, first) INCLUDE (changes, bytes);
