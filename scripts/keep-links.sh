#!/usr/bin/env bash
# Runs a tool of the Go compiler, and keeps what the linker made, because `go test` links
# every test again even if nothing has changed: about a seventh of the time of `make test`.
#
#   KEEP_LINKS_IN=DIR go test -toolexec scripts/keep-links.sh ./...
#
# The build ID of a program is a hash of everything that it is linked from, and of the
# options of the linker. `go` computes it, and hands it over.
set -uo pipefail
tool=$1
shift
[ "${tool##*/}" = link ] && [ "${1-}" != -V=full ] || exec "$tool" "$@"

out='' id=''
args=("$@")
for ((i = 0; i < ${#args[@]}; i++)); do
	case ${args[i]} in
	-o) out=${args[i + 1]-} ;;
	-buildid=*) id=${args[i]#-buildid=} ;;
	esac
done
[ -n "$out" ] && [[ $id =~ ^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)+$ ]] || exec "$tool" "$@"

kept=$KEEP_LINKS_IN/${id//\//.}
# The copy is a file of its own: `go` writes the final build ID into it.
if cp --reflink=auto "$kept" "$out" 2>/dev/null; then
	touch "$kept"
	exit
fi
"$tool" "$@" || exit
# Nothing is lost if it cannot be kept, for example because the disk is full.
{ cp --reflink=auto "$out" "$kept.$$" && mv "$kept.$$" "$kept"; } 2>/dev/null || rm -f "$kept.$$"
