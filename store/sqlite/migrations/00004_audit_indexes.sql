-- +goose Up

-- The remaining indexes are those by organization and project, which limit what
-- a reader may see, and the small one of denied and failed actions. Only
-- operators run other queries, which walk the log.
DROP INDEX audit_actor;
DROP INDEX audit_actor_name;
DROP INDEX audit_for_id;
DROP INDEX audit_for_name;
DROP INDEX audit_action;
