#!/bin/sh
# Builds the images of this example from one static program:
#
#   mariposa-example/hello:1  an image in the Docker engine
#   app.tar                   the root file system of a system container
#   store.cpio                the initial RAM disk of a virtual machine
#
#   ./images.sh DIR             write the files to this directory; build the program first
#   ./images.sh DIR bin/hello   use this program
#
# The kernel of the machine is used for the virtual machine. Set KERNEL=/boot/vmlinuz-VERSION
# and MODULES=/lib/modules/VERSION to use another one.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?name a directory for the images}
kernel=${KERNEL:-/boot/vmlinuz-$(uname -r)}
modules=${MODULES:-/lib/modules/$(uname -r)}
mkdir -p "$out"
out=$(cd "$out" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

if [ $# -gt 1 ]; then
	cp "$2" "$dir/hello"
else
	(cd "$here/../.." && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$dir/hello" ./examples/hello)
fi
"$here/../compose-like/images.sh" "$dir/hello"

# The system container has the program, and the directories that every container needs.
mkdir -p "$dir/app/dev" "$dir/app/etc" "$dir/app/proc" "$dir/app/run" "$dir/app/sys" "$dir/app/tmp"
cp "$dir/hello" "$dir/app/hello"
tar --create --file "$out/app.tar" --owner 0 --group 0 --directory "$dir/app" .

# The virtual machine also has busybox, and the drivers of its devices.
mkdir -p "$dir/store/bin" "$dir/store/data" "$dir/store/dev" "$dir/store/lib" "$dir/store/proc" "$dir/store/sys"
cp "$dir/hello" "$dir/store/hello"
cp /bin/busybox "$dir/store/bin/busybox"
cp "$here/init" "$dir/store/init"
chmod 755 "$dir/store/init"
for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net button evdev; do
	found=$(find "$modules/" -name "$module.ko*" | head -n 1)
	case $found in
	*.ko) cp "$found" "$dir/store/lib/" ;;
	*.xz) xz -dc "$found" >"$dir/store/lib/$module.ko" ;;
	*.zst) zstd -dcq "$found" >"$dir/store/lib/$module.ko" ;;
	'') ;; # it is part of the kernel
	esac
done
(cd "$dir/store" && find . | /bin/busybox cpio -o -H newc 2>/dev/null) >"$out/store.cpio"
cp "$kernel" "$out/vmlinuz"
