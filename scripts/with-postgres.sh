#!/usr/bin/env bash
# Runs a command with a temporary PostgreSQL server: starts it as user postgres in a
# temporary directory (with fsync), sets MARIPOSA_STORE to its URL, runs the command,
# then stops and deletes the server. Use it for benchmarks and experiments:
#
#   scripts/with-postgres.sh bin/mariposa bench converge --instances 100000 --nodes 100
set -euo pipefail

[ "$(id -u)" -eq 0 ] || { echo "with-postgres: root is required to start the server as user postgres" >&2; exit 1; }
bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
[ -n "$bin" ] || { echo "with-postgres: PostgreSQL is missing; install it with scripts/setup.sh" >&2; exit 1; }

dir=$(mktemp -d)
chown postgres: "$dir"
as() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
trap 'as "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >/dev/null 2>&1 || true; rm -rf "$dir"' EXIT

port=${PGPORT:-$((20000 + $$ % 10000))}
as "$bin/initdb" -D "$dir/data" -A trust -U postgres --no-locale -E UTF8 >/dev/null
as "$bin/pg_ctl" -D "$dir/data" -w -l "$dir/log" \
	-o "-c listen_addresses=127.0.0.1 -c port=$port -c unix_socket_directories=$dir ${PGOPTS:-}" start >/dev/null ||
	{ cat "$dir/log" >&2; exit 1; }
MARIPOSA_STORE="postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable" "$@"
