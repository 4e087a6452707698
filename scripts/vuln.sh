#!/usr/bin/env bash
# Looks for known vulnerabilities in what the binary really calls, with a pinned
# govulncheck and the Go vulnerability database.
#
#   scripts/vuln.sh [PACKAGE…]     default ./...
#
# GOVULNDB names another database than https://vuln.go.dev: a mirror, or a copy in a
# folder as file:///PATH. Exit: 0 nothing known, 3 something found, 4 the database cannot
# be reached, 1 anything else.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v1.1.4
db=${GOVULNDB:-https://vuln.go.dev}
tool=.cache/tools/govulncheck

say() { echo "vuln: $*"; }

# Asking first tells a database that is out of reach from a finding.
case $db in
file://*) [ -f "${db#file://}/index/db.json" ] || reach="there is no index/db.json in it" ;;
*) out=$(curl --silent --show-error --fail --location --max-time 20 --output /dev/null "$db/index/db.json" 2>&1) || reach=$out ;;
esac
if [ -n "${reach:-}" ]; then
	say "the vulnerability database $db cannot be reached ($reach): nothing was checked" >&2
	say "run this on a machine that reaches it, or name a mirror or a copy: make vuln GOVULNDB=file:///PATH" >&2
	exit 4
fi

if [[ $(go version -m "$tool" 2>/dev/null) != *"$version"* ]]; then
	say "building govulncheck $version into .cache/tools (once)"
	if ! out=$(GOBIN="$PWD/.cache/tools" CGO_ENABLED=0 GOFLAGS='' go install "golang.org/x/vuln/cmd/govulncheck@$version" 2>&1); then
		echo "$out" >&2
		say "govulncheck $version could not be built; nothing was checked" >&2
		exit 1
	fi
fi

status=0
"$tool" -db "$db" "${@:-./...}" || status=$?
case $status in
0) say "nothing known against $db" ;;
3) say "found: update what is named above, or say in CHANGELOG.md why it does not matter" >&2 ;;
*) say "govulncheck failed with $status" >&2 && status=1 ;;
esac
exit "$status"
