#!/usr/bin/env bash
# Prepares a fresh Debian machine for `make test`. Installs missing packages and prints
# why each is needed. Does not change what is already installed.
#
#   scripts/setup.sh          system packages, then the pinned Go tools
#   scripts/setup.sh tools    only the Go tools (never needs root)
set -euo pipefail
cd "$(dirname "$0")/.."

# System packages that the tests need, one per line:
#   <command or /absolute/file to look for (* matches any version)>  <Debian package>  <why
needs() {
	cat <<-'TABLE'
		gcc                              gcc         the race detector links through cgo
		/usr/include/stdio.h             libc6-dev   cgo needs the C library's headers
		dockerd                          docker.io   tests start Docker engines of their own
		podman                           podman      tests run containers with it
		/usr/lib/podman/netavark         netavark    networks of Podman
		/usr/lib/podman/aardvark-dns     aardvark-dns  names of containers in networks of Podman
		docker-registry                  docker-registry  tests pull images from it
		/bin/busybox                     busybox-static  tests make images from it
		lxc-start                        lxc         tests run system containers, in a network namespace of their own
		ip                               iproute2    tests inspect the machine's addresses and links
		/usr/lib/postgresql/*/bin/initdb postgresql  tests start a server for the store that replicas share
		iptables-restore                 iptables    system containers reach other machines through it
		qemu-system-x86_64               qemu-system-x86  tests run virtual machines
		haproxy                          haproxy     tests run load balancers
		qemu-img                         qemu-utils  tests make disks of virtual machines
		mkfs.ext4                        e2fsprogs   volumes with a size are file systems of their own
		chromium-headless-shell          chromium-headless-shell  tests use the web page with it
		node                             nodejs      tests start an identity provider (OpenID Connect)
		npm                              npm         installs the provider
		setsid                           util-linux  process instances run in their own sessions
	TABLE
}

# Pinned Go tools: <command> <package> <version>. They are installed into .cache/tools
# and change neither the machine nor go.mod.
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

# quietly COMMAND…: runs a command and shows its output only if it fails.
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
		die "root or sudo is required to run: $*"
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
		die "apt-get not found; install the packages above manually, then run this script again"
	quietly as_root apt-get update ||
		die "apt-get update failed; see its output above"
	quietly as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y --no-install-recommends "${missing[@]}" ||
		die "apt-get could not install ${missing[*]}; see its output above"

	while read -r probe package why; do
		present "$probe" || die "$package is installed, but $probe is still missing"
	done < <(needs)
}

# download_kernel DIR: downloads the package of the current kernel for virtual machines.
download_kernel() {
	local package
	# linux-image-cloud-amd64 itself is empty: it depends on the current kernel.
	package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends:/ && !name { name = $2 } END { print name }') || true
	[ -n "$package" ] && (cd "$1" && rm -f ./*.deb && quietly apt-get download "$package")
}

# The kernel of the guests in tests. The package is unpacked, not installed: it would change how
# this machine boots.
fetch_kernel() {
	compgen -G ".cache/kernel/boot/vmlinuz-*" >/dev/null && return
	local dir=.cache/kernel.new
	say "downloading a kernel for virtual machines into .cache/kernel (once)"
	rm -rf "$dir" && mkdir -p "$dir"
	if ! download_kernel "$dir"; then # the package lists may be missing or out of date
		quietly as_root apt-get update || die "apt-get update failed; see its output above"
		download_kernel "$dir" || die "apt-get could not download the kernel of linux-image-cloud-amd64; see its output above"
	fi
	dpkg-deb -x "$dir"/*.deb "$dir/root"
	rm -rf .cache/kernel
	mkdir .cache/kernel
	mv "$dir/root/boot" "$dir/root/lib" .cache/kernel/
	rm -rf "$dir"
}

# The identity provider for tests, as its lock file pins it.
install_provider() {
	local from=cmd/mariposa/testdata/oidc dir=.cache/oidc
	cmp -s "$from/package-lock.json" "$dir/installed.json" && [ -d "$dir/node_modules/oidc-provider" ] && return
	say "installing an identity provider for tests into $dir (once)"
	rm -rf "$dir" && mkdir -p "$dir"
	cp "$from/package.json" "$from/package-lock.json" "$dir/"
	(cd "$dir" && quietly npm ci --no-audit --no-fund --ignore-scripts) || die "npm could not install the provider; see its output above"
	cp "$from/package-lock.json" "$dir/installed.json"
}

# A tool is current if it was built from the pinned version with the installed Go: a
# linter built with an older Go rejects newer code.
tool_is_current() {
	local command=$1 version=$2 built
	[ -x ".cache/tools/$command" ] || return 1
	built=$(go version -m ".cache/tools/$command" 2>/dev/null) || return 1
	[[ $built == *": $(go env GOVERSION)"* ]] &&
		awk -v v="$version" '$1 == "mod" && $3 == v { ok = 1 } END { exit !ok }' <<<"$built"
}

require_go() {
	command -v go >/dev/null ||
		die "Go is missing; install the version in go.mod (https://go.dev/dl) and add it to PATH"
}

install_tools() {
	mkdir -p .cache/tools
	local command package version
	while read -r command package version; do
		tool_is_current "$command" "$version" && continue
		say "building $command $version into .cache/tools (once, a minute or two)"
		quietly env GOBIN="$PWD/.cache/tools" CGO_ENABLED=0 GOFLAGS=-trimpath go install "$package@$version" ||
			die "could not build $command $version; see the output above"
	done < <(tools)
}

case ${1:-all} in
all)
	[ "$(id -u)" -eq 0 ] ||
		die "run make test as root: the tests mount file systems, set cgroup limits and start servers as other users"
	require_go
	install_tools & # it mostly computes, while the others mostly download
	building=$!
	install_packages
	fetch_kernel
	install_provider
	wait "$building" || exit
	;;
tools)
	require_go
	install_tools
	;;
*) die "unknown argument \"$1\"; run without an argument, or with: tools" ;;
esac
