#!/usr/bin/env bash
# Runs every check of `make test`, goes on after a failure so that one run shows
# all that is wrong, and closes with the verdict of each check.
#
#   RACE="./api/... ./engine/..." TWICE="./engine/..." scripts/test.sh
#
# RACE holds the packages that run under the race detector; all others run without
# it. TWICE holds those of RACE that run both ways: without the detector all cases
# of their property tests, with it a fifth of them. TESTFLAGS go to every `go test`
# (for example -count=1).
#
# The checks run at the same time: some keep the processor busy, others mostly wait
# for servers and processes that they started. Each line starts with its check.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

logs=.cache/test
mkdir -p "$logs"
rm -f "$logs"/*

names=() pids=()
# check NAME COMMAND…: starts it, shows and keeps its output, notes how it ended.
check() {
	local name=$1
	shift
	names+=("$name")
	{
		if "$@" 2>&1 | tee "$logs/$name.log" | sed -u "s/^/$name: /"; then
			echo "passed in $SECONDS s" >"$logs/$name.verdict"
		else
			echo "FAILED in $SECONDS s" >"$logs/$name.verdict"
		fi
	} &
	pids+=($!)
}
# An interrupted run takes its checks along.
trap 'kill "${pids[@]}" 2>/dev/null; exit 130' INT TERM

read -ra flags <<<"${TESTFLAGS:-}"
read -ra race <<<"${RACE:-}"
read -ra twice <<<"${TWICE:-}"

# All packages that have tests, one a line. Listing them takes a second, so it is done once.
module=$(go list -m)
all=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | sed '/^$/d' | sort)
# under PATTERN…: those of them that match patterns like ./api/...
under() {
	local pattern
	for pattern in "$@"; do
		pattern=$module/${pattern#./}
		grep -E "^${pattern%/...}(/|\$)" <<<"$all"
	done | sort -u
}
raced=$(under "${race[@]}") both=$(under "${twice[@]}")
# slow: the packages on standard input, those that take longest first, so that none of
# them runs alone in the end.
slow() {
	sed -E '/^$/d; s#.*/(simulate|cmd/mariposa|api|store/postgres|driver/process|store/sqlite|converge|manifest)$#0 &#; t; s/^/1 /' | sort | cut -d ' ' -f 2
}
once=$(comm -23 <(echo "$raced") <(echo "$both"))
mapfile -t plain < <(comm -23 <(echo "$all") <(echo "$once") | slow)
mapfile -t long < <(echo "$once" | slow)
mapfile -t short < <(echo "$both" | slow)
[ ${#plain[@]} -gt 0 ] || { echo "make test: found no packages" >&2; exit 1; }

# vet=off: lint runs all of vet. w: nobody debugs these binaries, and linking takes
# half the time. parallel: many tests wait for something else than a processor.
common=(-vet=off -ldflags=-w -parallel 4 -timeout 20m)
# SQLite is C translated to Go. Watching each of its accesses is slow, and its memory
# is not ours: its own packages are compiled without the race detector. Packages with
# generic code must not be: the linker may take their copy of a function of the standard
# library for all, and the detector then misses what orders accesses.
watched=(-race -gcflags="modernc.org/...=-race=false")

# Memory is not scarce, so garbage is collected less often. The limit is for each process.
export GOGC=300 GOMEMLIMIT=3GiB

# What the checks share is compiled once, before they start.
CGO_ENABLED=0 go build ./... || exit 1

check lint make --no-print-directory lint
check test env CGO_ENABLED=0 go test "${common[@]}" "${flags[@]}" "${plain[@]}"
# Both halves run at the same time, each on half of the cores: one after the other, each
# would wait for its last package.
races() {
	local ok=0 half=$((($(nproc) + 1) / 2)) started=()
	if [ ${#short[@]} -gt 0 ]; then
		go test -p "$half" "${watched[@]}" -short "${common[@]}" "${flags[@]}" "${short[@]}" &
		started+=($!)
	fi
	if [ ${#long[@]} -gt 0 ]; then
		go test -p "$half" "${watched[@]}" "${common[@]}" "${flags[@]}" "${long[@]}" &
		started+=($!)
	fi
	for pid in "${started[@]}"; do
		wait "$pid" || ok=1
	done
	return $ok
}
export CGO_ENABLED=1
[ ${#race[@]} -eq 0 ] || check race races
wait

failed=0
echo
for name in "${names[@]}"; do
	verdict=$(cat "$logs/$name.verdict" 2>/dev/null || echo "FAILED: it was ended")
	echo "== $name $verdict"
	[[ $verdict == passed* ]] || failed=1
	[ "$name" = lint ] || grep -E '^(ok|FAIL|--- FAIL:|panic:)([[:space:]]|$)' "$logs/$name.log"
done
if [ "$failed" -ne 0 ]; then
	echo "make test: FAILED (logs in $logs)"
	exit 1
fi
echo "make test: passed in $SECONDS s"
