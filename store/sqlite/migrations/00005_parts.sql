-- +goose Up

-- Parts of metadata are listed, and their sizes added up, by project too.
DROP INDEX objects_of_project;
CREATE INDEX objects_of_project ON objects (kind, project, id)
    WHERE kind = 'version' OR kind = 'task' OR kind = 'metadata' OR kind = 'part' OR kind = 'answer';
