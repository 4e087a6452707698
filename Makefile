# Build, test and maintenance commands. Each prints only its results and errors.
#
#   make          build bin/mariposa and bin/hello
#   make man      write the manual pages to bin/man
#   make completion  write shell completion for bash, zsh and fish to bin/completion
#   make picture  record the terminal picture of the README from a real run
#   make pictures  take the pictures of the web page in the documentation, from a real run
#   make run      build, then run a local Mariposa with the hello example
#   make test     all checks required before a commit: lint, tests, race detector
#   make test-repeat  run make test N times to find flaky tests (N=10, BUSY=1)
#   make soak     run the scenarios and the simulation for longer (SOAK=10m, SEED=…)
#   make soak-fleet  run replicas, agents and PostgreSQL under random faults (SOAK=10m, SEED=…)
#   make fmt      format the code
#   make lint     check the format and run golangci-lint (includes go vet)
#   make vuln     check for known vulnerabilities; needs access to the database (GOVULNDB=…)
#   make clean    remove build and test output (make distclean also removes the tools)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := build
.PHONY: build man completion picture pictures run test test-repeat soak soak-fleet fmt lint vuln tools clean distclean

# Releases are static binaries, so tests run static ones too. Only the race detector
# needs cgo.
export CGO_ENABLED := 0

# Without local paths in the binaries, all clones share the build cache.
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath)

TOOLS := .cache/tools

# The version is the nearest tag. Before the first tag it is the newest release in the
# changelog (or 0.0.0) with the commit. Without git it is the changelog's release.
ifndef VERSION
VERSION := $(shell git describe --tags --dirty 2>/dev/null || { \
	v=$$(sed -n 's/^\#\# \[\([0-9][^]]*\)\].*/\1/p' CHANGELOG.md 2>/dev/null | head -n 1); \
	c=$$(git describe --always --dirty 2>/dev/null); \
	echo "$${v:-0.0.0}$${c:+-dev+$$c}"; })
endif

# Packages with concurrent code: `make test` runs them under the race detector and all
# others without it. Left out on purpose: pure packages (a test checks that they contain
# no `go` statement), simulate (it processes one message at a time) and cmd (its tests
# start the real, static binary). Packages that do not exist are skipped.
RACE_ROOMS := clock mailbox listener wire store driver engine fleet agent health history balance discover \
	picture seal auth api web client cli healthagent examples
RACE := $(patsubst %,./%/...,$(wildcard $(RACE_ROOMS)))
# Some of their tests take too long under the race detector. These packages run twice:
# once without it, and once with it and -short, which skips long tests and generates a
# fifth of the cases.
TWICE_ROOMS := api cli wire store/memory store/sqlite store/internal driver/dummy engine seal
TWICE := $(patsubst %,./%/...,$(wildcard $(TWICE_ROOMS)))

build:
	@go build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/mariposa ./cmd/mariposa
	@go build -ldflags "-s -w" -o bin/hello ./examples/hello
	@echo "built bin/mariposa ($(VERSION)) and bin/hello"

man: build
	@rm -rf bin/man
	@bin/mariposa man bin/man
	@echo "wrote $$(ls bin/man | wc -l) manual pages to bin/man"

completion: build
	@mkdir -p bin/completion
	@bin/mariposa completion bash > bin/completion/mariposa.bash
	@bin/mariposa completion zsh > bin/completion/_mariposa
	@bin/mariposa completion fish > bin/completion/mariposa.fish
	@echo "wrote completion for bash, zsh and fish to bin/completion"

picture: build
	@go run ./scripts/picture bin docs/terminal.svg
	@echo "recorded docs/terminal.svg"

pictures:
	@MARIPOSA_PICTURES="$(CURDIR)/docs" go test ./cmd/mariposa -run '^TestThePicturesOfTheDocumentation$$' -count=1
	@echo "took docs/page.webp and docs/page-project.webp"

# With HAProxy, the example has a load balancer.
HAPROXY = $(shell PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v haproxy)
run:
	@[ -x bin/mariposa ] || echo "compiling Mariposa; the first build takes a minute or two (each package is listed when it is done)"
	@go build -trimpath -v -ldflags "-s -w -X main.version=$(VERSION)" -o bin/mariposa ./cmd/mariposa
	@$(MAKE) build
	@[ -n "$(HAPROXY)" ] || echo "HAProxy is not installed, so the example has no load balancer. To get one, install haproxy (apt-get install haproxy) and run this again."
	@exec bin/mariposa dev --deploy hello=examples/hello/$(if $(HAPROXY),balanced,mariposa).yaml

test:
	@scripts/setup.sh
	@RACE="$(RACE)" TWICE="$(TWICE)" TESTFLAGS="$(TESTFLAGS)" scripts/test.sh

# BUSY=1 keeps every core busy during the runs. Logs are kept in .cache/test-logs.
N ?= 10
BUSY ?=
test-repeat:
	@N="$(N)" BUSY="$(BUSY)" TESTFLAGS="$(TESTFLAGS)" scripts/test-repeat.sh

# The simulation reads both from its environment. If SEED is empty it picks a random
# seed; a failure prints the seed.
# MARIPOSA_WIDE multiplies the sizes of the other tests.
SOAK ?= 10m
SEED ?=
soak:
	@MARIPOSA_WIDE=10 MARIPOSA_SOAK="$(SOAK)" MARIPOSA_SEED="$(SEED)" go test ./converge ./simulate -count=1 -timeout 0 -v

soak-fleet:
	@MARIPOSA_FLEET_SOAK="$(SOAK)" MARIPOSA_SEED="$(SEED)" go test ./cmd/mariposa -run 'TestAFleetSurvivesChaos' -count=1 -timeout 0 -v

tools:
	@scripts/setup.sh tools

fmt: tools
	@$(TOOLS)/gofumpt -l -w .

# Run both checks even if the first one fails, so that one run shows all findings.
# Clones share the linter's cache as well as the build cache.
lint: tools
	@bad=0; \
	unformatted=$$($(TOOLS)/gofumpt -l .) || bad=1; \
	if [ -n "$$unformatted" ]; then \
		echo "not formatted (make fmt):"; echo "$$unformatted"; bad=1; \
	fi; \
	$(TOOLS)/golangci-lint run ./... || bad=1; \
	exit $$bad

# Not part of `make test`: the result changes with the database, and it needs a network.
vuln:
	@GOVULNDB="$(GOVULNDB)" scripts/vuln.sh

clean:
	@rm -rf bin .cache/test .cache/test-logs .cache/links

distclean: clean
	@rm -rf .cache
