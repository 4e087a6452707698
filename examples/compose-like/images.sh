#!/bin/sh
# Builds the image of this example: one static program and nothing else.
#
#   ./images.sh             build the program hello first (requires Go)
#   ./images.sh bin/hello   use this program
#
# DOCKER_HOST says which engine gets the image.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

if [ $# -gt 0 ]; then
	cp "$1" "$dir/hello"
else
	(cd "$here/../.." && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$dir/hello" ./examples/hello)
fi
cat >"$dir/Dockerfile" <<'EOF'
FROM scratch
COPY hello /hello
ENV LISTEN=0.0.0.0
LABEL org.opencontainers.image.version=1.0.0
ENTRYPOINT ["/hello"]
EOF
docker build --quiet --tag mariposa-example/hello:1 "$dir"
