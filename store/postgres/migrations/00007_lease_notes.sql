-- +goose Up

-- What the holder of a lease announces to others: a replica its address.
ALTER TABLE leases ADD COLUMN note text NOT NULL DEFAULT '';
