#!/usr/bin/env bash
# Applies the mutants in converge/testdata/mutants.txt, one at a time, to a copy of
# the tree and runs the tests of converge there. Prints the mutants that no test detects
# and exits 1 if there are any. TESTFLAGS is passed to go test (-skip Scenarios is faster).
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$work"
survivors=0
while IFS= read -r line; do
	case "$line" in '' | '#'*) continue ;; esac
	file=$(python3 - "$line" "$work" <<'PY'
import sys
line, work = sys.argv[1:]
file, old, new = [part.replace("\\|", "|").replace("\\n", "\n").replace("\\t", "\t") for part in line.replace("\\|\\|", "\0").split(" | ")]
old, new = old.replace("\0", "||"), new.replace("\0", "||")
path = f"{work}/converge/{file}"
text = open(path).read()
if text.count(old) < 1:
    sys.exit(f"{file} does not contain {old!r}: the list of mutants is out of date")
open(path, "w").write(text.replace(old, new, 1))
print(file)
PY
	)
	if (cd "$work" && go build ./converge 2>/dev/null); then
		if (cd "$work" && go test ./converge -count=1 ${TESTFLAGS:-} >/dev/null 2>&1); then
			echo "survived: $line"
			survivors=$((survivors + 1))
		else
			echo "detected: $line"
		fi
	else
		echo "does not build: $line"
		survivors=$((survivors + 1))
	fi
	cp "converge/$file" "$work/converge/$file"
done <"${MUTANTS:-converge/testdata/mutants.txt}"
[ "$survivors" = 0 ]
