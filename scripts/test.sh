#!/usr/bin/env bash
# Runs every check of `make test`. Continues after a failure, so that one run shows all
# problems, and ends with the result of each check.
#
#   RACE="./api/... ./engine/..." TWICE="./engine/..." scripts/test.sh
#
# RACE lists the packages that run under the race detector; all others run without it.
# TWICE lists the packages of RACE that run both ways: without the detector with all
# cases of their property tests, with it with a fifth of them. TESTFLAGS is passed to
# every `go test` (for example -count=1).
#
# The checks run in parallel: some are CPU-bound, others mostly wait for servers and
# processes that they started. Each line of output starts with the name of its check.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

logs=.cache/test
mkdir -p "$logs"
rm -f "$logs"/*

names=() pids=()
# check NAME COMMAND…: starts a check, prints and stores its output and its result.
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
# Stop the checks if this script is interrupted.
trap 'kill "${pids[@]}" 2>/dev/null; exit 130' INT TERM

read -ra flags <<<"${TESTFLAGS:-}"
read -ra race <<<"${RACE:-}"
read -ra twice <<<"${TWICE:-}"

# All packages that have tests, one per line. They are listed once, because that takes a second.
module=$(go list -m)
all=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | sed '/^$/d' | sort)
# under PATTERN…: prints those that match patterns such as ./api/...
under() {
	local pattern
	for pattern in "$@"; do
		pattern=$module/${pattern#./}
		grep -E "^${pattern%/...}(/|\$)" <<<"$all"
	done | sort -u
}
raced=$(under "${race[@]}") both=$(under "${twice[@]}")
# slow: sorts the packages on standard input, the slowest first, so that none of them
# runs alone at the end.
slow() {
	sed -E '/^$/d; s#.*/(api|store/postgres|driver/process|store/sqlite)$#0 &#; t; s/^/1 /' | sort | cut -d ' ' -f 2
}
once=$(comm -23 <(echo "$raced") <(echo "$both"))
# The tests of the whole program take longest and mostly wait, so they run by themselves.
program=$module/cmd/mariposa
# These compute for minutes and wait for nothing, so the others go first: what waits for servers
# takes less long then, and no core is idle at the end.
patient="^$module/(simulate|converge|manifest)\$"
mapfile -t plain < <(comm -23 <(echo "$all") <(echo "$once") | grep -vx "$program" | grep -vE "$patient" | slow)
mapfile -t computing < <(echo "$all" | grep -E "$patient")
mapfile -t long < <(echo "$once" | slow)
mapfile -t short < <(echo "$both" | slow)
[ ${#plain[@]} -gt 0 ] || { echo "make test: found no packages" >&2; exit 1; }

# -vet=off: lint runs vet. -ldflags=-w: without debug information, linking takes half
# the time. -parallel: many tests wait instead of using a CPU. -timeout: the slowest
# package takes five minutes on a slow machine, the tests of the program twice as long. A
# test that hangs must end before the CI job does, to be named.
common=(-vet=off -ldflags=-w -parallel 4 -timeout 12m)
# SQLite is C translated to Go. The race detector makes it slow and finds nothing of
# ours there, so its packages are compiled without it. Do not add packages with generic
# code: the linker can use their copy of a standard library function everywhere, and the
# detector then reports races that do not exist. -race also checks conversions of unsafe
# pointers, of which our code has hardly any; without that it takes an eighth less time.
watched=(-race -gcflags="all=-d=checkptr=0" -gcflags="modernc.org/...=-race=false")

# There is enough memory to collect garbage less often. The limit is per process.
export GOGC=300 GOMEMLIMIT=3GiB
# By default, a program under the race detector waits a second before it exits.
export GORACE=atexit_sleep_ms=50

# Compile shared packages once, before the checks start.
CGO_ENABLED=0 go build ./... || exit 1

check lint make --no-print-directory lint

# Linking takes a seventh of all processor time, so programs that are linked are kept until the
# end of the first run that does not need them. They take about 2 GiB.
export KEEP_LINKS_IN=$PWD/.cache/links
mkdir -p "$KEEP_LINKS_IN"
touch "$logs/started"
if [[ $PWD != *[[:space:]]* ]] && [ "$(df --output=avail -k . | tail -n 1)" -gt $((10 << 20)) ]; then
	export GOFLAGS="$(go env GOFLAGS) -toolexec=$PWD/scripts/keep-links.sh"
fi
check test env CGO_ENABLED=0 go test "${common[@]}" "${flags[@]}" "${plain[@]}"
[ ${#computing[@]} -eq 0 ] || check rules nice -n 4 env CGO_ENABLED=0 go test "${common[@]}" "${flags[@]}" "${computing[@]}"
check program env CGO_ENABLED=0 go test "${common[@]}" -parallel 9 -timeout 18m "${flags[@]}" "$program"
# Three streams run at the same time, because each mostly waits for what it started: the
# packages that run twice, the drivers, and the others.
races() {
	local ok=0 started=() drivers others at_once=$((($(nproc) + 1) / 2))
	mapfile -t drivers < <(printf '%s\n' "${long[@]}" | grep "^$module/driver/")
	mapfile -t others < <(printf '%s\n' "${long[@]}" | grep -v "^$module/driver/" | sed '/^$/d')
	# stream PACKAGE…: tests packages in the background. An option may come first.
	stream() {
		[ $# -gt 0 ] && [ "$*" != -short ] || return 0
		go test -p "$at_once" "${watched[@]}" "${common[@]}" "${flags[@]}" "$@" &
		started+=($!)
	}
	stream "${others[@]}"
	stream "${drivers[@]}"
	stream -short "${short[@]}"
	for pid in "${started[@]}"; do
		wait "$pid" || ok=1
	done
	return $ok
}
export CGO_ENABLED=1
[ ${#race[@]} -eq 0 ] || check race races
wait
find "$KEEP_LINKS_IN" -type f ! -newer "$logs/started" -delete

# digest LOG: prints the result of each package, the first lines of what each failed test
# said, and the tests that were running if there was no time left.
digest() {
	awk '
		/^panic:/ { print; left = 20; next }
		/^(ok|FAIL)([[:space:]]|$)/ { print; left = 0; next }
		/^ *--- FAIL:/ { print; left = 60; next }
		/^[[:space:]]/ && left > 0 { print substr($0, 1, 300); left-- }
	' "$1"
}

failed=0
echo
for name in "${names[@]}"; do
	verdict=$(cat "$logs/$name.verdict" 2>/dev/null || echo "FAILED: it was stopped")
	echo "== $name $verdict"
	[[ $verdict == passed* ]] || failed=1
	[ "$name" = lint ] || digest "$logs/$name.log"
done
if [ "$failed" -ne 0 ]; then
	echo "make test: FAILED (logs in $logs)"
	exit 1
fi
echo "make test: passed in $SECONDS s"
