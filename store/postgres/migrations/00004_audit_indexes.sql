-- +goose Up

-- What is left are the indexes of what bounds a reader, organization and project,
-- and the small one of what was denied or failed. Other questions are an
-- operator's; they walk the log.
DROP INDEX audit_actor;
DROP INDEX audit_actor_name;
DROP INDEX audit_for_id;
DROP INDEX audit_for_name;
DROP INDEX audit_action;
