#!/usr/bin/env bash
# Runs every check of `make test` in turn, goes on after a failure so that one
# run shows all that is wrong, and closes with the verdict of each check.
#
#   RACE="./store/... ./engine/..." scripts/test.sh
#
# RACE holds the packages that are run once more under the race detector;
# TESTFLAGS go to every `go test` (for example -count=1).
set -uo pipefail
cd "$(dirname "$0")/.." || exit

logs=.cache/test
mkdir -p "$logs"
names=() verdicts=() failed=0

# check NAME COMMAND…: runs it, shows and keeps its output, notes how it ended.
check() {
	local name=$1 start=$SECONDS verdict=passed
	shift
	echo "== $name"
	if ! "$@" 2>&1 | tee "$logs/$name.log"; then
		verdict=FAILED
		failed=1
	fi
	names+=("$name")
	verdicts+=("$verdict in $((SECONDS - start)) s")
}

read -ra flags <<<"${TESTFLAGS:-}"
read -ra race <<<"${RACE:-}"

check lint make --no-print-directory lint
# vet=off: the lint above has just run all of vet.
check test env CGO_ENABLED=0 go test -vet=off -timeout 8m "${flags[@]}" ./...
if [ ${#race[@]} -gt 0 ]; then
	# short: a race shows in any case of a property test, and the run above had all cases.
	check race env CGO_ENABLED=1 go test -race -short -vet=off -timeout 8m "${flags[@]}" "${race[@]}"
fi

echo
for i in "${!names[@]}"; do
	name=${names[$i]}
	echo "== $name ${verdicts[$i]}"
	[ "$name" = lint ] || grep -E '^(ok|FAIL|--- FAIL:|panic:)([[:space:]]|$)' "$logs/$name.log"
done
if [ "$failed" -ne 0 ]; then
	echo "make test: FAILED (logs in $logs)"
	exit 1
fi
echo "make test: passed in $SECONDS s"
