#!/usr/bin/env bash
# Checks the code that the binary calls for known vulnerabilities, with a pinned
# govulncheck and the Go vulnerability database.
#
#   scripts/vuln.sh [PACKAGE…]     default ./...
#
# GOVULNDB overrides the database https://vuln.go.dev: a mirror, or a local copy in a
# directory as file:///PATH. Exit code: 0 no known vulnerability, 3 vulnerabilities found,
# 4 the database is unreachable, 1 any other error.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v1.1.4
db=${GOVULNDB:-https://vuln.go.dev}
tool=.cache/tools/govulncheck

say() { echo "vuln: $*"; }

# Check the database first, to distinguish an unreachable database from a finding.
case $db in
file://*) [ -f "${db#file://}/index/db.json" ] || reach="it has no index/db.json" ;;
*) out=$(curl --silent --show-error --fail --location --max-time 20 --output /dev/null "$db/index/db.json" 2>&1) || reach=$out ;;
esac
if [ -n "${reach:-}" ]; then
	say "the vulnerability database $db cannot be reached ($reach); nothing was checked" >&2
	say "run this on a machine that can reach it, or use a mirror or a copy: make vuln GOVULNDB=file:///PATH" >&2
	exit 4
fi

if [[ $(go version -m "$tool" 2>/dev/null) != *"$version"* ]]; then
	say "building govulncheck $version into .cache/tools (once)"
	if ! out=$(GOBIN="$PWD/.cache/tools" CGO_ENABLED=0 GOFLAGS='' go install "golang.org/x/vuln/cmd/govulncheck@$version" 2>&1); then
		echo "$out" >&2
		say "could not build govulncheck $version; nothing was checked" >&2
		exit 1
	fi
fi

status=0
"$tool" -db "$db" "${@:-./...}" || status=$?
case $status in
0) say "no known vulnerabilities in $db" ;;
3) say "vulnerabilities found: update the modules above, or explain in CHANGELOG.md why they do not apply" >&2 ;;
*) say "govulncheck failed with $status" >&2 && status=1 ;;
esac
exit "$status"
