#!/usr/bin/env bash
# Runs `make test` N times to find flaky tests. Keeps the log of each run, prints one
# line per run and a summary, and fails if any run failed. The test cache is not used.
#
#   N=10 scripts/test-repeat.sh
#   N=5 BUSY=1 scripts/test-repeat.sh    keep every core busy during the runs
set -uo pipefail
cd "$(dirname "$0")/.." || exit

runs=${N:-10}
[[ $runs =~ ^[1-9][0-9]*$ ]] || { echo "test-repeat: N must be a positive number, not \"$runs\"" >&2; exit 2; }
logs=.cache/test-logs
mkdir -p "$logs"
rm -f "$logs"/run-*.log

# burn PARENT: keeps one core busy while the process PARENT exists.
burn() {
	while kill -0 "$1" 2>/dev/null; do
		for ((i = 0; i < 200000; i++)); do :; done
	done
}

load=()
relax() {
	[ ${#load[@]} -eq 0 ] && return
	kill "${load[@]}"
	wait "${load[@]}"
	load=()
}
trap 'relax 2>/dev/null' EXIT
trap 'exit 130' INT TERM
if [ -n "${BUSY:-}" ]; then
	for ((c = 0; c < $(nproc); c++)); do
		burn $$ &
		load+=($!)
	done
	echo "test-repeat: keeping ${#load[@]} cores busy"
fi

# failures LOG: prints the failed tests with their packages, and packages that failed
# without a failed test (a build error, a panic, a timeout).
failures() {
	awk '
		/^--- FAIL: / { tests = tests (tests ? " " : "") $3 }
		/^FAIL\t/     { if (!seen[$2 tests]++) print (tests ? tests " in " $2 : $2); tests = "" }
		/^== lint FAILED/ { print "lint" }
	' "$1" | paste -sd ';' | sed 's/;/; /g'
}

failed=0 slowest=0 total=0
for ((run = 1; run <= runs; run++)); do
	log=$logs/run-$(printf '%03d' "$run").log
	start=$SECONDS
	if TESTFLAGS="-count=1 ${TESTFLAGS:-}" make --no-print-directory test >"$log" 2>&1; then
		verdict=ok
	else
		verdict="FAILED: $(failures "$log")"
		failed=$((failed + 1))
	fi
	took=$((SECONDS - start))
	total=$((total + took))
	[ "$took" -le "$slowest" ] || slowest=$took
	echo "run $run of $runs: $took s, $verdict"
done

echo "test-repeat: $((runs - failed)) of $runs passed; $((total / runs)) s on average, $slowest s at most (logs in $logs)"
[ "$failed" -eq 0 ]
