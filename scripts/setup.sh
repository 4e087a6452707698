#!/usr/bin/env bash
# Makes a fresh Debian machine ready for `make test`: installs what is missing,
# says what and why, and leaves alone what is already there.
#
#   scripts/setup.sh          system packages, then the pinned Go tools
#   scripts/setup.sh tools    only the Go tools (never needs root)
set -euo pipefail
cd "$(dirname "$0")/.."

# What the tests need of the machine: one line each of
#   <command or /absolute/file that proves it is there (* stands for a version)>  <Debian package>  <why>
needs() {
	cat <<-'TABLE'
		gcc                              gcc         the race detector links through cgo
		/usr/include/stdio.h             libc6-dev   cgo needs the C library's headers
		ip                               iproute2    tests look at the machine's addresses and links
		/usr/lib/postgresql/*/bin/initdb postgresql  the store that replicas share is tested on a server of its own
		setsid                           util-linux  process instances run in sessions of their own
	TABLE
}

# The Go tools, pinned: <command> <package> <version>. They go to .cache/tools,
# so that neither the machine nor go.mod learns of them.
tools() {
	cat <<-'TABLE'
		golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint v2.14.0
		gofumpt       mvdan.cc/gofumpt                                       v0.12.0
	TABLE
}

say() { echo "setup: $*"; }

die() {
	say "$*" >&2
	exit 1
}

# quietly COMMAND…: shows what it had to say only when it fails.
quietly() {
	local log status=0
	log=$(mktemp)
	"$@" >"$log" 2>&1 </dev/null || status=$?
	[ "$status" -eq 0 ] || tail -n 20 "$log" >&2
	rm -f "$log"
	return "$status"
}

present() {
	case $1 in
	/*) compgen -G "$1" >/dev/null ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "needs root or sudo to run: $*"
	fi
}

install_packages() {
	local probe package why missing=()
	while read -r probe package why; do
		present "$probe" && continue
		say "installing $package: $why"
		missing+=("$package")
	done < <(needs)
	[ ${#missing[@]} -gt 0 ] || return 0

	command -v apt-get >/dev/null ||
		die "this is not a Debian machine; install the packages above by hand, then run this again"
	quietly as_root apt-get update ||
		die "apt-get could not read the package lists; its last lines are above"
	quietly as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y --no-install-recommends "${missing[@]}" ||
		die "apt-get could not install ${missing[*]}; its last lines are above"

	while read -r probe package why; do
		present "$probe" || die "$package is installed, yet $probe is still missing"
	done < <(needs)
}

# A tool is right when it was built from the pinned version by the Go in use:
# a linter built by an older Go refuses newer code.
tool_is_right() {
	local command=$1 version=$2 built
	[ -x ".cache/tools/$command" ] || return 1
	built=$(go version -m ".cache/tools/$command" 2>/dev/null) || return 1
	[[ $built == *": $(go env GOVERSION)"* ]] &&
		awk -v v="$version" '$1 == "mod" && $3 == v { ok = 1 } END { exit !ok }' <<<"$built"
}

install_tools() {
	command -v go >/dev/null ||
		die "Go is missing; install the version that go.mod names (https://go.dev/dl) and put it on PATH"
	mkdir -p .cache/tools
	local command package version
	while read -r command package version; do
		tool_is_right "$command" "$version" && continue
		say "building $command $version into .cache/tools (once, a minute or two)"
		quietly env GOBIN="$PWD/.cache/tools" CGO_ENABLED=0 GOFLAGS= go install "$package@$version" ||
			die "could not build $command $version; the last lines are above"
	done < <(tools)
}

case ${1:-all} in
all)
	[ "$(id -u)" -eq 0 ] ||
		die "the tests mount small disks, set cgroup limits and start servers as other users: run make test as root"
	install_packages
	install_tools
	;;
tools) install_tools ;;
*) die "unknown argument \"$1\"; say nothing, or: tools" ;;
esac
